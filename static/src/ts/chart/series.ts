// The numbers of one metric, as REST sends them and as new points extend them. Pure: no network, no DOM.

export type Axis = "step" | "time";
export type Bucket = [x: number, min: number | null, max: number | null, last: number | string];

export interface Series {
  name: string;
  rank: number;
  axis?: "step" | "order";
  buckets: Bucket[];
  /** Superseded: a newer attempt has reported at or around their step. */
  superseded: Bucket[];
  not_finite: [number, string][];
  complete: boolean;
  points: number;
  /** Where jobs are compared: the one that it is of. */
  job?: Compared;
}

/** A job among those of a comparison: its name there, and its line in every chart. color: from 1. base: the others are
 * compared with it. */
export interface Compared {
  id: string;
  label: string;
  color: number;
  dashed: boolean;
  base: boolean;
}

export interface Point {
  /** Number in order of arrival, from 1 for each job. */
  n: number;
  name: string;
  step: number;
  axis?: "step" | "order";
  value: number | string;
  at: string;
  attempt: number;
  rank: number;
}

/** Where every point of a metric, or of all, is as CSV. A comma would separate names. */
export function csvAddress(job: string, name?: string): string {
  const query = name === undefined ? "" : `?${new URLSearchParams(name.includes(",") ? { q: name } : { names: name })}`;
  return `/api/v1/jobs/${job}/metrics.csv${query}`;
}

const BUCKETS_MAX = 2_000; // the API's limit

/** How many buckets fill a plot of this width in CSS pixels: one a pixel, in steps, so that neighbors ask for the same. */
export const bucketsFor = (width: number): number => Math.min(BUCKETS_MAX, Math.max(200, Math.ceil(width / 100) * 100));

/** Steps, or milliseconds since the epoch. */
const xOf = (point: Point, axis: Axis): number => (axis === "step" ? point.step : Date.parse(point.at));

/** Add a new point to the series of its learner. A step that is reported again supersedes what followed it. */
export function addPoint(all: Series[], point: Point, axis: Axis): void {
  let series = all.find((one) => one.rank === point.rank);
  if (!series) {
    series = { name: point.name, rank: point.rank, buckets: [], superseded: [], not_finite: [], complete: true, points: 0 };
    all.push(series);
    all.sort((a, b) => a.rank - b.rank);
  }
  if (point.axis) series.axis = point.axis;
  const x = xOf(point, axis);
  const finite = typeof point.value === "number" ? point.value : null;
  const { buckets } = series;
  let first = buckets.length;
  while (first > 0 && (buckets[first - 1]?.[0] ?? 0) >= x) first -= 1;
  // A program repeats a step only in a new attempt; two points of one attempt may have the same time.
  const superseded = buckets.splice(first).filter(([at]) => axis === "step" || at > x);
  series.superseded.push(...superseded);
  series.superseded.sort((a, b) => a[0] - b[0]);
  if (series.complete) series.points -= superseded.length; // a thinned bucket does not say how many points it stands for
  buckets.push([x, finite, finite, point.value]);
  if (finite === null) series.not_finite.push([x, String(point.value)]);
  series.points += 1;
}

/** The lowest finite value; null if there is none. */
export function lowest(all: Series[]): number | null {
  let found: number | null = null;
  for (const { buckets } of all) for (const [, low] of buckets) if (low !== null && (found === null || low < found)) found = low;
  return found;
}

/** Exponential moving average without the early bias to 0; gaps stay gaps. */
export function smooth(values: (number | null)[], weight: number): (number | null)[] {
  if (weight <= 0) return values;
  let sum = 0;
  let mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + value * (1 - weight);
    mass = mass * weight + (1 - weight);
    return sum / mass;
  });
}
