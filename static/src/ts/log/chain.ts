// All attempts of a job as one log: the rows of each, the oldest attempt first, and a border before every later one.
import type { Line } from "./lines";
import { type Rows, placeOf } from "./rows";

export interface Part {
  attempt: number;
  rows: Rows;
}

export class ChainedRows implements Rows {
  readonly shifts = true;

  constructor(private readonly parts: Part[]) {}

  get length(): number {
    return this.parts.reduce((sum, part) => sum + part.rows.length, this.parts.length - 1);
  }

  get waiting(): boolean {
    return this.parts.some(({ rows }) => rows.waiting);
  }

  at(index: number): Line | undefined {
    const { part, within } = this.find(index);
    return within < 0 ? undefined : part.rows.at(within);
  }

  need(from: number, to: number): void {
    let start = 0;
    for (const { rows } of this.parts) {
      const last = start + rows.length - 1;
      if (rows.length && from <= last && to >= start) rows.need(Math.max(from, start) - start, Math.min(to, last) - start);
      start = last + 2;
    }
  }

  /** A border's key is line 0 of the attempt that it leads to. */
  indexOf(key: string): number {
    const { attempt, n } = placeOf(key);
    let start = 0;
    for (const part of this.parts) {
      if (part.attempt === attempt) {
        const within = n ? part.rows.indexOf(key) : -1;
        return within < 0 && n ? -1 : start + within;
      }
      start += part.rows.length + 1;
    }
    return -1;
  }

  keyAt(index: number): string {
    const { part, within } = this.find(index);
    return within < 0 ? `${part.attempt}:0:0` : part.rows.keyAt(within);
  }

  update(): void {
    for (const part of this.parts) part.rows.update();
  }

  /** The attempt that this row is the border of, 0 if it is a line. */
  borderAt(index: number): number {
    const { part, within } = this.find(index);
    return within < 0 ? part.attempt : 0;
  }

  private find(index: number): { part: Part; within: number } {
    let within = index;
    for (const [at, part] of this.parts.entries()) {
      if (within < part.rows.length || at === this.parts.length - 1) return { part, within };
      within -= part.rows.length + 1; // -1 is the border
    }
    throw new RangeError("A chain has at least one part.");
  }
}
