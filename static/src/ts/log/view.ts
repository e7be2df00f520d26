// The lines in the pane: which rows they make, how a row looks, what is folded, picked or found. The element around it
// (x-log.ts) has the controls and the address.
import { api } from "../api";
import { texts } from "../texts";
import { toast } from "../toast";
import { plain } from "./ansi";
import { ChainedRows } from "./chain";
import { Finder } from "./finder";
import type { Line, Lines, LogPage } from "./lines";
import { Pane } from "./pane";
import { has, pick, type Picked } from "./picked";
import { drawBorder, drawRow } from "./row";
import { type Place, type Rows, keyOf, placeOf } from "./rows";
import type { Level, Streams } from "./streams";
import { timeText, type Mode } from "./times";

export class LogView {
  readonly pane: Pane;
  readonly finder: Finder;
  rows: Rows;
  level: Level = "all";
  times: Mode;
  picked: Picked | null = null;
  /** A line to show once all rows of the level are known. */
  private awaited: Place | null = null;
  private started = ""; // time of the first line

  /** full: the log tab, where tracebacks fold; changed: something that the status shows. */
  constructor(
    private streams: Streams,
    private readonly full: boolean,
    times: Mode,
    changed: () => void,
  ) {
    this.times = times;
    this.rows = streams.rows("all", false);
    this.finder = new Finder(changed);
    this.pane = new Pane(this.rows, {
      fill: (row, index) => this.fill(row, index),
      heightOf: (index, columns) => this.heightOf(index, columns),
      moved: changed,
    });
  }

  /** Key of the first visible row. */
  get firstKey(): string {
    return this.rows.keyAt(this.pane.firstIndex());
  }

  get firstLine(): Line | undefined {
    return this.rows.at(this.pane.firstIndex());
  }

  /** The last row is visible. */
  get isAtEnd(): boolean {
    return this.pane.lastIndex() === this.rows.length - 1;
  }

  /** Show other logs, from the beginning of what they have. */
  switchTo(streams: Streams): void {
    this.finder.end();
    this.streams = streams;
    this.picked = null;
    this.started = "";
  }

  /** Make the rows again; the line with this key stays in place. */
  chooseRows(key: string): void {
    this.rows = this.streams.rows(this.level, this.full);
    this.pane.swap(this.rows, key);
  }

  filter(level: Level): void {
    this.level = level;
    const key = this.firstKey;
    this.chooseRows(key);
  }

  /** Lines came. */
  update(lines: Lines): void {
    if (this.folded && this.streams.refold(lines)) this.refold();
    this.rows.update();
    this.finder.update();
    if (this.awaited && !this.rows.waiting) {
      this.pane.show(Math.max(0, this.indexNear(this.awaited)));
      this.awaited = null;
    }
    lines.forget(this.nearestLine(lines), this.streams.blocksEach, this.drawnLines(lines));
    this.started ||= this.streams.all[0]?.get(1)?.t ?? "";
    this.pane.refresh();
  }

  /** Pick lines of one learner and show the first. */
  show(picked: Picked, rank: number): void {
    const { attempt, from, to } = picked;
    this.picked = { attempt, from: Math.min(from, to), to: Math.max(from, to) };
    const place = { attempt, rank, n: from };
    this.awaited = this.rows.waiting ? place : null;
    this.pane.show(Math.max(0, this.reveal(keyOf(place)), this.indexNear(place)));
    this.pane.refill();
  }

  has(place: Place): boolean {
    return this.rows.indexOf(keyOf(place)) >= 0;
  }

  /** Search, and go to the nearest match unless lines were picked that are to stay in sight. */
  async find(text: string, { stay = false } = {}): Promise<void> {
    const { picked } = this;
    if (text) this.pane.pause();
    const finding = this.finder.find(text, this.streams.all, () => placeOf(this.firstKey));
    this.pane.refill();
    if ((await finding) && !stay && picked === this.picked) this.showMatch();
  }

  step(by: number): void {
    if (this.finder.step(by)) this.showMatch();
  }

  /** A click on a fold toggles it, one on a number picks the line; true if other lines are picked now. */
  click(target: Element, extend: boolean): boolean {
    const key = target.closest<HTMLElement>(".log-row")?.dataset.key ?? "";
    if (key && target.closest(".fold")) this.toggleFold(key);
    else if (key && target.closest(".number")) {
      const { attempt, n } = placeOf(key);
      this.picked = pick(this.picked, attempt, n, extend);
      this.pane.pause();
      this.pane.refill();
      return true;
    }
    return false;
  }

