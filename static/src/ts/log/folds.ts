// Tracebacks fold into their first line: which lines each fold hides, and at which row each line is. Pure. Folds are
// found as lines come and then stay, loaded or not, so a row moves only when a fold appears or is opened.
import { Level, startsTraceback } from "./levels";
import type { Line } from "./lines";
import { AllRows, placeOf, type Rows, type Source } from "./rows";

const LEAST = 8; // lines of a body worth hiding

export class Folds {
  /** Head of each traceback that has ended → its last hidden line. */
  readonly ends = new Map<number, number>();
  private readonly opened = new Set<number>();
  private readonly pending = new Set<number>();
  /** Lines that were asked for; a fold that hides one of them is open from the start. */
  private readonly wanted = new Set<number>();

  constructor(private readonly lines: Source & { readonly heads: number[] }) {}

  /** Find folds in the lines that came since; true if there is a new one. */
  update(): boolean {
    for (const head of this.lines.heads.splice(0)) this.pending.add(head);
    let found = false;
    for (const head of this.pending) {
      let end = head;
      let next = this.lines.get(head + 1);
      while (next?.level === Level.Trace && !isHead(next)) {
        end = next.n;
        next = this.lines.get(end + 1);
      }
      if (!next && !this.lines.isLost(end + 1)) continue; // its end is not loaded yet
      this.pending.delete(head);
      if (end - head < LEAST || this.ends.has(head)) continue;
      this.ends.set(head, end);
      for (const n of this.wanted) if (n >= head && n <= end) this.opened.add(head);
      found = true;
    }
    return found;
  }

  has(head: number): boolean {
    return this.ends.has(head);
  }

  isOpen(head: number): boolean {
    return this.opened.has(head);
  }

  toggle(head: number): void {
    if (!this.opened.delete(head)) this.opened.add(head);
  }

  /** Show line n; true if it was hidden, or is the head of what was. */
  open(n: number): boolean {
    this.wanted.add(n);
    for (const [head, end] of this.ends) {
      if (n < head || n > end || this.opened.has(head)) continue;
      this.opened.add(head);
      return true;
    }
    return false;
  }

  closed(): [head: number, end: number][] {
    return [...this.ends].filter(([head]) => !this.opened.has(head)).sort((a, b) => a[0] - b[0]);
  }
}

const isHead = (line: Line): boolean => startsTraceback(line.text);

/** One learner's log without the lines that its closed folds hide at the time it is made. */
export class FoldedRows extends AllRows implements Rows {
  private readonly folded: [head: number, end: number][];
  private readonly before: number[] = [0]; // lines hidden by the first i folds

  constructor(
    lines: Source,
    readonly folds: Folds,
  ) {
    super(lines);
    this.folded = folds.closed();
    for (const [head, end] of this.folded) this.before.push((this.before[this.before.length - 1] ?? 0) + end - head);
  }

  override get length(): number {
    return super.length - (this.before[this.folded.length] ?? 0);
  }

  override at(index: number): Line | undefined {
    return super.at(this.line(index) - 1);
  }

  override need(from: number, to: number): void {
    // A fold's body may be long and is not drawn: each stretch between folds is fetched by itself.
    let first = this.line(from);
    for (let index = from; index <= to; index += 1) {
      const n = this.line(index);
      if (this.line(index + 1) === n + 1 && index < to) continue;
      super.need(first - 1, n - 1);
      first = this.line(index + 1);
    }
  }

  override indexOf(key: string): number {
    const { n } = placeOf(key);
    const i = this.search((fold) => fold < n);
    const [head, end] = this.folded[i - 1] ?? [0, 0];
    return (n <= end ? head - (this.before[i - 1] ?? 0) : n - (this.before[i] ?? 0)) - 1;
  }

  override keyAt(index: number): string {
    return super.keyAt(this.line(index) - 1);
  }

  private line(index: number): number {
    const i = this.search((head, at) => head - 1 - (this.before[at] ?? 0) < index);
    return index + 1 + (this.before[i] ?? 0);
  }

  /** How many folds, from the first on, match. */
  private search(matches: (head: number, at: number) => boolean): number {
    let low = 0;
    let high = this.folded.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (matches(this.folded[middle]?.[0] ?? 0, middle)) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
