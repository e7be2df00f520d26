import assert from "node:assert/strict";
import { test } from "node:test";
import { addPoint, bucketsFor, lowest, smooth, type Point, type Series } from "../../../static/src/ts/chart/series";

let n = 0;
const point = (step: number, value: number | string, more: Partial<Point> = {}): Point => ({
  n: (n += 1),
  name: "loss",
  step,
  value,
  at: new Date(1_700_000_000_000 + step * 1000).toISOString(),
  attempt: 1,
  rank: 0,
  ...more,
});

function series(...points: Point[]): Series[] {
  const all: Series[] = [];
  for (const one of points) addPoint(all, one, "step");
  return all;
}

test("one point makes a series of its learner", () => {
  const [only, ...others] = series(point(5, 0.25));
  assert.deepEqual(others, []);
  assert.deepEqual(only?.buckets, [[5, 0.25, 0.25, 0.25]]);
  assert.equal(only?.points, 1);
});

test("series are in order of rank, whichever learner reports first", () => {
  const all = series(point(1, 1, { rank: 2 }), point(1, 1, { rank: 0 }), point(1, 1, { rank: 1 }));
  assert.deepEqual(all.map((one) => one.rank), [0, 1, 2]);
});

test("NaN and infinities are listed and have no minimum or maximum", () => {
  const [only] = series(point(1, "NaN"), point(2, "Infinity"), point(3, "-Infinity"), point(4, 2));
  assert.deepEqual(only?.not_finite, [[1, "NaN"], [2, "Infinity"], [3, "-Infinity"]]);
  assert.deepEqual(only?.buckets[0], [1, null, null, "NaN"]);
  assert.equal(only?.points, 4);
});

test("a new attempt supersedes what the last one reported from its first step on", () => {
  const [only] = series(point(1, 1), point(2, 2), point(3, 3), point(4, 4), point(3, 30, { attempt: 2 }));
  assert.deepEqual(only?.buckets.map(([x]) => x), [1, 2, 3]);
  assert.deepEqual(only?.superseded.map(([x, , , last]) => [x, last]), [[3, 3], [4, 4]]);
  assert.equal(only?.points, 3);
});

test("superseded points of two restarts are in order of their steps", () => {
  const [only] = series(point(5, 1), point(6, 1), point(2, 1, { attempt: 2 }), point(3, 1, { attempt: 2 }), point(1, 1, { attempt: 3 }));
  assert.deepEqual(only?.superseded.map(([x]) => x), [2, 3, 5, 6]);
  assert.deepEqual(only?.buckets.map(([x]) => x), [1]);
});

test("a thinned series does not guess how many points were superseded", () => {
  const all: Series[] = [{ name: "loss", rank: 0, buckets: [[10, 0, 1, 0.5], [20, 0, 1, 0.5]], superseded: [], not_finite: [], complete: false, points: 900 }];
  addPoint(all, point(15, 0.1, { attempt: 2 }), "step");
  assert.equal(all[0]?.points, 901);
});

test("two points of the same time are one place, and neither is superseded", () => {
  const all: Series[] = [];
  const at = "2026-01-01T00:00:00Z";
  addPoint(all, point(1, 1, { at }), "time");
  addPoint(all, point(2, 2, { at }), "time");
  assert.deepEqual(all[0]?.buckets, [[Date.parse(at), 2, 2, 2]]);
  assert.deepEqual(all[0]?.superseded, []);
  assert.equal(all[0]?.points, 2);
});

test("the lowest value leaves out what is not finite", () => {
  assert.equal(lowest(series(point(1, "NaN"), point(2, 3), point(3, -1), point(4, "-Infinity"))), -1);
  assert.equal(lowest(series(point(1, "NaN"))), null);
  assert.equal(lowest([]), null);
});

test("the lowest value of hundreds of learners is found", () => {
  const bucket = (x: number): [number, number, number, number] => [x, x, x, x];
  const buckets = Array.from({ length: 1800 }, (_, x) => bucket(x + 7));
  const all = Array.from({ length: 256 }, (_, rank) => ({ name: "loss", rank, buckets, superseded: [], not_finite: [], complete: true, points: 1800 }));
  assert.equal(lowest(all), 7);
});

test("without a weight nothing is smoothed", () => {
  const values = [1, null, 3];
  assert.equal(smooth(values, 0), values);
});

test("smoothing starts at the first value and keeps gaps", () => {
  const [first, gap, last] = smooth([4, null, 8], 0.5);
  assert.equal(first, 4);
  assert.equal(gap, null);
  assert(last !== null && last !== undefined && last > 4 && last < 8);
});

test("a constant stays constant however much it is smoothed", () => {
  for (const value of smooth([3, 3, 3, null, 3], 0.999)) assert(value === null || Math.abs(value - 3) < 1e-9);
});

test("smoothing nothing is nothing", () => {
  assert.deepEqual(smooth([], 0.9), []);
  assert.deepEqual(smooth([null, null], 0.9), [null, null]);
});

test("a chart asks for about a bucket a pixel, within bounds", () => {
  assert.deepEqual([0, 120, 437, 500, 1_999, 5_000].map(bucketsFor), [200, 200, 500, 500, 2_000, 2_000]);
});
