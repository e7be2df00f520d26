// The lines of a level of one learner's log: those that are stored come from the server's index, those that come later
// are read as they come.
import { api } from "../api";
import { Level, kindOf, levelOf } from "./levels";
import type { Line, Lines, LogPage } from "./lines";

const LIMIT = 5000;
const AGAIN_MS = 1000;

const isOf = (level: "warn" | "error") => (line: Line): boolean =>
  level === "error" ? line.level >= Level.Error : line.level === Level.Warn;

export class Marked {
  private fresh: Line[] = [];
  private upto = 0; // the last line looked at
  private caughtUp = false;
  private busy = false;

  constructor(
    private readonly lines: Pick<Lines, "total" | "get" | "path" | "stream" | "closed" | "changed">,
    private readonly level: "warn" | "error",
    private readonly ask = (path: string): Promise<LogPage> => api<LogPage>("GET", path),
  ) {}

  /** There are lines that were not looked at yet. */
  get waiting(): boolean {
    return !this.caughtUp;
  }

  /** The lines that were found since the last call. */
  take(): Line[] {
    const matches = isOf(this.level);
    while (this.caughtUp && this.upto < this.lines.total) {
      const line = this.lines.get(this.upto + 1);
      if (!line) this.caughtUp = false; // it is not here: the server has it
      else {
        this.upto = line.n;
        if (matches(line)) this.fresh.push(line);
      }
    }
    if (!this.caughtUp && !this.busy) void this.fetch();
    return this.fresh.splice(0);
  }

  private async fetch(): Promise<void> {
    this.busy = true;
    let goesOn = false;
    try {
      const page = await this.ask(`${this.lines.path}&level=${this.level}&after=${this.upto}&limit=${LIMIT}`);
      const { attempt, rank } = this.lines.stream;
      for (const { n, t, text, cut = 0, level = this.level, part = false } of page.lines) {
        const kind = kindOf(text, level, part);
        this.fresh.push({ n, t, text, cut, kind, after: "nothing", level: levelOf(kind), attempt, rank });
      }
      goesOn = page.next > this.upto;
      this.upto = page.next;
      this.caughtUp = !page.more;
    } catch {
      // Asked again below: the line under the log says that the page is not live.
    }
    this.busy = false;
    if (this.lines.closed) return;
    if (this.caughtUp || goesOn) this.lines.changed();
    else setTimeout(() => !this.lines.closed && this.lines.changed(), AGAIN_MS);
  }
}
