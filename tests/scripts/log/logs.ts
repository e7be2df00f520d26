// A learner's log for tests: lines by number, in memory or not, kept or not.
import { classify, levelOf, startsTraceback } from "../../../static/src/ts/log/levels";
import type { Line } from "../../../static/src/ts/log/lines";
import type { Source } from "../../../static/src/ts/log/rows";

export class FakeLog implements Source {
  readonly heads: number[] = [];
  readonly needed: number[] = [];
  tail: Line | null = null;
  total = 0;
  private readonly lines = new Map<number, Line>();
  private readonly lost = new Set<number>();

  constructor(readonly stream = { job: "j", attempt: 1, rank: 0 }) {}

  /** Lines that come at the end. */
  add(...texts: string[]): this {
    for (const text of texts) this.put((this.total += 1), text);
    return this;
  }

  put(n: number, text: string, t = new Date(1_700_000_000_000 + n * 1000).toISOString()): this {
    const { attempt, rank } = this.stream;
    const mark = classify(text, this.lines.get(n - 1)?.after ?? "nothing");
    this.lines.set(n, { n, t, text, cut: 0, ...mark, level: levelOf(mark.kind), attempt, rank });
    this.total = Math.max(this.total, n);
    if (startsTraceback(text)) this.heads.push(n);
    return this;
  }

  /** Lines that were not stored. */
  lose(from: number, to: number): this {
    for (let n = from; n <= to; n += 1) this.lost.add(n);
    this.total = Math.max(this.total, to);
    return this;
  }

  get(n: number): Line | undefined {
    return this.lines.get(n);
  }

  isLost(n: number): boolean {
    return this.lost.has(n);
  }

  need(n: number): Promise<void> {
    this.needed.push(n);
    return Promise.resolve();
  }
}

/** A traceback with so many lines of body, and the line that ends it. */
export const traceback = (body: number, end = "ValueError: no"): string[] => [
  "Traceback (most recent call last):",
  ...Array.from({ length: body }, (_, at) => `  File "main.py", line ${at + 1}`),
  ...(end ? [end] : []),
];
