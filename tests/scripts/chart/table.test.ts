import assert from "node:assert/strict";
import { test } from "node:test";
import type { Bucket, Compared, Series } from "../../../static/src/ts/chart/series";
import { settingsOf, type Settings } from "../../../static/src/ts/chart/settings";
import { columns, isBare, isThinned, LEARNERS, short, styleOf, tabulate, tickLabels, type Line } from "../../../static/src/ts/chart/table";

const series = (values: [number, number | string][], more: Partial<Series> = {}): Series => ({
  name: "loss",
  rank: 0,
  buckets: values.map(([x, value]): Bucket => (typeof value === "number" ? [x, value, value, value] : [x, null, null, value])),
  superseded: [],
  not_finite: values.flatMap(([x, value]): [number, string][] => (typeof value === "number" ? [] : [[x, value]])),
  complete: true,
  points: values.length,
  ...more,
});
const settings = (changes: Partial<Settings> = {}): Settings => ({ ...settingsOf(""), ...changes });

test("a job without numbers has an empty table", () => {
  const table = tabulate([], settings());
  assert.deepEqual(table, { x: [], lines: [], notFinite: [], below: 0 });
  assert(!isBare(table));
  assert.deepEqual(columns(table, settings()), [[]]);
});

test("one point is one row", () => {
  const table = tabulate([series([[7, 0.5]])], settings());
  assert.deepEqual(table.x, [7]);
  assert.deepEqual(table.lines[0]?.drawn, [0.5]);
});

test("learners that report other steps share one axis, with gaps", () => {
  const table = tabulate([series([[1, 10], [3, 30]]), series([[2, 2], [3, 3]], { rank: 1 })], settings());
  assert.deepEqual(table.x, [1, 2, 3]);
  assert.deepEqual(table.lines[0]?.raw, [10, null, 30]);
  assert.deepEqual(table.lines[1]?.raw, [null, 2, 3]);
});

test("only so many learners are drawn", () => {
  const all = Array.from({ length: LEARNERS + 3 }, (_, rank) => series([[1, rank]], { rank }));
  assert.equal(tabulate(all, settings()).lines.length, LEARNERS);
});

const job = (id: string, color: number, dashed = false): Compared => ({ id, label: `job-${id}`, color, dashed, base: false });

test("all compared jobs are drawn, each as it is in every chart", () => {
  const all = Array.from({ length: LEARNERS + 3 }, (_, at) => series([[1, at]], { job: job(String(at), (at % 6) + 1, at > 5) }));
  const { lines } = tabulate(all.slice(1), settings());
  assert.equal(lines.length, LEARNERS + 2);
  assert.deepEqual([lines[0], lines[6]].map((line, at) => styleOf(line as Line, at)).map(({ color, dashed }) => [color, dashed]), [[2, false], [2, true]]);
});

test("learners are drawn by their place, every second one dashed", () => {
  const { lines } = tabulate([series([[1, 1]]), series([[1, 2]], { rank: 3 })], settings());
  assert.deepEqual(lines.map(styleOf), [{ color: 1, dashed: false }, { color: 2, dashed: true }]);
});

test("the relative axis counts from each job's own first point, and from one for all learners of a job", () => {
  const relative = settings({ x: "relative" });
  const jobs = [series([[10_000, 1], [12_000, 2]], { job: job("a", 1) }), series([[50_000, 3], [51_000, 4]], { job: job("b", 2) })];
  assert.deepEqual(tabulate(jobs, relative).x, [0, 1, 2]);
  const learners = [series([[10_000, 1]]), series([[50_000, 3]], { rank: 1 })];
  assert.deepEqual(tabulate(learners, relative).x, [0, 40]);
});

test("NaN is a gap in the line and a mark at its step", () => {
  const table = tabulate([series([[1, 1], [2, "NaN"], [3, 3]])], settings());
  assert.deepEqual(table.lines[0]?.raw, [1, null, 3]);
  assert.deepEqual(table.notFinite, [[2, "NaN"]]);
});

test("a log scale leaves out and counts values of 0 or less", () => {
  const table = tabulate([series([[1, -1], [2, 0], [3, 5]])], settings({ log: true }));
  assert.deepEqual(table.lines[0]?.raw, [null, null, 5]);
  assert.deepEqual(table.lines[0]?.low, [null, null, 5]);
  assert.equal(table.below, 2);
  assert(!isBare(table));
});

