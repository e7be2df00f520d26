// What the viewer shows, row by row: one learner's lines by number, the lines of all learners by time, or only lines of
// a level. Pure. A row is found by its index; `key` finds it again after rows were added, dropped or replaced.
import { Level } from "./levels";
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

/** A list of lines in the order in which they are shown: those of a level, or those of all learners. */
export class ListedRows implements Rows {
  private list: Line[] = [];
  private readonly seen = new Map<number, number>(); // newest line taken of each learner

  constructor(
    private readonly sources: readonly Source[],
    private readonly chosen: (line: Line) => boolean,
    private readonly from: (lines: Source) => number,
  ) {}

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
    const fresh: Line[] = [];
    for (const lines of this.sources) {
      const rank = lines.stream.rank;
      let n = (this.seen.get(rank) ?? this.from(lines) - 1) + 1;
      for (; n <= lines.total; n += 1) {
        const line = lines.get(n);
        if (!line) {
          if (lines.isLost(n)) continue;
          void lines.need(n);
          break;
        }
        if (this.chosen(line)) fresh.push(line);
      }
      this.seen.set(rank, n - 1);
    }
    if (!fresh.length) return;
    if (this.sources.length > 1) this.merge(fresh);
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

export const isOf = (level: "warn" | "error") => (line: Line): boolean =>
  level === "error" ? line.level >= Level.Error : line.level >= Level.Warn;
