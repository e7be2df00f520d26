// What a chart says in words: its summary for screen readers, its legend, the tip under the pointer. Pure.
import { metric, timeOfDay } from "../format";
import { loaded } from "../loaded";
import type { Newest } from "../newest";
import { texts } from "../texts";
import { clipping } from "./clip";
import { lowest, type Series } from "./series";
import type { Settings } from "./settings";
import { short, styleOf, type Line, type Table } from "./table";

/** A vertical line: the step, and the name of the attempt that begins there, "" for a checkpoint. name: of the metric in
 * whose order of points x is. Lists of them go from right to left; of attempts at one place the newest comes first. */
export type Mark = [x: number, words: string, name?: string];

export interface Entry {
  text: string;
  /** Classes of its swatch; undefined: it has none. */
  swatch?: string;
  /** A warning about what the chart does not draw. */
  isNote?: boolean;
}

export const pointsOf = (series: Series[]): number => series.reduce((sum, one) => sum + one.points, 0);

/** Whether points have an order only: the program printed no steps that count up. */
export const inOrder = (series: Series[]): boolean => series.some((one) => one.axis === "order");

/** Those of the page's marks that belong to the axis of a chart. */
export const marksFor = (name: string, series: Series[], marks: Mark[]): Mark[] => {
  const own = inOrder(series) ? name : undefined;
  return marks.filter((mark) => mark[2] === own);
};

export function summary(name: string, series: Series[], newest: Newest | undefined): string {
  if (!newest) return texts.chart.empty(name);
  const at = newest.step === null ? texts.chart.newest : texts.chart.place(newest.step, newest.axis);
  return texts.chart.summary(name, metric(newest.value), at, metric(lowest(series)), pointsOf(series));
}

/** The same where jobs are compared: the newest value of each that is drawn. */
export function comparison(name: string, { lines }: Table, settings: Settings): string {
  const what = settings.delta && loaded.delta ? `${name}, ${loaded.delta.note(lines).text}` : name;
  const newest = lines.map(({ job, raw }) => `${job?.label} ${metric(raw.filter((value) => value !== null).at(-1))}`);
  return newest.length ? texts.chart.compared(what, newest.join(", ")) : texts.chart.empty(name);
}

export function legend(name: string, series: Series[], table: Table, settings: Settings, marks: Mark[]): Entry[] {
  const label = ({ rank, job }: Line): string => job?.label ?? (series.length > 1 ? texts.chart.learner(rank) : name);
  const entries: Entry[] = table.lines.map((line, at) => {
    const { color, dashed } = styleOf(line, at);
    return { text: label(line), swatch: `series-${color}${dashed ? " dashed" : ""}` };
  });
  if (series.length > table.lines.length) entries.push({ text: texts.chart.moreLearners(series.length - table.lines.length), swatch: "" });
  if (marks.some(([, words]) => words)) entries.push({ text: texts.chart.attempt });
  if (marks.some(([, words]) => !words)) entries.push({ text: texts.chart.checkpoint });
  if (settings.delta && loaded.delta) entries.push(loaded.delta.note(table.lines));
  if (settings.smooth > 0) entries.push({ text: texts.chart.smoothed(settings.smooth), swatch: "series-1" });
  if (series.some((one) => one.superseded.length)) entries.push({ text: texts.chart.superseded, swatch: "series-1 dashed" });
  if (table.notFinite.length) entries.push({ text: texts.chart.notFinite(table.notFinite.length), isNote: true });
  const clipped = clipping(table, settings)?.outside.length ?? 0;
  if (clipped) entries.push({ text: texts.chart.clipped(clipped), isNote: true });
  if (table.below) entries.push({ text: texts.chart.notPositive(table.below), isNote: true });
  return entries;
}

/** The least and greatest of the points that a row stands for, where they differ. */
const spread = ({ low, high }: Line, at: number): string =>
  low[at] === high[at] ? "" : ` (${texts.chart.between(metric(low[at]), metric(high[at]))})`;

/** What a line is called where there is little room; "" for the only one of a chart. */
export const shortly = ({ lines }: Table, { rank, job }: Line): string => job?.label ?? (lines.length > 1 ? texts.chart.rank(rank) : "");

/** x and the value of each line there, the highest first. */
export function tip(table: Table, at: number, settings: Settings, axis?: Series["axis"]): string {
  const x = table.x[at] ?? 0;
  const place = settings.x === "step" ? texts.chart.place(x, axis) : settings.x === "time" ? timeOfDay(x * 1000) : texts.chart.secondsIn(short(x));
  const values = table.lines
    .flatMap((line) => {
      const value = line.drawn[at];
      return value === null || value === undefined ? [] : [{ line, value }];
    })
    .sort((a, b) => b.value - a.value)
    .map(({ line, value }) => `${shortly(table, line)} ${metric(value)}${spread(line, at)}`.trimStart());
  return [place, ...values].join(" · ");
}

/** Why there is nothing to draw; the first values of a running job may still be on their way. */
export function nothing(table: Table, settings: Settings): string {
  if (table.below) return texts.chart.noneAboveZero;
  if (settings.zoom) return texts.chart.noneInRange;
  return table.notFinite.length ? texts.chart.noneFinite : texts.chart.noneYet;
}