test("a log scale without a positive value is bare", () => {
  assert(isBare(tabulate([series([[1, -1], [2, 0]])], settings({ log: true }))));
  assert(!isBare(tabulate([series([[1, -1], [2, 0]])], settings())));
});

test("a log scale on which only a superseded value is positive is not bare", () => {
  assert(!isBare(tabulate([series([[1, 0]], { superseded: [[1, 2, 2, 2]] })], settings({ log: true }))));
});

test("superseded points have a column of their own", () => {
  const table = tabulate([series([[1, 1], [2, 2]], { superseded: [[2, 9, 9, 9], [3, 8, 8, 8]] })], settings());
  assert.deepEqual(table.x, [1, 2, 3]);
  assert.deepEqual(table.lines[0]?.raw, [1, 2, null]);
  assert.deepEqual(table.lines[0]?.superseded, [null, 9, 8]);
});

test("a zoom leaves out what is outside of it", () => {
  const table = tabulate([series([[1, 1], [5, "NaN"], [10, 10]])], settings({ zoom: [2, 10] }));
  assert.deepEqual(table.x, [5, 10]);
  assert.deepEqual(table.notFinite, [[5, "NaN"]]);
});

test("time is in seconds, relative time since the first point of any learner", () => {
  const all = [series([[5000, 1], [9000, 2]]), series([[4000, 1]], { rank: 1 })];
  assert.deepEqual(tabulate(all, settings({ x: "time" })).x, [4, 5, 9]);
  assert.deepEqual(tabulate(all, settings({ x: "relative" })).x, [0, 1, 5]);
});

test("a smoothed chart has the raw values behind the smoothed ones", () => {
  const table = tabulate([series([[1, 0], [2, 10]])], settings({ smooth: 0.5 }));
  const rows = columns(table, settings({ smooth: 0.5 }));
  assert.equal(rows.length, 1 + 5);
  assert.deepEqual(rows[4], [0, 10]);
  assert.equal(columns(table, settings()).length, 1 + 4);
});

test("short numbers have three digits and a unit", () => {
  const cases: [number, string][] = [[0, "0"], [0.1234567, "0.1235"], [9999, "9999"], [20_000, "20k"], [1_500_000, "1.5M"], [-2e15, "-2P"], [1e21, "1e21"], [-12_345, "-12.3k"]];
  for (const [value, text] of cases) assert.equal(short(value), text);
});

test("a number just below a unit is rounded into it", () => {
  assert.equal(short(999_999), "1M");
  assert.equal(short(9999.9999), "10k");
});

test("neighbors on an axis have different labels", () => {
  assert.deepEqual(tickLabels([0, 0.05, 0.1], 0.05), ["0", "0.05", "0.1"]);
  assert.deepEqual(tickLabels([100_000, 100_500, 101_000], 500), ["100k", "100.5k", "101k"]);
  assert.equal(new Set(tickLabels([1_000_000, 1_000_001, 1_000_002], 1)).size, 3);
});

test("an axis without a step or of huge numbers has short labels", () => {
  assert.deepEqual(tickLabels([12_345], 0), ["12.3k"]);
  assert.deepEqual(tickLabels([2e18], 1e18), ["2e18"]);
  assert.deepEqual(tickLabels([], 1), []);
});

test("tiny numbers are written with their power of ten, and neighbors still differ", () => {
  assert.equal(short(0.0000123), "1.23e-5");
  assert.equal(short(0.001), "0.001");
  assert.deepEqual(tickLabels([0, 1e-7, 2e-7], 1e-7), ["0", "1e-7", "2e-7"]);
  assert.equal(new Set(tickLabels([1.2e-4, 1.25e-4, 1.3e-4], 5e-6)).size, 3);
});

test("a line whose rows stand for several points is thinned", () => {
  const spike = series([], { buckets: [[1, 1, 1, 1], [2, 1, 900, 1]], complete: false, points: 200 });
  assert(isThinned(tabulate([spike], settings()).lines[0]!));
  assert(!isThinned(tabulate([series([[1, 1], [2, "NaN"]])], settings()).lines[0]!));
});
