// The newest value of each metric of a job: what tiles, chart headers and charts show. Pure. It knows the values that
// the server rendered into the page and every point since, by their number in order of arrival.

export interface Newest {
  value: number | string;
  /** null where only its time is known. */
  step: number | null;
  /** "order": the step only says which point it is. */
  axis?: "step" | "order";
  rank: number;
  attempt: number;
  /** Number of the point, or of the newest point when the server rendered the value. */
  n: number;
}

/** What a page says: values as of the point with this number. */
export interface Rendered {
  seq: number;
  values: Record<string, { last: number | string; step: number; axis?: "step" | "order"; rank?: number }>;
}

export class NewestValues {
  private readonly values = new Map<string, Newest>();

  of(name: string): Newest | undefined {
    return this.values.get(name);
  }

  names(): Iterable<string> {
    return this.values.keys();
  }

  /** Take the values of a page. One that is older than the points received since changes nothing. */
  render({ seq, values }: Rendered): void {
    for (const [name, { last, step, axis, rank = 0 }] of Object.entries(values)) {
      const known = this.values.get(name);
      if (known && known.n > seq) continue;
      this.values.set(name, { value: last, step, ...(axis && { axis }), rank, attempt: known?.attempt ?? 0, n: seq });
    }
  }

  /** A point came. Rank 0 represents the gang if it reports the metric, as on the server. */
  add(point: { n: number; name: string; value: number | string; step: number | null; axis?: "step" | "order"; rank: number; attempt: number }): void {
    const known = this.values.get(point.name);
    if (known && (point.n <= known.n || point.rank > known.rank || point.attempt < known.attempt)) return;
    const { value, step, axis, rank, attempt, n } = point;
    this.values.set(point.name, { value, step, ...(axis && { axis }), rank, attempt, n });
  }
}
