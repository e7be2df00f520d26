// From series to columns of numbers and the labels of an axis. Pure: no DOM, no chart library.
import { loaded } from "../loaded";
import { smooth, type Compared, type Series } from "./series";
import type { Settings } from "./settings";

export const LEARNERS = 6;

/** x, then for each line the rows in the order in which plot.ts styles them; null is a gap. */
export type Columns = [x: number[], ...rows: (number | null)[][]];

/** One learner, or one of the jobs that are compared: a value for each x, or null. */
export interface Line {
  rank: number;
  job?: Compared;
  /** Smoothed, as it is drawn. */
  drawn: (number | null)[];
  raw: (number | null)[];
  low: (number | null)[];
  high: (number | null)[];
  superseded: (number | null)[];
}

export interface Table {
  x: number[];
  lines: Line[];
  notFinite: [number, string][];
  /** How many values a logarithmic scale leaves out: those of 0 or less. */
  below: number;
}

const finite = (value: number | string): number | null => (typeof value === "number" ? value : null);

export function tabulate(series: Series[], settings: Settings): Table {
  const shown = series.some((one) => one.job) ? series : series.slice(0, LEARNERS);
  const starts = startsOf(shown);
  const scaled = ({ job }: Series, x: number): number =>
    settings.x === "step" ? x : settings.x === "time" ? x / 1000 : (x - (starts.get(job?.id) ?? x)) / 1000;
  // Only what is in the zoom: the newest points come after a gap that was not fetched, and a line to them would be false.
  const [from, to] = settings.zoom ?? [-Infinity, Infinity];
  const inside = <Rest extends unknown[]>(one: Series, list: [number, ...Rest][]): [number, ...Rest][] =>
    list.map(([x, ...rest]): [number, ...Rest] => [scaled(one, x), ...rest]).filter(([at]) => from <= at && at <= to);
  const places = new Set<number>();
  for (const one of shown) for (const list of [one.buckets, one.superseded]) for (const [at] of inside(one, list)) places.add(at);
  const x = [...places].sort((a, b) => a - b);
  const index = new Map(x.map((value, at) => [value, at]));
  const column = (): (number | null)[] => new Array<number | null>(x.length).fill(null);
  const isBelow = (value: number | null): boolean => settings.log && value !== null && value <= 0;
  const positive = (value: number | null): number | null => (isBelow(value) ? null : value);
  const lines = shown.map((one) => {
    const raw = column();
    const low = column();
    const high = column();
    const superseded = column();
    for (const [at, min, max, last] of inside(one, one.buckets)) {
      const place = index.get(at) ?? 0;
      raw[place] = positive(finite(last));
      low[place] = positive(min);
      high[place] = positive(max);
    }
    for (const [at, , , last] of inside(one, one.superseded)) superseded[index.get(at) ?? 0] = positive(finite(last));
    return { rank: one.rank, ...(one.job && { job: one.job }), drawn: smooth(raw, settings.smooth), raw, low, high, superseded };
  });
  const drawn = (settings.delta && loaded.delta?.fromBaseline(lines, x)) || lines;
  const notFinite = shown.flatMap((one) => inside(one, one.not_finite));
  const below = shown.reduce((sum, one) => sum + inside(one, one.buckets).filter(([, , , last]) => isBelow(finite(last))).length, 0);
  return { x, lines: drawn, notFinite, below };
}

/** When each job's first point was, by its id: "relative" counts from there. */
function startsOf(series: Series[]): Map<string | undefined, number> {
  const starts = new Map<string | undefined, number>();
  for (const { job, buckets } of series) {
    const first = buckets[0]?.[0];
    if (first !== undefined) starts.set(job?.id, Math.min(first, starts.get(job?.id) ?? Infinity));
  }
  return starts;
}

/** How a line is drawn: as its job is everywhere, or as the learner at this place of the table. */
export const styleOf = ({ job }: Line, at: number): Pick<Compared, "color" | "dashed"> => job ?? { color: at + 1, dashed: at % 2 === 1 };

/** Some of its rows stand for several points. */
export const isThinned = (line: Line): boolean => line.low.some((low, at) => low !== line.high[at]);

/** A logarithmic scale leaves out every value. */
export const isBare = (table: Table): boolean =>
  table.below > 0 && table.lines.every((line) => [...line.raw, ...line.superseded].every((value) => value === null));

export function columns(table: Table, settings: Settings): Columns {
  const rows: (number | null)[][] = [];
  for (const line of table.lines) {
    rows.push(line.low, line.high, line.superseded);
    if (settings.smooth > 0) rows.push(line.raw);
    rows.push(line.drawn);
  }
  return [table.x, ...rows];
}

const UNITS = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]] as const;
const unitOf = (size: number): readonly [number, string] => (size < 1e4 ? [1, ""] : (UNITS.find(([unit]) => size >= unit) ?? [1, ""]));

const TINY = 1e-3; // below it, zeros after the point say less than the power of ten

/** 2P, 1.5M, 20k, 9999; beyond that, and below a thousandth, the power of ten. */
export function short(value: number): string {
  const size = Math.abs(Number(value.toPrecision(Math.abs(value) < 1e4 ? 4 : 3))); // 999,999 is 1M, not 1000k
  if (size >= 1e18 || (size && size < TINY)) return Number(value.toPrecision(3)).toExponential().replace("+", "");
  const [unit, letter] = unitOf(size);
  return `${Number((value / unit).toPrecision(letter ? 3 : 4))}${letter}`;
}

/** 2.5e-7, with enough digits to differ from its neighbors on the axis. */
function power(value: number, step: number): string {
  const digits = Math.max(0, Math.floor(Math.log10(Math.abs(value))) - Math.floor(Math.log10(step) + 1e-9));
  const [head = "", exponent = ""] = value.toExponential(Math.min(12, digits + 1)).split("e");
  return `${Number(head)}e${exponent}`;
}

/** The labels of an axis: one unit for all, with enough decimals that neighbors differ. */
export function tickLabels(values: readonly number[], step: number): string[] {
  const size = Math.max(...values.map(Math.abs));
  const [unit, letter] = unitOf(size);
  if (size >= 1e18 || !(step > 0)) return values.map(short);
  if (size < TINY) return values.map((value) => (value ? power(value, step) : "0"));
  let decimals = 0;
  for (let apart = step / unit; decimals < 12 && Math.abs(apart - Math.round(apart)) > 1e-6 * apart; apart *= 10) decimals += 1;
  return values.map((value) => `${Number((value / unit).toFixed(decimals))}${value ? letter : ""}`);
}

