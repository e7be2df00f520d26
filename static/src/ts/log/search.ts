// Searching a log: the server searches what is stored, this class the lines that come later.
import { api } from "../api";
import { plain } from "./ansi";
import { keyOf } from "./rows";
import type { Lines, LogPage } from "./lines";

const MOST = 5_000;

export class Search {
  readonly matches: string[] = []; // keys of lines: by attempt, learner and line number
  more = false;
  running = false;
  failed = false;
  private readonly seen = new Map<Lines, number>();
  private aborted = false;

  constructor(
    readonly text: string,
    private readonly sources: Lines[],
    private readonly changed: () => void,
  ) {}

  async run(): Promise<void> {
    this.running = true;
    try {
      for (const lines of [...this.sources]) {
        if (this.aborted) return;
        await this.fetch(lines);
      }
    } catch {
      this.failed = true;
    } finally {
      this.running = false;
    }
    this.changed();
  }

  abort(): void {
    this.aborted = true;
  }

  /** Search the lines that came since. */
  update(): void {
    if (this.running) return;
    for (const lines of this.sources) {
      const from = this.seen.get(lines) ?? lines.total;
      for (let n = from + 1; n <= lines.total; n += 1) {
        const line = lines.get(n);
        if (line && plain(line.text).toLowerCase().includes(this.text.toLowerCase())) this.matches.push(keyOf(line));
      }
      this.seen.set(lines, lines.total);
    }
  }

  private async fetch(lines: Lines): Promise<void> {
    let after = 0;
    for (;;) {
      const page = await api<LogPage>("GET", `${lines.path}&q=${encodeURIComponent(this.text)}&after=${after}&limit=1000`);
      if (this.aborted) return;
      for (const line of page.lines) this.matches.push(keyOf({ ...lines.stream, n: line.n }));
      after = page.next;
      this.more = page.more && this.matches.length >= MOST;
      this.changed();
      if (!page.more || this.more) break;
    }
    this.seen.set(lines, Math.max(after, lines.total));
  }
}
