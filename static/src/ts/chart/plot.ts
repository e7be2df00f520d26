// From series to uPlot: columns, styles, marks. No state of its own.
import uPlot from "uplot";
import { duration } from "../format";
import { smooth, type Series } from "./series";
import type { Settings } from "./settings";

export const LINES = 6;
export type Mark = [x: number, words: string];

export interface Table {
  x: number[];
  /** Per learner: what is drawn, what it was before smoothing, lowest, highest, superseded. */
  lines: { rank: number; drawn: (number | null)[]; raw: (number | null)[]; low: (number | null)[]; high: (number | null)[]; old: (number | null)[] }[];
  notFinite: [number, string][];
  /** How many values a logarithmic scale leaves out: what is not above 0. */
  below: number;
}

const finite = (value: number | string): number | null => (typeof value === "number" ? value : null);

export function tabulate(series: Series[], settings: Settings): Table {
  const shown = series.slice(0, LINES);
  const start = Math.min(...shown.flatMap((one) => (one.buckets[0] ? [one.buckets[0][0]] : [])));
  const scale = (x: number): number => (settings.x === "step" ? x : settings.x === "time" ? x / 1000 : (x - start) / 1000);
  // A zoom shows what is in it alone: the newest points lie behind a gap that was not fetched, a line to them would be false.
  const [from, to] = settings.zoom ?? [-Infinity, Infinity];
  const inside = <Item extends [number, ...unknown[]]>(list: Item[]): Item[] => list.filter(([at]) => from <= scale(at) && scale(at) <= to);
  const places = new Set<number>();
  for (const one of shown) for (const list of [one.buckets, one.superseded]) for (const bucket of inside(list)) places.add(scale(bucket[0]));
  const x = [...places].sort((a, b) => a - b);
  const index = new Map(x.map((value, at) => [value, at]));
  const column = (): (number | null)[] => new Array<number | null>(x.length).fill(null);
  const isBelow = (value: number | null): boolean => settings.log && value !== null && value <= 0;
  const positive = (value: number | null): number | null => (isBelow(value) ? null : value);
  const lines = shown.map((one) => {
    const raw = column();
    const low = column();
    const high = column();
    const old = column();
    for (const [at, min, max, last] of inside(one.buckets)) {
      const place = index.get(scale(at)) ?? 0;
      raw[place] = positive(finite(last));
      low[place] = positive(min);
      high[place] = positive(max);
    }
    for (const [at, , , last] of inside(one.superseded)) old[index.get(scale(at)) ?? 0] = positive(finite(last));
    return { rank: one.rank, drawn: smooth(raw, settings.smooth), raw, low, high, old };
  });
  const notFinite = shown.flatMap((one) => inside(one.not_finite).map(([at, word]): [number, string] => [scale(at), word]));
  const below = shown.reduce((sum, one) => sum + inside(one.buckets).filter(([, , , last]) => isBelow(finite(last))).length, 0);
  return { x, lines, notFinite, below };
}

/** A logarithmic scale has left out every value that there is. */
export const isBare = (table: Table): boolean =>
  table.below > 0 && table.lines.every((line) => [...line.raw, ...line.old].every((value) => value === null));

export function columns(table: Table, settings: Settings): uPlot.AlignedData {
  const rows: (number | null)[][] = [];
  for (const line of table.lines) {
    rows.push(line.low, line.high, line.old);
    if (settings.smooth > 0) rows.push(line.raw);
    rows.push(line.drawn);
  }
  return [table.x, ...rows] as uPlot.AlignedData;
}

export const token = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const fade = (colour: string, share: number): string => colour + Math.round(share * 255).toString(16).padStart(2, "0");

const UNITS = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]] as const;
const unitOf = (size: number): readonly [number, string] => (size < 1e4 ? [1, ""] : (UNITS.find(([unit]) => size >= unit) ?? [1, ""]));

/** 2P, 1.5M, 20k, 9999; beyond that the power of ten. */
export function short(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e18) return Number(value.toPrecision(3)).toExponential().replace("+", "");
  const [unit, letter] = unitOf(size);
  return `${Number((value / unit).toPrecision(letter ? 3 : 4))}${letter}`;
}

/** The words of an axis: one unit for all, and as many decimals as tell two neighbours apart. */
export function ticks(values: readonly number[], step: number): string[] {
  const size = Math.max(...values.map(Math.abs));
  const [unit, letter] = unitOf(size);
  if (size >= 1e18 || !(step > 0)) return values.map(short);
  let decimals = 0;
  for (let apart = step / unit; decimals < 12 && Math.abs(apart - Math.round(apart)) > 1e-6 * apart; apart *= 10) decimals += 1;
  return values.map((value) => `${Number((value / unit).toFixed(decimals))}${value ? letter : ""}`);
}

