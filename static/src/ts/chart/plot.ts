// From series to uPlot: columns, styles, marks. No state of its own.
import uPlot from "uplot";
import { duration } from "../format";
import { smooth, type Series } from "./series";
import type { Settings } from "./settings";

export const LINES = 6;
export type Mark = [x: number, words: string];

export interface Table {
  x: number[];
  /** Per learner: what is drawn, what it was before smoothing, lowest, highest, overtaken. */
  lines: { rank: number; drawn: (number | null)[]; raw: (number | null)[]; low: (number | null)[]; high: (number | null)[]; old: (number | null)[] }[];
  notFinite: [number, string][];
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
  for (const one of shown) for (const list of [one.buckets, one.overtaken]) for (const bucket of inside(list)) places.add(scale(bucket[0]));
  const x = [...places].sort((a, b) => a - b);
  const index = new Map(x.map((value, at) => [value, at]));
  const column = (): (number | null)[] => new Array<number | null>(x.length).fill(null);
  const positive = (value: number | null): number | null => (settings.log && value !== null && value <= 0 ? null : value);
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
    for (const [at, , , last] of inside(one.overtaken)) old[index.get(scale(at)) ?? 0] = positive(finite(last));
    return { rank: one.rank, drawn: smooth(raw, settings.smooth), raw, low, high, old };
  });
  const notFinite = shown.flatMap((one) => inside(one.not_finite).map(([at, word]): [number, string] => [scale(at), word]));
  return { x, lines, notFinite };
}

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
export const short = (value: number): string =>
  Math.abs(value) >= 1e6 ? `${Number((value / 1e6).toPrecision(3))}M` : Math.abs(value) >= 1e4 ? `${Number((value / 1e3).toPrecision(3))}k` : String(Number(value.toPrecision(4)));

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
  const words = (_plot: uPlot, values: number[]): string[] => values.map((value) => (settings.x === "relative" ? duration(value) : short(value)));
  return {
    ...size,
    legend: { show: false },
    padding: [8, 18, 0, 0],
    cursor: { sync: { key: "job" }, y: false, drag: { x: true, y: false, setScale: false }, points: { size: 7 } },
    scales: { x: { time: settings.x === "time" }, y: { distr: settings.log ? 3 : 1 } },
    axes: [
      { ...axis, size: 26, ...(settings.x === "time" ? {} : { values: words }) },
      { ...axis, size: 52, values: (_plot, values) => values.map((value) => (value === null ? "" : short(value))) },
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
