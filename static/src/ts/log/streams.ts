// The logs that the viewer shows, of one learner or all, of one attempt or all, and the rows they make.
import { LOOK_BACK } from "./carry";
import { ChainedRows, type Part } from "./chain";
import { FoldedRows, Folds } from "./folds";
import { Lines } from "./lines";
import { Marked } from "./marked";
import { AllRows, ListedRows, LoadedLines, placeOf, type Rows } from "./rows";

export type Level = "all" | "warn" | "error";
const MOST = 40; // logs that are held at once; of a job with more, the newest attempts are shown
const BLOCKS_KEPT = 200; // blocks of lines that are held in all
const TAIL = 1000; // newest lines of each learner that are merged by time

/** The attempts that "all" stands for, oldest first. */
export function attemptsShown(attempts: number, ranks: number): number[] {
  const count = Math.max(1, Math.min(attempts, Math.floor(MOST / ranks)));
  return Array.from({ length: count }, (_, at) => attempts - count + 1 + at);
}

export class Streams {
  readonly all: Lines[] = []; // by attempt, then by learner
  private readonly folds = new Map<Lines, Folds>();
  private opened = false;

  constructor(
    private readonly job: string,
    attempts: number[],
    private readonly ranks: number[],
    private readonly changed: (lines: Lines) => void,
  ) {
    for (const attempt of attempts) this.add(attempt);
  }

  /** Add the logs of one more attempt, the newest. */
  add(attempt: number): Lines[] {
    const added = this.ranks.map((rank) => new Lines({ job: this.job, attempt, rank }));
    for (const lines of added) {
      lines.addEventListener("change", () => this.changed(lines));
      this.folds.set(lines, new Folds(lines));
    }
    this.all.push(...added);
    return added;
  }

  /** Drop the logs of attempts older than this one. */
  dropBefore(attempt: number): void {
    while (this.all[0] && this.all[0].stream.attempt < attempt) {
      const [lines] = this.all.splice(0, 1) as [Lines];
      lines.close();
      this.folds.delete(lines);
    }
  }

  async open(tail: number): Promise<void> {
    await Promise.all(this.all.map((lines) => lines.open(tail + LOOK_BACK)));
    this.opened = true;
  }

  /** Blocks of lines that each log may hold. */
  get blocksEach(): number {
    return Math.max(4, Math.floor(BLOCKS_KEPT / this.all.length));
  }

  close(): void {
    for (const lines of this.all) lines.close();
  }

  get merged(): boolean {
    return this.ranks.length > 1;
  }

  get total(): number {
    return this.all.reduce((sum, lines) => sum + lines.total, 0);
  }

  /** No more lines will come to what is shown. An earlier attempt that never printed stays unsealed forever. */
  get ended(): boolean {
    const newest = this.all.at(-1)?.stream.attempt;
    return this.all.every((lines) => lines.sealed || lines.stream.attempt !== newest);
  }

  /** The log that a row belongs to. */
  of(key: string): Lines | undefined {
    const { attempt, rank } = placeOf(key);
    return this.all.find(({ stream }) => stream.attempt === attempt && stream.rank === rank);
  }

  foldsOf(key: string): Folds | undefined {
    const lines = this.of(key);
    return lines && this.folds.get(lines);
  }

  /** Find tracebacks in lines that came since; true if there is a new fold. */
  refold(lines: Lines): boolean {
    return Boolean(this.folds.get(lines)?.update());
  }

  rows(level: Level, folded: boolean): Rows {
    const attempts = [...new Set(this.all.map((lines) => lines.stream.attempt))];
    // The length of earlier attempts is known once the server responds; only then are they shown above, so nothing moves.
    const parts: Part[] = (this.opened ? attempts : attempts.slice(-1)).map((attempt) => ({
      attempt,
      rows: this.rowsOf(this.all.filter((lines) => lines.stream.attempt === attempt), level, folded),
    }));
    const [only] = parts;
    return parts.length === 1 && only ? only.rows : new ChainedRows(parts);
  }

  private rowsOf(sources: Lines[], level: Level, folded: boolean): Rows {
    const only = sources[0] as Lines;
    if (!this.merged && level === "all") return folded ? new FoldedRows(only, this.folds.get(only) as Folds) : new AllRows(only);
    const newest = (lines: Lines): LoadedLines => new LoadedLines(lines, Math.max(1, lines.total - TAIL));
    const listed = new ListedRows(sources.map((lines) => (level === "all" ? newest(lines) : new Marked(lines, level))));
    listed.update();
    return listed;
  }
}