// A step is a whole number, and so is what stands below it.
const WHOLE = Array.from({ length: 54 }, (_, at) => [1, 2, 5][at % 3]! * 10 ** Math.floor(at / 3));

export function options(table: Table, settings: Settings, size: { width: number; height: number }, hooks: uPlot.Hooks.Arrays): uPlot.Options {
  const series: uPlot.Series[] = [{}];
  const bands: uPlot.Band[] = [];
  table.lines.forEach((_line, at) => {
    const colour = token(`--c${(at % LINES) + 1}`);
    const dash = at % 2 ? [5, 4] : undefined;
    const first = series.length;
    const quiet = { points: { show: false }, spanGaps: true };
    series.push({ ...quiet, stroke: "transparent" }, { ...quiet, stroke: "transparent" });
    bands.push({ series: [first + 1, first], fill: fade(colour, 0.12) });
    series.push({ stroke: fade(colour, 0.45), width: 1, dash: [3, 3], points: { show: false }, spanGaps: true });
    if (settings.smooth > 0) series.push({ ...quiet, stroke: fade(colour, 0.3), width: 1 });
    const single = table.x.length < 40;
    series.push({ stroke: colour, width: 1.75, ...(dash ? { dash } : {}), spanGaps: true, points: { show: single, size: 4, fill: colour } });
  });
  const axis = { stroke: token("--text-3"), grid: { stroke: token("--border"), width: 1 }, ticks: { show: false }, font: '11px "Geist Variable", Geist, sans-serif' };
  const words: uPlot.Axis.Values = (_plot, values, _axis, _space, step) => (settings.x === "relative" ? values.map(duration) : ticks(values, step));
  return {
    ...size,
    legend: { show: false },
    padding: [8, 18, 0, 0],
    cursor: { sync: { key: "job" }, y: false, drag: { x: true, y: false, setScale: false }, points: { size: 7 } },
    scales: { x: { time: settings.x === "time" }, y: { distr: settings.log ? 3 : 1 } },
    axes: [
      { ...axis, size: 26, ...(settings.x === "time" ? {} : { values: words }), ...(settings.x === "step" ? { incrs: WHOLE } : {}) },
      { ...axis, size: 52, values: (_plot, values, _axis, _space, step) => (settings.log ? values.map((value) => (value === null ? "" : short(value))) : ticks(values, step)) },
    ],
    series,
    bands,
    hooks,
  };
}

/** Restarts and checkpoints as vertical lines, NaN and infinities as crosses at the foot. */
export function drawMarks(plot: uPlot, marks: Mark[], notFinite: [number, string][]): void {
  const { ctx } = plot;
  const { left, top, width, height } = plot.bbox;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  ctx.font = `${11 * devicePixelRatio}px "Geist Variable", Geist, sans-serif`;
  ctx.textAlign = "left";
  const gap = 4 * devicePixelRatio;
  let free = Infinity; // no word stands beyond it: of attempts that began close together the newest keeps its name
  for (const [x, words] of [...marks].sort(([a], [b]) => b - a)) {
    const at = Math.round(plot.valToPos(x, "x", true));
    ctx.strokeStyle = ctx.fillStyle = token(words ? "--text-2" : "--border-ctl");
    ctx.setLineDash(words ? [4, 3] : [1, 4]);
    ctx.lineWidth = devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(at, top);
    ctx.lineTo(at, top + height);
    ctx.stroke();
    if (!words) continue;
    const long = ctx.measureText(words).width;
    const room = at + gap + long <= left + width;
    const from = room ? at + gap : at - gap - long; // near the right edge it stands before its line
    if (from + long > free) continue;
    ctx.fillText(words, from, top + 11 * devicePixelRatio);
    free = from - gap;
  }
  ctx.setLineDash([]);
  ctx.strokeStyle = token("--red");
  ctx.lineWidth = 1.75 * devicePixelRatio;
  const arm = 3.5 * devicePixelRatio;
  for (const [x] of notFinite) {
    const at = plot.valToPos(x, "x", true);
    const foot = top + height - 2 * arm;
    ctx.beginPath();
    ctx.moveTo(at - arm, foot - arm);
    ctx.lineTo(at + arm, foot + arm);
    ctx.moveTo(at + arm, foot - arm);
    ctx.lineTo(at - arm, foot + arm);
    ctx.stroke();
  }
  ctx.restore();
}
