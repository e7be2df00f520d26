// The line under the log: where the reader is, how many lines there are, and whether more will come.
import { texts } from "../texts";
import type { Line } from "./lines";

const { lines, status } = texts.log;

export interface Status {
  following: boolean;
  /** No more lines will come. */
  ended: boolean;
  /** The first visible line. */
  first: Line | undefined;
  searching: boolean;
  /** The line up to which a search got before it stopped; 0 if none did. */
  stoppedAt: number;
  total: number;
  /** A part could not be loaded. */
  partly: boolean;
  stale: boolean;
}

/** The parts of the status line, in order. */
export function statusTexts({ following, ended, first, searching, stoppedAt, total, partly, stale }: Status): string[] {
  const place = first ? (ended ? status.placeFirst : status.place)(first.t.slice(11, 19), first.n) : "";
  const parts = [
    ended ? (following ? "" : place) : following ? status.following : status.paused(place),
    searching ? status.searching : stoppedAt ? status.stopped(stoppedAt) : "",
    lines(total),
    partly ? status.partly : "",
    stale ? status.notLive : ended ? status.end : status.live,
  ];
  return parts.filter(Boolean);
}

export function statusNodes(shown: Status): HTMLElement[] {
  return statusTexts(shown).map((text, at) => {
    const made = document.createElement("span");
    made.textContent = text;
    if (at === 0 && !shown.ended) made.dataset.following = String(shown.following);
    return made;
  });
}
