// How many warnings and errors a log has, and where: a short one is read through once, then line by line as it grows.
import { Level } from "./levels";
import type { Lines } from "./lines";

const MOST = 5_000; // more lines are not fetched only to be counted, neither at first nor after a log has grown

export class Survey {
  warnings = 0; // errors too, as the filter of this name shows them
  readonly errors: number[] = [];
  private next = 1;
  private busy = false;
  private closed = false;

  constructor(
    private readonly lines: Pick<Lines, "total" | "scan">,
    private readonly changed: () => void,
  ) {}

  /** All lines so far are counted. */
  get known(): boolean {
    return this.next > 1 && !this.closed;
  }

  update(): void {
    const { total } = this.lines;
    if (this.busy || this.closed || this.next > total) return;
    if (total - this.next >= MOST) return this.close();
    this.busy = true;
    void this.read(total);
  }

  close(): void {
    this.closed = true;
  }

  private async read(upto: number): Promise<void> {
    await this.lines.scan(
      this.next,
      (line) => {
        if (line.level >= Level.Warn) this.warnings += 1;
        if (line.level >= Level.Error) this.errors.push(line.n);
        return this.closed;
      },
      upto,
    );
    this.next = upto + 1;
    this.busy = false;
    if (!this.closed) this.changed();
  }
}