  /** The picked lines as text. */
  pickedLines(): string[] {
    if (!this.picked) return [];
    const { attempt, from, to } = this.picked;
    const lines = this.streams.all.find(({ stream }) => stream.attempt === attempt);
    return Array.from({ length: to - from + 1 }, (_, at) => plain(lines?.get(from + at)?.text ?? ""));
  }

  private showMatch(): void {
    const index = this.reveal(this.finder.current);
    if (index >= 0) this.pane.show(index);
    this.pane.refill();
  }

  private drawnLines({ stream }: Lines): number[] {
    const shown = Array.from(this.pane.drawnRows()).filter((index) => index < this.rows.length);
    const places = shown.map((index) => placeOf(this.rows.keyAt(index)));
    return places.filter(({ attempt, rank }) => attempt === stream.attempt && rank === stream.rank).map(({ n }) => n);
  }

  /** Number of the line of this log that is nearest to the first visible one. */
  private nearestLine(lines: Lines): number {
    const { attempt, n } = placeOf(this.firstKey);
    if (lines.stream.attempt === attempt) return n || 1;
    return lines.stream.attempt < attempt ? lines.total : 1;
  }

  // --- folds: where all lines of one learner are shown ---

  private get folded(): boolean {
    return this.full && this.level === "all" && !this.streams.merged;
  }

  /** Folds appeared, opened or closed: the first visible line stays in place. */
  private refold(): void {
    if (this.folded) this.chooseRows(this.firstKey);
  }

  private toggleFold(key: string): void {
    this.pane.pause();
    this.streams.foldsOf(key)?.toggle(placeOf(key).n);
    this.refold();
  }

  /** The row of a line, else of the first one behind it; -1 if there is none. */
  private indexNear({ attempt, n }: Place): number {
    if (this.level === "all") return -1;
    for (let index = 0; index < this.rows.length; index += 1) {
      const place = placeOf(this.rows.keyAt(index));
      if (place.attempt > attempt || (place.attempt === attempt && place.n >= n)) return index;
    }
    return this.rows.length - 1;
  }

  /** The row of a line, unfolded if it is hidden; -1 if this view does not have it. */
  private reveal(key: string): number {
    if (this.folded && this.streams.foldsOf(key)?.open(placeOf(key).n)) this.refold();
    return this.rows.indexOf(key);
  }

  // --- drawing ---

  private fill(row: HTMLElement, index: number): void {
    const line = this.rows.at(index);
    const key = this.rows.keyAt(index);
    const next = this.rows instanceof ChainedRows ? this.rows.borderAt(index) : 0;
    if (next) return drawBorder(row, key, borderText(next));
    const { attempt, n } = placeOf(key);
    const folds = this.folded && line ? this.streams.foldsOf(key) : undefined;
    const lines = this.streams.of(key);
    drawRow(row, {
      n,
      key,
      line,
      lost: Boolean(lines?.isLost(n)),
      time: line ? timeText(this.times, line.t, this.started) : "",
      merged: this.streams.merged,
      open: Boolean(line && line === lines?.tail),
      picked: has(this.picked, attempt, n),
      find: this.finder.text,
      current: this.finder.current === key,
      fold: folds?.has(n) ? { open: folds.isOpen(n), hidden: (folds.ends.get(n) ?? n) - n } : null,
      whole: (cut) => this.loadRest(cut),
    });
  }

  private loadRest(line: Line): void {
    const lines = this.streams.of(keyOf(line));
    if (!lines) return;
    void api<LogPage>("GET", `${lines.path}&after=${line.n - 1}&limit=1&full=true`).then(
      (page) => {
        Object.assign(line, { text: page.lines[0]?.text ?? line.text, cut: page.lines[0]?.cut ?? 0 });
        lines.restyle(line.n);
        this.pane.relayout();
      },
      () => toast(texts.log.restFailed, "error"),
    );
  }

  private heightOf(index: number, columns: number): number {
    const line = this.rows.at(index);
    return line ? Math.max(1, Math.ceil(plain(line.text).length / columns)) : 1;
  }
}

/** What the page says about the end of the attempt before this one and the start of this one. */
function borderText(attempt: number): string {
  const borders = document.querySelector<HTMLElement>("x-job")?.dataset.borders;
  return (JSON.parse(borders ?? "{}") as Record<string, string>)[attempt] ?? texts.log.border(attempt);
}
