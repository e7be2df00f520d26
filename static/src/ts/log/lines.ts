// Lines of one learner's log: what is in memory, what is fetched when it is looked at, what the socket brings.
import { api, ApiError } from "../api";
import { live, type Frame } from "../live";
import { plain } from "./ansi";
import { Gaps } from "./gaps";

export const enum Level {
  None,
  Warn,
  Error,
  Trace,
}

export interface Line {
  n: number;
  t: string;
  text: string;
  cut: number;
  level: Level;
  attempt: number;
  rank: number;
}

export interface LogPage {
  attempt: number;
  learner: number;
  lines: { n: number; t: string; text: string; cut?: number }[];
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
const RETRY_MS = 3000;
const RETRY_MOST_MS = 30_000;
const ERROR = /^E\s|\b(?:error|fatal|critical|exception|panic|traceback|oom|out of memory)\b/i;
const ERROR_NAME = /[a-z](?:Error|Exception)\b/; // ValueError, KeyboardException
export const TRACEBACK = /^\s*Traceback \(most recent call last\)/;
const WARN = /^W\s|\bwarn(?:ing)?\b/i;
const WARN_NAME = /[a-z]Warning\b/;

/** The level of a line, given that of the one before: a traceback's body belongs to it. */
export function levelOf(text: string, before: Level): Level {
  const words = plain(text);
  if (before === Level.Trace && /^\s/.test(words)) return Level.Trace;
  if (TRACEBACK.test(words)) return Level.Trace;
  if (ERROR.test(words) || ERROR_NAME.test(words)) return Level.Error;
  return WARN.test(words) || WARN_NAME.test(words) ? Level.Warn : Level.None;
}

export class Lines extends EventTarget {
  total = 0; // complete lines in the store, as far as we know
  sealed = false;
  tail: Line | null = null; // the unfinished last line
  answered = false; // the store has said what it has
  problem = "";
  unavailable = false;
  private readonly lost = new Gaps();
  /** First lines of tracebacks that came in and that nobody has taken yet. */
  readonly heads: number[] = [];
  private readonly blocks = new Map<number, Line[]>();
  private readonly fetching = new Map<number, Promise<void>>();
  private stop: (() => void) | undefined;
  private closed = false;
  private opening: Promise<void> | undefined;
  private retry = 0;
  private failures = 0; // to load it, one after the other

  constructor(readonly stream: Stream) {
    super();
  }

  private get owner(): { attempt: number; rank: number } {
    return { attempt: this.stream.attempt, rank: this.stream.rank };
  }

  get path(): string {
    return `/jobs/${this.stream.job}/logs?learner=${this.stream.rank}&attempt=${this.stream.attempt}`;
  }

  /** Fetch the last lines and follow what comes. */
  open(tail: number): Promise<void> {
    clearTimeout(this.retry);
    return (this.opening ??= this.begin(tail).finally(() => (this.opening = undefined)));
  }

  private async begin(tail: number): Promise<void> {
    if (this.stop || this.closed) return;
    let isFinal = false; // the store refuses, and would again
    try {
      const page = await api<LogPage>("GET", `${this.path}&tail=${tail}`);
      this.problem = "";
      this.failures = 0;
      this.take(page);
      this.answered = true;
      this.total = Math.max(page.total, page.next);
    } catch (error) {
      isFinal = error instanceof ApiError && error.problem.status < 500 && ![401, 429].includes(error.problem.status);
      this.problem = error instanceof Error ? error.message : "The log could not be loaded.";
    }
    if (this.closed) return;
    this.changed();
    if (this.problem && !isFinal) this.retry = window.setTimeout(() => void this.open(tail), this.pause());
    if (this.problem || this.sealed) return; // to a sealed log no line comes
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

  /** Longer after each failure, and never for all logs at once. */
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

  /** Fetch the block of line n; answers at once if it is there or under way. */
  need(n: number): Promise<void> {
    const block = Math.floor((n - 1) / BLOCK);
    const under = this.fetching.get(block);
    if (under) return under;
    const work = this.fetch(block).finally(() => this.fetching.delete(block));
    this.fetching.set(block, work);
    return work;
  }

  /** Call with every line from `from` on, fetching as it goes, until the answer is true or there are no more. */
  async scan(from: number, look: (line: Line) => boolean, upto = this.total): Promise<Line | null> {
    for (let n = from; n <= upto; n += 1) {
      if (this.closed) return null;
      if (!this.get(n)) {
        n = Math.max(n, Math.min(upto, this.lost.endOf(n)));
        if (!this.isLost(n)) await this.need(n);
      }
      const line = this.get(n);
      if (line && look(line)) return line;
    }
    return null;
  }

  /** Keep so many blocks, those near the line that is looked at; the others are fetched again when needed. None of a drawn
   * line goes: it would be fetched at once, and push out the next. */
  forget(around: number, kept: number, drawn: Iterable<number>): void {
    if (this.blocks.size <= kept) return;
    const centre = Math.floor((around - 1) / BLOCK);
    const inSight = new Set(Array.from(drawn, (n) => Math.floor((n - 1) / BLOCK)));
    const last = Math.floor((this.total - 1) / BLOCK);
    const far = [...this.blocks.keys()].filter((block) => block < last - 1 && !this.fetching.has(block) && !inSight.has(block)).sort((a, b) => Math.abs(b - centre) - Math.abs(a - centre));
    for (const block of far.slice(0, this.blocks.size - kept)) this.blocks.delete(block);
  }

  private async fetch(block: number): Promise<void> {
    try {
      const page = await api<LogPage>("GET", `${this.path}&after=${block * BLOCK}&limit=${BLOCK}`);
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
      this.problem = error instanceof Error ? error.message : "The log could not be loaded.";
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
      this.tail = tail && { ...tail, cut: tail.cut ?? 0, level: Level.None, ...this.owner };
    }
    this.changed();
    if (this.sealed) this.settle();
  }

  /** No line comes any more: leave the channel. A gap at the very end is told behind the last line, so its end is asked for. */
  private settle(): void {
    this.unwatch();
    void this.open(1);
  }

  private put(line: LogPage["lines"][number]): void {
    const block = Math.floor((line.n - 1) / BLOCK);
    let lines = this.blocks.get(block);
    if (!lines) this.blocks.set(block, (lines = []));
    const before = this.get(line.n - 1)?.level ?? Level.None;
    lines[(line.n - 1) % BLOCK] = {
      n: line.n,
      t: line.t,
      text: line.text,
      cut: line.cut ?? 0,
      level: levelOf(line.text, before),
      ...this.owner,
    };
    if (TRACEBACK.test(line.text)) this.heads.push(line.n);
    // What came before this line may show that lines which are already here belong to a traceback.
    for (let next = this.get(line.n + 1), level = this.get(line.n)?.level; next && level === Level.Trace; next = this.get(next.n + 1)) {
      const anew = levelOf(next.text, level);
      if (anew === next.level) break;
      next.level = level = anew;
    }
  }

  private changed(): void {
    this.dispatchEvent(new Event("change"));
  }
}
