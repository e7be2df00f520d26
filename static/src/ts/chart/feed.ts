// One metric of one job as a chart draws it: what was fetched, and the points that have come since.
import { Metrics } from "./metrics";
import { addPoint, type Axis, type Compared, type Point, type Series } from "./series";

export class Feed {
  series: Series[] = [];
  private readonly metrics: Metrics;
  private axis: Axis = "step";
  private upto = 0; // number of the newest point in the answer
  private early: Point[] | null = null; // points that came while an answer was on its way
  private isFetched = false;
  private turn = 0;

  /** compared: this job among those of a comparison, which has one line for each: its first learner's. */
  constructor(job: string, private readonly name: string, readonly compared?: Compared) {
    this.metrics = Metrics.of(job);
  }

  /** more: new points were added to the series; gap: some were left out, so that it must be loaded again. Returns what
   * ends this. */
  listen(more: () => void, gap: () => void): () => void {
    const take = (event: Event): void => {
      const points = (event as CustomEvent<Point[]>).detail.filter((point) => point.name === this.name);
      if (!points.length || !this.isFetched) return;
      if (this.early) return void this.early.push(...points);
      this.add(points);
      more();
    };
    this.metrics.addEventListener("points", take);
    this.metrics.addEventListener("gap", gap);
    return () => {
      this.metrics.removeEventListener("points", take);
      this.metrics.removeEventListener("gap", gap);
    };
  }

  /** Fetch the series; an answer that comes after a later call changes nothing. Throws what the request throws. */
  async load(axis: Axis, buckets: number, range?: readonly [number, number]): Promise<void> {
    const turn = ++this.turn;
    this.isFetched = true;
    this.early ??= [];
    if (axis !== this.axis) this.series = []; // no line on another axis while the answer is on its way
    this.axis = axis;
    try {
      const { series, seq } = await this.metrics.fetch(this.name, axis, buckets, range);
      if (turn !== this.turn) return;
      this.series = this.compared ? series.slice(0, 1) : series;
      this.upto = seq;
      this.add(this.early ?? []);
      this.early = null;
    } catch (error) {
      if (turn !== this.turn) return;
      this.isFetched = false;
      this.early = null;
      this.series = [];
      throw error;
    }
  }

  /** Take no more points until it is loaded again. */
  forget(): void {
    if (!this.early) this.isFetched = false;
  }

  get newest(): ReturnType<Metrics["newest"]["of"]> {
    return this.metrics.newest.of(this.name);
  }

  private add(points: Point[]): void {
    for (const point of points) if (point.n > this.upto && this.isShown(point.rank)) addPoint(this.series, point, this.axis);
    if (this.compared) for (const one of this.series) one.job = this.compared;
  }

  private isShown(rank: number): boolean {
    const [first] = this.series;
    return !this.compared || !first || first.rank === rank;
  }
}
