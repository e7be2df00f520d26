// Lines of one learner's log: what is in memory, what is fetched when it is needed, what the socket brings.
import { api, ApiError } from "../api";
import { live, type Frame } from "../live";
import { texts } from "../texts";
import { LOOK_BACK, carry, endOf } from "./carry";
import { Gaps } from "./gaps";
import { classify, levelOf, startsTraceback, type After, type Kind, type Level } from "./levels";
import type { Style } from "./sgr";

export interface Line {
  n: number;
  t: string;
  text: string;
  cut: number;
  kind: Kind;
  after: After;
  level: Level;
  /** In which it begins, where lines before it left a color; see carry.ts. */
  style?: Style;
  attempt: number;
  rank: number;
}

export interface LogPage {
  attempt: number;
  learner: number;
  lines: { n: number; t: string; text: string; cut?: number; level?: "warn" | "error"; part?: boolean }[];
  gaps: { from: number; to: number }[];
  next: number;
  more: boolean;
  sealed: boolean;
  total: number;
}

export interface Stream {
  job: string;
  attempt: number;
  rank: number;
}

export const BLOCK = 1000;
const PLAIN = { kind: "none", after: "nothing", level: levelOf("none") } as const;
const RETRY_MS = 3000;
const RETRY_MOST_MS = 30_000;

export class Lines extends EventTarget {
  total = 0; // complete lines in the store, as far as is known
  sealed = false;
  tail: Line | null = null; // the unfinished last line
  answered = false; // the store has responded
  problem = "";
  unavailable = false;
  private readonly lost = new Gaps();
  /** First lines of tracebacks that came since Folds last took them. */
  readonly heads: number[] = [];
  private readonly blocks = new Map<number, Line[]>();
  private readonly fetching = new Map<number, Promise<void>>();
  private stop: (() => void) | undefined;
  closed = false;
  private opening: Promise<void> | undefined;
  private retry: ReturnType<typeof setTimeout> | undefined;
  private failures = 0; // to load it, in a row

  constructor(readonly stream: Stream) {
    super();
  }

  private get owner(): { attempt: number; rank: number } {
    return { attempt: this.stream.attempt, rank: this.stream.rank };
  }

  get path(): string {
    return `/jobs/${this.stream.job}/logs?learner=${this.stream.rank}&attempt=${this.stream.attempt}`;
  }

  get levelsPath(): string {
    return this.path.replace("/logs?", "/logs/levels?");
  }

  /** Fetch the last lines and follow what comes. */
  open(tail: number): Promise<void> {
    clearTimeout(this.retry);
    return (this.opening ??= this.begin(tail).finally(() => (this.opening = undefined)));
  }

  private async begin(tail: number): Promise<void> {
    if (this.stop || this.closed) return;
    let isFinal = false; // the server refuses, and would refuse again
    try {
      const page = await api<LogPage>("GET", `${this.path}&tail=${tail}`);
      this.problem = "";
      this.failures = 0;
      this.take(page);
      this.answered = true;
      this.total = Math.max(page.total, page.next);
    } catch (error) {
      isFinal = error instanceof ApiError && error.problem.status < 500 && ![401, 429].includes(error.problem.status);
      this.problem = error instanceof Error ? error.message : texts.log.failed;
    }
    if (this.closed) return;
    this.changed();
    if (this.problem && !isFinal) this.retry = setTimeout(() => void this.open(tail), this.pause());
    if (this.problem || this.sealed) return; // a sealed log gets no more lines
    this.stop = live.watch(`job:${this.stream.job}:logs:${this.stream.attempt}:${this.stream.rank}`, {
      cursor: () => this.total,
      frame: (frame) => this.receive(frame),
      gap: (from, to, lost) => {
        if (lost) this.lost.add(from, to);
        this.total = Math.max(this.total, to);
        this.changed();
      },
      error: (code) => {
        this.unavailable = code !== "not_found";
        this.changed();
      },
      heavy: true,
    });
  }

  /** Longer after each failure; random, so that not all logs retry at once. */
  private pause(): number {
    const most = Math.min(RETRY_MOST_MS, RETRY_MS * 2 ** this.failures);
    this.failures += 1;
    return most * (0.75 + Math.random() / 2);
  }

  close(): void {
    this.closed = true;
    clearTimeout(this.retry);
    this.unwatch();
  }

  private unwatch(): void {
    this.stop?.();
    this.stop = undefined;
  }

  /** Line n if it is in memory. */
  get(n: number): Line | undefined {
    return this.blocks.get(Math.floor((n - 1) / BLOCK))?.[(n - 1) % BLOCK];
  }

