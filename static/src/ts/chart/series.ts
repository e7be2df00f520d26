// Numbers of a job's metrics: thinned history by REST, every new point by the socket, one request for all charts that
// ask within the same moment.
import { api } from "../api";
import { live, type Frame } from "../live";

export type Axis = "step" | "time";
export type Bucket = [x: number, min: number | null, max: number | null, last: number | string];

export interface Series {
  name: string;
  rank: number;
  buckets: Bucket[];
  superseded: Bucket[];
  not_finite: [number, string][];
  complete: boolean;
  points: number;
}

export interface Point {
  n: number;
  name: string;
  step: number;
  value: number | string;
  at: string;
  attempt: number;
  rank: number;
}

/** seq: the newest point that is in it; the socket brings what follows. */
export interface Answer {
  series: Series[];
  seq: number;
}

export const BUCKETS = 600;
const TOGETHER_MS = 30;

type Waiting = { name: string; resolve: (answer: Answer) => void; reject: (error: unknown) => void };

export class Metrics extends EventTarget {
  private cursor = -1;
  private readonly waiting: Waiting[] = [];
  private static readonly all = new Map<string, Metrics>();

  static of(job: string): Metrics {
    let found = Metrics.all.get(job);
    if (!found) Metrics.all.set(job, (found = new Metrics(job)));
    return found;
  }

  private constructor(private readonly job: string) {
    super();
  }

  /** Follow from the first answer on, so that no point falls between it and the subscription. */
  private follow(seq: number): void {
    if (this.cursor >= 0) return;
    this.cursor = seq;
    live.watch(`job:${this.job}:metrics`, {
      cursor: () => this.cursor,
      frame: (frame) => this.receive(frame),
      gap: (_from, to) => {
        this.cursor = to;
        this.dispatchEvent(new Event("gap"));
      },
      heavy: true,
    });
  }

  /** The series of one name, one per learner that reports it. */
  fetch(name: string, axis: Axis, range?: [number, number]): Promise<Answer> {
    if (range || axis === "time" || name.includes(",")) return this.ask(name, axis, range);
    return new Promise((resolve, reject) => {
      this.waiting.push({ name, resolve, reject });
      if (this.waiting.length === 1) setTimeout(() => void this.askTogether(), TOGETHER_MS);
    });
  }

  private async askTogether(): Promise<void> {
    const waiting = this.waiting.splice(0);
    try {
      const names = [...new Set(waiting.map((one) => one.name))];
      const { series, seq } = await this.ask(names.join(","), "step");
      for (const one of waiting) one.resolve({ seq, series: series.filter((found) => found.name === one.name) });
    } catch (error) {
      for (const one of waiting) one.reject(error);
    }
  }

  private async ask(names: string, axis: Axis, range?: [number, number]): Promise<Answer> {
    const query = new URLSearchParams({ names, x: axis, buckets: String(BUCKETS) });
    if (range) {
      query.set("from", String(range[0]));
      query.set("to", String(range[1]));
    }
    const answer = await api<Answer>("GET", `/jobs/${this.job}/metrics?${query}`);
    this.follow(answer.seq);
    return answer;
  }

  private receive(frame: Frame): void {
    this.cursor = Math.max(this.cursor, frame.to);
    const points = frame.items as Point[];
    if (points.length) this.dispatchEvent(new CustomEvent("points", { detail: points }));
  }
}

/** Put a new point into the series of its learner; a step that is reported again is superseded. */
export function addPoint(all: Series[], point: Point, axis: Axis): void {
  let series = all.find((one) => one.rank === point.rank);
  if (!series) {
    series = { name: point.name, rank: point.rank, buckets: [], superseded: [], not_finite: [], complete: true, points: 0 };
    all.push(series);
    all.sort((a, b) => a.rank - b.rank);
  }
  const x = axis === "step" ? point.step : Date.parse(point.at);
  const finite = typeof point.value === "number" ? point.value : null;
  const bucket: Bucket = [x, finite, finite, point.value];
  const { buckets } = series;
  while (buckets.length && (buckets[buckets.length - 1]?.[0] ?? 0) >= x) {
    const last = buckets.pop();
    if (last && last[0] > x) series.superseded.push(last);
  }
  series.superseded.sort((a, b) => a[0] - b[0]);
  buckets.push(bucket);
  if (finite === null) series.not_finite.push([x, String(point.value)]);
  series.points += 1;
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
