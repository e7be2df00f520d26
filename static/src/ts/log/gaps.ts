// Numbers of lines that were not stored: ordered ranges, none touching the next. A full log may miss millions of lines.
// Pure.
export class Gaps {
  private ranges: [from: number, to: number][] = [];

  add(from: number, to: number): void {
    const before = this.ranges.filter(([, end]) => end < from - 1);
    const after = this.ranges.filter(([start]) => start > to + 1);
    const joined = this.ranges.slice(before.length, this.ranges.length - after.length);
    const start = Math.min(from, joined[0]?.[0] ?? from);
    this.ranges = [...before, [start, Math.max(to, joined.at(-1)?.[1] ?? to)], ...after];
  }

  /** The last line of the gap that line n is in, 0 if it is in none. */
  endOf(n: number): number {
    let low = 0;
    let high = this.ranges.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.ranges[middle]?.[1] ?? 0) < n) low = middle + 1;
      else high = middle;
    }
    const [from, to] = this.ranges[low] ?? [n + 1, 0];
    return from <= n ? to : 0;
  }
}
