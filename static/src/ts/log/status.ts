// The line under the log: where the reader is, how much there is, and whether more comes.
import { counted, thousands } from "../format";
import type { Line } from "./lines";

export interface Standing {
  following: boolean;
  /** Nothing more comes. */
  ended: boolean;
  /** The first line in sight. */
  first: Line | undefined;
  searching: boolean;
  total: number;
  /** A part could not be loaded. */
  partly: boolean;
  stale: boolean;
}

export function statusWords({ following, ended, first, searching, total, partly, stale }: Standing): HTMLElement[] {
  const place = first ? `${ended ? "At" : " at"} ${first.t.slice(11, 19)}, line ${thousands(first.n)}` : "";
  const words = [
    ended ? (following ? "" : place) : following ? "Following" : `Paused${place}`,
    searching ? "Searching…" : "",
    counted(total, "line"),
    partly ? "A part could not be loaded" : "",
    stale ? "Not live" : ended ? "End of log" : "Live",
  ];
  return words.filter(Boolean).map((word, at) => {
    const made = document.createElement("span");
    made.textContent = word;
    if (at === 0 && !ended) made.dataset.following = String(following);
    return made;
  });
}
