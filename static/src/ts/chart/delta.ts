// By how much the lines of compared jobs differ from the baseline's. Pure.
import { texts } from "../texts";
import type { Line } from "./table";
import type { Entry } from "./words";

type Column = (number | null)[];

const baselineOf = (lines: Line[]): Line | undefined => lines.find(({ job }) => job?.base);

/** What the legend says of it. */
export function note(lines: Line[]): Entry {
  const base = baselineOf(lines)?.job;
  return base ? { text: texts.chart.less(base.label) } : { text: texts.chart.noBaseline, isNote: true };
}

/** The lines less the baseline's, which is straight between its points; null before its first and after its last. */
export function fromBaseline(lines: Line[], x: number[]): Line[] {
  const base = baselineOf(lines);
  const [raw, drawn] = [along(base?.raw ?? [], x), along(base?.drawn ?? [], x)];
  const less = (values: Column, by: Column): Column =>
    values.map((value, at) => {
      const base = by[at] ?? null;
      return value === null || base === null ? null : value - base;
    });
  return lines.map((line) => ({
    ...line,
    drawn: less(line.drawn, drawn),
    raw: less(line.raw, raw),
    low: less(line.low, raw),
    high: less(line.high, raw),
    superseded: less(line.superseded, raw),
  }));
}

/** The column with what a straight line has between two of its values. */
function along(values: Column, x: number[]): Column {
  const found: Column = [...values];
  let before = -1;
  values.forEach((value, at) => {
    if (value === null) return;
    const [from, start] = [values[before] ?? value, x[before] ?? 0];
    for (let between = before + 1; before >= 0 && between < at; between++)
      found[between] = from + ((value - from) * ((x[between] ?? 0) - start)) / ((x[at] ?? 0) - start);
    before = at;
  });
  return found;
}
