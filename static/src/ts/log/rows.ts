// What the viewer shows, row by row: one learner's lines by number, the lines of all learners by time, or only lines of
// a level. Pure. A row is found by its index; `key` finds it again after rows were added, dropped or replaced.
import type { Line, Stream } from "./lines";

/** The part of a learner's log that rows are made from; Lines is one. */
export interface Source {
  readonly stream: Stream;
  readonly total: number;
  readonly tail: Line | null;
  get(n: number): Line | undefined;
  isLost(n: number): boolean;
  need(n: number): Promise<void>;
}

export interface Rows {
  readonly length: number;
  /** Rows that belong here are still looked for. */
  readonly waiting?: boolean;
  /** Rows may also appear above others. */
  readonly shifts?: boolean;
  at(index: number): Line | undefined;
  /** Fetch what is missing between these indexes. */
  need(from: number, to: number): void;
  indexOf(key: string): number;
  keyAt(index: number): string;
  /** Take in the lines that came since the last call. */
  update(): void;
}

export interface Place {
  attempt: number;
  rank: number;
  n: number;
}

export const keyOf = ({ attempt, rank, n }: Place): string => `${attempt}:${rank}:${n}`;

export function placeOf(key: string): Place {
  const [attempt = 0, rank = 0, n = 0] = key.split(":").map(Number);
  return { attempt, rank, n };
}

/** One learner: row i is line i + 1, whether or not it is in memory. */
export class AllRows implements Rows {
  constructor(private readonly lines: Source) {}

  get length(): number {
    return this.lines.total + (this.lines.tail ? 1 : 0);
  }

  at(index: number): Line | undefined {
    if (index === this.lines.total && this.lines.tail) return this.lines.tail;
    return this.lines.get(index + 1);
  }

  need(from: number, to: number): void {
    for (let n = from + 1; n <= Math.min(to + 1, this.lines.total); n += 1) {
      if (!this.lines.get(n) && !this.lines.isLost(n)) void this.lines.need(n);
    }
  }

  indexOf(key: string): number {
    return placeOf(key).n - 1;
  }

  keyAt(index: number): string {
    return keyOf({ ...this.lines.stream, n: index + 1 });
  }

  update(): void {
    // row i is always line i + 1
  }
}

const KEPT = 200_000;

/** Where a list takes its lines from, one source per learner. */
export interface Feed {
  /** The lines that came since the last call. */
  take(): Line[];
  /** There are lines that were not looked at yet. */
  readonly waiting?: boolean;
}

/** The lines of a log that are in memory, from a line on; what is missing is fetched. */
export class LoadedLines implements Feed {
  constructor(
    private readonly lines: Source,
    private next: number,
  ) {}

  take(): Line[] {
    const fresh: Line[] = [];
    for (; this.next <= this.lines.total; this.next += 1) {
      const line = this.lines.get(this.next);
      if (line) fresh.push(line);
      else if (!this.lines.isLost(this.next)) {
        void this.lines.need(this.next);
        break;
      }
    }
    return fresh;
  }
}

/** A list of lines in the order in which they are shown: those of a level, or those of all learners. */
export class ListedRows implements Rows {
  private list: Line[] = [];

  constructor(private readonly feeds: readonly Feed[]) {}

  get waiting(): boolean {
    return this.feeds.some((feed) => feed.waiting);
  }

  get length(): number {
    return this.list.length;
  }

  at(index: number): Line | undefined {
    return this.list[index];
  }

  need(): void {
    // everything listed is in memory
  }

  indexOf(key: string): number {
    const { attempt, rank, n } = placeOf(key);
    return this.list.findIndex((line) => line.n === n && line.rank === rank && line.attempt === attempt);
  }

  keyAt(index: number): string {
    const line = this.list[index];
    return line ? keyOf(line) : "";
  }

  /** Several learners are put in order of time. */
  update(): void {
    const fresh = this.feeds.flatMap((feed) => feed.take());
    if (!fresh.length) return;
    if (this.feeds.length > 1) this.merge(fresh);
    else this.list.push(...fresh);
    if (this.list.length > KEPT) this.list = this.list.slice(-KEPT);
  }

  private merge(fresh: Line[]): void {
    fresh.sort((a, b) => (a.t < b.t ? -1 : a.t > b.t ? 1 : a.rank - b.rank || a.n - b.n));
    const first = fresh[0];
    let keep = this.list.length;
    while (keep > 0 && first && (this.list[keep - 1]?.t ?? "") > first.t) keep -= 1;
    const end = this.list.splice(keep);
    this.list.push(...[...end, ...fresh].sort((a, b) => (a.t < b.t ? -1 : a.t > b.t ? 1 : a.rank - b.rank || a.n - b.n)));
  }
}
