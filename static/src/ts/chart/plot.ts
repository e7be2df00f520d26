// How uPlot draws a table: styles, axes, marks. No state of its own.
import uPlot from "uplot";
import { duration } from "../format";
import type { Clipping } from "./clip";
import type { Settings } from "./settings";
import { isThinned, short, styleOf, tickLabels, type Table } from "./table";
import type { Mark } from "./words";

export const token = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const fade = (color: string, share: number): string => color + Math.round(share * 255).toString(16).padStart(2, "0");

const LEAST_ROOM = 52; // so that charts above each other mostly begin at the same place
const LABEL_GAP = 12; // between a label, its axis and the edge

// Steps are whole numbers, and so are the ticks of their axis.
const WHOLE = Array.from({ length: 54 }, (_, at) => [1, 2, 5][at % 3]! * 10 ** Math.floor(at / 3));

/** Pixels that the labels of the value axis need, however long they are. */
function room(plot: uPlot, labels: string[] | null): number {
  if (!labels?.length) return LEAST_ROOM;
  plot.ctx.save();
  plot.ctx.font = `${11 * devicePixelRatio}px Geist, sans-serif`;
  const widest = Math.max(...labels.map((label) => plot.ctx.measureText(label ?? "").width)) / devicePixelRatio;
  plot.ctx.restore();
  return Math.max(LEAST_ROOM, Math.ceil(widest) + LABEL_GAP);
}

export function options(table: Table, settings: Settings, size: { width: number; height: number }, hooks: uPlot.Hooks.Arrays, clip: () => Clipping | null): uPlot.Options {
  const series: uPlot.Series[] = [{}];
  const bands: uPlot.Band[] = [];
  table.lines.forEach((line, at) => {
    const style = styleOf(line, at);
    const color = token(`--c${style.color}`);
    const dash = style.dashed ? [5, 4] : undefined;
    const first = series.length;
    const quiet = { points: { show: false }, spanGaps: true };
    // Of thinned points the least and the greatest are lines of their own: a spike of one point would be a faint sliver.
    const edge = { ...quiet, stroke: isThinned(line) ? fade(color, 0.6) : "transparent", width: 1 };
    series.push(edge, { ...edge });
    bands.push({ series: [first + 1, first], fill: fade(color, 0.12) });
    series.push({ stroke: fade(color, 0.45), width: 1, dash: [3, 3], points: { show: false }, spanGaps: true });
    if (settings.smooth > 0) series.push({ ...quiet, stroke: fade(color, 0.3), width: 1 });
    const single = table.x.length < 40;
    series.push({ stroke: color, width: 1.75, ...(dash ? { dash } : {}), spanGaps: true, points: { show: single, size: 4, fill: color } });
  });
  const axis = { stroke: token("--text-3"), grid: { stroke: token("--border"), width: 1 }, ticks: { show: false }, font: '11px Geist, sans-serif' };
  const words: uPlot.Axis.Values = (_plot, values, _axis, _space, step) => (settings.x === "relative" ? values.map(duration) : tickLabels(values, step));
  const usual = (low: number, high: number): uPlot.Range.MinMax => (settings.log ? uPlot.rangeLog(low, high, 10, true) : uPlot.rangeNum(low, high, 0.1, true));
  const clipped: uPlot.Scale.Range = (_plot, low, high) => clip()?.scale ?? usual(low ?? 0, high ?? 1);
  return {
    ...size,
    legend: { show: false },
    padding: [8, 18, 0, 0],
    cursor: { sync: { key: "job" }, y: false, drag: { x: true, y: false, setScale: false }, points: { size: 7 } },
    scales: { x: { time: settings.x === "time" }, y: { distr: settings.log ? 3 : 1, ...(settings.clip ? { range: clipped } : {}) } },
    axes: [
      { ...axis, size: 26, ...(settings.x === "time" ? {} : { values: words }), ...(settings.x === "step" ? { incrs: WHOLE } : {}) },
      { ...axis, size: room, values: (_plot, values, _axis, _space, step) => (settings.log ? values.map((value) => (value === null ? "" : short(value))) : tickLabels(values, step)) },
    ],
    series,
    bands,
    hooks,
  };
}

/** A triangle at the edge that a clipped value is beyond. */
export function drawOutside(plot: uPlot, outside: Clipping["outside"]): void {
  const { ctx } = plot;
  const { top, height } = plot.bbox;
  const size = 5 * devicePixelRatio;
  ctx.save();
  ctx.fillStyle = token("--red");
  for (const [x, edge] of outside) {
    const at = plot.valToPos(x, "x", true);
    const tip = edge === "top" ? top : top + height;
    const foot = edge === "top" ? tip + 1.6 * size : tip - 1.6 * size;
    ctx.beginPath();
    ctx.moveTo(at, tip);
    ctx.lineTo(at - size, foot);
    ctx.lineTo(at + size, foot);
    ctx.fill();
  }
  ctx.restore();
}

/** Restarts and checkpoints as vertical lines, NaN and infinities as crosses at the foot. */
export function drawMarks(plot: uPlot, marks: Mark[], notFinite: [number, string][]): void {
  const { ctx } = plot;
  const { left, top, width, height } = plot.bbox;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  ctx.font = `${11 * devicePixelRatio}px Geist, sans-serif`;
  ctx.textAlign = "left";
  const gap = 4 * devicePixelRatio;
  let free = Infinity; // labels end before it: of attempts that began close together the newest keeps its label
  for (const [x, words] of marks) {
    const at = Math.round(plot.valToPos(x, "x", true));
    if (at < left || at > left + width) continue; // out of sight, so half of its label is no help
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
    const from = room ? at + gap : at - gap - long; // near the right edge: left of its line
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