  isLost(n: number): boolean {
    return this.lost.endOf(n) > 0;
  }

  /** Fetch the block of line n, unless it is being fetched. */
  need(n: number): Promise<void> {
    const block = Math.floor((n - 1) / BLOCK);
    const underway = this.fetching.get(block);
    if (underway) return underway;
    const work = this.fetch(block).finally(() => this.fetching.delete(block));
    this.fetching.set(block, work);
    return work;
  }

  /** Keep at most this number of blocks, those nearest to the line `around`; the others are fetched again when needed.
   * Blocks of drawn lines stay: they would be fetched at once, and push out the next. */
  forget(around: number, kept: number, drawn: Iterable<number>): void {
    if (this.blocks.size <= kept) return;
    const center = Math.floor((around - 1) / BLOCK);
    const inView = new Set(Array.from(drawn, (n) => Math.floor((n - 1) / BLOCK)));
    const last = Math.floor((this.total - 1) / BLOCK);
    const far = [...this.blocks.keys()].filter((block) => block < last - 1 && !this.fetching.has(block) && !inView.has(block)).sort((a, b) => Math.abs(b - center) - Math.abs(a - center));
    for (const block of far.slice(0, this.blocks.size - kept)) this.blocks.delete(block);
  }

  private async fetch(block: number): Promise<void> {
    try {
      const back = block && !this.get(block * BLOCK) ? LOOK_BACK : 0;
      const page = await api<LogPage>("GET", `${this.path}&after=${block * BLOCK - back}&limit=${BLOCK + back}`);
      this.take(page);
      const upto = Math.min((block + 1) * BLOCK, page.more ? page.next : this.total);
      let gap = page.gaps.length;
      for (let n = block * BLOCK + 1; n <= upto; n += 1) {
        if (this.get(n) || this.isLost(n)) continue;
        gap = n;
        this.lost.add(n, n);
      }
      if (gap || page.lines.length) this.changed();
      this.problem = "";
    } catch (error) {
      this.problem = error instanceof Error ? error.message : texts.log.failed;
      this.changed();
      await new Promise((done) => setTimeout(done, RETRY_MS));
    }
  }

  private take(page: LogPage): void {
    this.sealed = page.sealed;
    this.total = Math.max(this.total, page.total);
    for (const gap of page.gaps) this.lost.add(gap.from, gap.to);
    for (const line of page.lines) this.put(line);
  }

  private receive(frame: Frame): void {
    this.unavailable = false;
    for (const item of frame.items as LogPage["lines"]) if (item.n > this.total || !this.get(item.n)) this.put(item);
    this.total = Math.max(this.total, frame.to);
    if ("sealed" in frame) this.sealed = Boolean(frame.sealed);
    if ("tail" in frame) {
      const tail = frame.tail as LogPage["lines"][number] | null;
      const last = this.get(this.total);
      this.tail = tail && { ...tail, cut: tail.cut ?? 0, ...PLAIN, ...this.owner, ...(last && { style: endOf(last) }) };
    }
    this.changed();
    if (this.sealed) this.settle();
  }

  /** No more lines will come: leave the channel. A gap at the very end follows the last line, so fetch the end again. */
  private settle(): void {
    this.unwatch();
    void this.open(1);
  }

  private put(line: LogPage["lines"][number]): void {
    const block = Math.floor((line.n - 1) / BLOCK);
    let lines = this.blocks.get(block);
    if (!lines) this.blocks.set(block, (lines = []));
    const mark = classify(line.text, this.get(line.n - 1)?.after ?? "nothing");
    lines[(line.n - 1) % BLOCK] = {
      n: line.n,
      t: line.t,
      text: line.text,
      cut: line.cut ?? 0,
      ...mark,
      level: levelOf(mark.kind),
      ...this.owner,
    };
    this.restyle(line.n);
    if (startsTraceback(line.text)) this.heads.push(line.n);
    // With this line, lines that came before it may turn out to belong to a traceback.
    for (let next = this.get(line.n + 1), { after } = mark; next && after !== "nothing"; next = this.get(next.n + 1)) {
      const fresh = classify(next.text, after);
      if (fresh.kind === next.kind && fresh.after === next.after) break;
      Object.assign(next, fresh, { level: levelOf(fresh.kind) });
      after = fresh.after;
    }
  }

  /** The text of this line has changed, or is new. */
  restyle(n: number): void {
    carry((at) => this.get(at), n);
  }

  changed(): void {
    this.dispatchEvent(new Event("change"));
  }
}
