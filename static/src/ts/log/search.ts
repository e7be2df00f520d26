// Searching a log: the server searches what is stored, this class the lines that come later.
import { api } from "../api";
import { plain } from "./ansi";
import { keyOf } from "./rows";
import type { Lines, LogPage } from "./lines";

const MOST = 5_000; // matches
const MOST_MS = 10_000; // one answer takes the server two seconds at most

export class Search {
  readonly matches: string[] = []; // keys of lines: by attempt, learner and line number
  running = false;
  failed = false;
  /** The line up to which it searched before it stopped, 0 if it reached the end. */
  stoppedAt = 0;
  private readonly seen = new Map<Lines, number>();
  private readonly rest: Lines[]; // not searched to their end
  private reached = 0; // the last line searched of the first of them
  private request = new AbortController();

  constructor(
    readonly text: string,
    sources: readonly Lines[],
    private readonly changed: () => void,
  ) {
    this.rest = [...sources];
  }

  /** Search on from where it stopped, for a bounded time and number of matches. */
  async run(): Promise<void> {
    const { signal } = (this.request = new AbortController());
    const [deadline, most] = [performance.now() + MOST_MS, this.matches.length + MOST];
    this.running = true;
    this.failed = false;
    this.stoppedAt = 0;
    this.changed();
    try {
      while (this.rest.length && !signal.aborted && performance.now() < deadline && this.matches.length < most) await this.step(signal);
    } catch {
      this.failed = !signal.aborted;
    }
    this.stoppedAt = this.rest.length ? Math.max(1, this.reached) : 0;
    this.running = false;
    this.changed();
  }

  /** What was found stays. */
  stop(): void {
    this.request.abort();
  }

  /** Search the lines that came since. */
  update(): void {
    for (const [lines, seen] of this.seen) {
      for (let n = seen + 1; n <= lines.total; n += 1) {
        const line = lines.get(n);
        if (line && plain(line.text).toLowerCase().includes(this.text.toLowerCase())) this.matches.push(keyOf(line));
      }
      this.seen.set(lines, lines.total);
    }
  }

  private async step(signal: AbortSignal): Promise<void> {
    const lines = this.rest[0] as Lines;
    const page = await api<LogPage>("GET", `${lines.path}&q=${encodeURIComponent(this.text)}&after=${this.reached}&limit=1000`, undefined, { signal });
    for (const line of page.lines) this.matches.push(keyOf({ ...lines.stream, n: line.n }));
    this.reached = page.next;
    if (!page.more) {
      this.seen.set(lines, Math.max(page.next, lines.total));
      this.rest.shift();
      this.reached = 0;
    }
    this.changed();
  }
}
