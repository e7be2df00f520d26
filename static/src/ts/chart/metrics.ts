// A job's metrics on this page: history by REST, thinned, and every new point by the socket. Charts that ask for the
// same range within the same moment share one request. `newest` is what tiles, chart headers and charts show as the current value.
import { api } from "../api";
import { live, type Frame } from "../live";
import { NewestValues, type Rendered } from "../newest";
import type { Axis, Point, Series } from "./series";

/** seq: the newest point that is in it; the socket brings what follows. */
export interface Answer {
  series: Series[];
  seq: number;
}

const TOGETHER_MS = 30;

type Waiting = { name: string; buckets: number; resolve: (answer: Answer) => void; reject: (error: unknown) => void };
type Range = readonly [number, number];

/** Events: points (detail: Point[]), newest (a newest value changed), gap (points were left out: fetch them). */
export class Metrics extends EventTarget {
  readonly newest = new NewestValues();
  private cursor = -1;
  private stop: (() => void) | undefined;
  private readonly waiting = new Map<string, Waiting[]>(); // by axis and range
  private static readonly all = new Map<string, Metrics>();

  static of(job: string): Metrics {
    let found = Metrics.all.get(job);
    if (!found) Metrics.all.set(job, (found = new Metrics(job)));
    return found;
  }

  /** Follow the job no longer: the page shows it no more. */
  static leave(job: string): void {
    Metrics.all.get(job)?.stop?.();
    Metrics.all.delete(job);
  }

  private constructor(private readonly job: string) {
    super();
  }

  /** Take the values that the server rendered into the page, and follow from there on. */
  render(rendered: Rendered): void {
    this.newest.render(rendered);
    this.follow(rendered.seq);
    this.dispatchEvent(new Event("newest"));
  }

  /** Follow from the first answer on, so that no point falls between it and the subscription. */
  private follow(seq: number): void {
    if (this.cursor >= 0) return;
    this.cursor = seq;
    this.stop = live.watch(`job:${this.job}:metrics`, {
      cursor: () => this.cursor,
      frame: (frame) => this.receive(frame),
      gap: (_from, to) => {
        this.cursor = to;
        this.dispatchEvent(new Event("gap"));
      },
      heavy: true,
    });
  }

  /** The series of one name, one per learner that reports it, in at most this number of buckets (bucketsFor). */
  fetch(name: string, axis: Axis, buckets: number, range?: Range): Promise<Answer> {
    if (name.includes(",")) return this.request(name, axis, buckets, range); // a comma separates names
    return new Promise((resolve, reject) => {
      const key = JSON.stringify([axis, range]);
      const waiting = this.waiting.get(key) ?? [];
      waiting.push({ name, buckets, resolve, reject });
      if (waiting.length > 1) return;
      this.waiting.set(key, waiting);
      setTimeout(() => void this.requestTogether(key, axis, range), TOGETHER_MS);
    });
  }

  private async requestTogether(key: string, axis: Axis, range?: Range): Promise<void> {
    const waiting = this.waiting.get(key) ?? [];
    this.waiting.delete(key);
    try {
      const names = [...new Set(waiting.map((one) => one.name))];
      const buckets = Math.max(...waiting.map((one) => one.buckets));
      const { series, seq } = await this.request(names.join(","), axis, buckets, range);
      for (const one of waiting) one.resolve({ seq, series: series.filter((found) => found.name === one.name) });
    } catch (error) {
      for (const one of waiting) one.reject(error);
    }
  }

  private async request(names: string, axis: Axis, buckets: number, range?: Range): Promise<Answer> {
    const query = new URLSearchParams({ names, x: axis, buckets: String(buckets) });
    if (range) {
      query.set("from", String(range[0]));
      query.set("to", String(range[1]));
    }
    const answer = await api<Answer>("GET", `/jobs/${this.job}/metrics?${query}`);
    if (!range) this.learn(answer, axis);
    this.follow(answer.seq);
    return answer;
  }

  /** The newest values of names that the page did not have: the server keeps those of a limited number of names. */
  private learn({ series, seq }: Answer, axis: Axis): void {
    let learned = false;
    for (const { name, rank, axis: kind, buckets } of series) {
      const last = buckets.at(-1);
      if (!last || this.newest.of(name)) continue;
      this.newest.add({ n: seq, name, value: last[3], step: axis === "step" ? last[0] : null, ...(kind && { axis: kind }), rank, attempt: 0 });
      learned = true;
    }
    if (learned) this.dispatchEvent(new Event("newest"));
  }

  private receive(frame: Frame): void {
    this.cursor = Math.max(this.cursor, frame.to);
    const points = frame.items as Point[];
    if (!points.length) return;
    for (const point of points) this.newest.add(point);
    this.dispatchEvent(new Event("newest"));
    this.dispatchEvent(new CustomEvent("points", { detail: points }));
  }
}
