// How many warnings and errors a log has, and where errors begin: the server counts what it has stored, this class the
// lines that come later.
import { api } from "../api";
import { startsError } from "./levels";
import type { Lines } from "./lines";

/** The response of /jobs/{id}/logs/levels. */
export interface LogLevels {
  warnings: number;
  errors: number;
  first_error: number | null;
  errors_at: number[];
  counted: number;
  complete: boolean;
  total: number;
}

const AGAIN_MS = 1000;

export class Survey {
  warnings = 0; // errors are not among them
  errors = 0;
  /** Lines in which errors begin; of very many a choice. */
  places: number[] = [];
  private counted = 0;
  private complete = false;
  private busy = false;
  private closed = false;

  constructor(
    private readonly lines: Pick<Lines, "total" | "get" | "levelsPath">,
    private readonly changed: () => void,
    private readonly ask = (path: string): Promise<LogLevels> => api<LogLevels>("GET", path),
  ) {}

  /** All lines so far are counted. */
  get known(): boolean {
    return this.complete && !this.closed;
  }

  /** Count the lines that came since. */
  update(): void {
    if (this.busy || this.closed) return;
    if (this.complete) this.count();
    if (!this.complete && this.lines.total) void this.fetch();
  }

  close(): void {
    this.closed = true;
  }

  private count(): void {
    while (this.counted < this.lines.total) {
      const line = this.lines.get(this.counted + 1);
      if (!line) {
        this.complete = false; // they are not here: the server has them
        return;
      }
      this.counted = line.n;
      if (line.kind === "warning") this.warnings += 1;
      if (!startsError(line.kind)) continue;
      this.errors += 1;
      this.places.push(line.n);
    }
  }

  private async fetch(): Promise<void> {
    this.busy = true;
    try {
      const found = await this.ask(this.lines.levelsPath);
      Object.assign(this, { warnings: found.warnings, errors: found.errors, places: found.errors_at, counted: found.counted, complete: found.complete });
    } catch {
      this.complete = false; // the line under the log says what could not be loaded
    }
    this.busy = false;
    if (this.closed) return;
    this.changed();
    if (!this.complete) setTimeout(() => this.update(), AGAIN_MS);
  }
}
