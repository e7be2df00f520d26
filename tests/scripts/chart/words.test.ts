import assert from "node:assert/strict";
import { test } from "node:test";
import { addPoint, type Series } from "../../../static/src/ts/chart/series";
import { settingsOf, type Settings } from "../../../static/src/ts/chart/settings";
import { tabulate } from "../../../static/src/ts/chart/table";
import { comparison, legend, marksFor, nothing, summary, tip, type Mark } from "../../../static/src/ts/chart/words";
import { values } from "../../../static/src/ts/chart/values";

const settings = (changes: Partial<Settings> = {}): Settings => ({ ...settingsOf(""), ...changes });

function series(...all: [rank: number, step: number, value: number | string, attempt?: number][]): Series[] {
  const found: Series[] = [];
  all.forEach(([rank, step, value, attempt = 1], at) => {
    addPoint(found, { n: at + 1, name: "loss", step, value, at: new Date(step * 1000).toISOString(), attempt, rank }, "step");
  });
  return found;
}

const entries = (all: Series[], of = settings(), marks: Mark[] = []): string[] =>
  legend("loss", all, tabulate(all, of), of, marks).map((entry) => entry.text);

test("the summary has the newest value, the lowest and how many points there are", () => {
  const newest = { value: 0.25, step: 2000, rank: 0, attempt: 1, n: 2 };
  assert.equal(summary("loss", series([0, 1000, 0.5], [0, 2000, 0.25]), newest), "loss: 0.25 at step 2,000, lowest 0.25, 2 points");
  assert.equal(summary("loss", series([0, 1, "NaN"]), { ...newest, value: "NaN", step: null }), "loss: NaN at the newest point, lowest —, 1 point");
  assert.equal(summary("loss", [], undefined), "loss: no points");
});

test("points that only have an order are at no step", () => {
  const all = series([0, 1, 0.5], [0, 60, 0.25]);
  for (const one of all) one.axis = "order";
  const newest = { value: 0.25, step: 60, axis: "order" as const, rank: 0, attempt: 1, n: 2 };
  assert.equal(summary("loss", all, newest), "loss: 0.25 at position 60, lowest 0.25, 2 points");
  assert.equal(tip(tabulate(all, settings()), 1, settings(), "order"), "position 60 · 0.25");
  assert.equal(values("loss", all, tabulate(all, settings()), settings(), 9).head[0], "position");
});

test("a chart whose points only have an order has the marks of its own order, others those at steps", () => {
  const marks: Mark[] = [[7, "attempt 2", "loss"], [5, "attempt 2", "accuracy"], [3, "attempt 2"], [2, ""]];
  const all = series([0, 1, 0.5]);
  assert.deepEqual(marksFor("loss", all, marks), [[3, "attempt 2"], [2, ""]]);
  for (const one of all) one.axis = "order";
  assert.deepEqual(marksFor("loss", all, marks), [[7, "attempt 2", "loss"]]);
});

test("one learner is named by the metric, several by their rank", () => {
  assert.deepEqual(entries(series([0, 1, 1])), ["loss"]);
  assert.deepEqual(entries(series([0, 1, 1], [1, 1, 1])), ["learner 0", "learner 1"]);
});

test("compared jobs are named in the legend, the tip, the table and the summary", () => {
  const job = (label: string): Partial<Series> => ({ job: { id: label, label, color: 1, dashed: false, base: false } });
  const all = ["sgd", "adam"].flatMap((label, at) => series([0, 1, at + 0.5]).map((one) => ({ ...one, ...job(label) })));
  const table = tabulate(all, settings());
  assert.deepEqual(entries(all), ["sgd", "adam"]);
  assert.equal(tip(table, 0, settings()), "step 1 · adam 1.5 · sgd 0.5");
  assert.equal(tip(tabulate(all.slice(1), settings()), 0, settings()), "step 1 · adam 1.5");
  assert.deepEqual(values("loss", all, table, settings(), 9).head, ["step", "sgd", "adam"]);
  assert.equal(comparison("loss", table, settings()), "loss: sgd 0.5, adam 1.5");
  assert.equal(comparison("loss", tabulate([], settings()), settings()), "loss: no points");
});

test("learners that are not drawn are counted", () => {
  const all = series(...Array.from({ length: 8 }, (_, rank): [number, number, number] => [rank, 1, 1]));
  assert.equal(entries(all).at(-1), "2 more learners");
});

test("the legend explains marks, smoothing, superseded points and what is not drawn", () => {
  const all = series([0, 1, 1], [0, 2, "NaN"], [0, 3, -1], [0, 2, "Infinity", 2], [0, 3, 0, 2]);
  const marks: Mark[] = [[2, "attempt 2"], [1, ""]];
  assert.deepEqual(entries(all, settings({ smooth: 0.5, log: true }), marks), [
    "loss",
    "╎ attempt",
    "┊ checkpoint",
    "smoothed 0.50",
    "superseded",
    "✕ 2 NaN/Inf",
    "1 value ≤ 0 not shown",
  ]);
});

test("the tip has the highest value first and leaves out gaps", () => {
  const table = tabulate(series([0, 1, 0.1], [1, 1, 0.9], [2, 2, 5]), settings());
  assert.equal(tip(table, 0, settings()), "step 1 · L1 0.9 · L0 0.1");
  assert.equal(tip(tabulate(series([0, 1500, 0.1]), settings()), 0, settings()), "step 1,500 · 0.1");
});

test("the tip of a time axis has the time of day, of a relative one seconds", () => {
  const all = series([0, 3661, 1]);
  for (const one of all) one.buckets.forEach((bucket) => (bucket[0] *= 1000));
  assert.equal(tip(tabulate(all, settings({ x: "time" })), 0, settings({ x: "time" })), "01:01:01 · 1");
  assert.equal(tip(tabulate(all, settings({ x: "relative" })), 0, settings({ x: "relative" })), "0 s · 1");
});

test("an empty chart says why it is empty", () => {
  const of = (all: Series[], changes: Partial<Settings> = {}): string => nothing(tabulate(all, settings(changes)), settings(changes));
  assert.equal(of([]), "Waiting for the first values.");
  assert.equal(of(series([0, 1, "NaN"])), "No finite value to draw.");
  assert.equal(of(series([0, 1, -1]), { log: true }), "No value above 0 to show on a log scale.");
  assert.equal(of(series([0, 1, 1]), { zoom: [5, 6] }), "No value in this range.");
});

test("the table has the newest rows first and says what it leaves out", () => {
  const all = series([0, 1, 1], [0, 2, "NaN"], [0, 3, 3]);
  const table = tabulate(all, settings());
  assert.deepEqual(values("loss", all, table, settings(), 300), {
    caption: "2 of 3 points, newest first. Zoom in to see the others.",
    head: ["step", "loss"],
    rows: [["3", "3"], ["2", "—"], ["1", "1"]],
  });
  assert.deepEqual(values("loss", all, table, settings(), 1).rows, [["3", "3"]]);
});

test("a table of several learners has a column for each", () => {
  const all = series([0, 1, 1], [1, 1, 2]);
  assert.deepEqual(values("loss", all, tabulate(all, settings()), settings(), 300).head, ["step", "L0", "L1"]);
  assert.equal(values("loss", all, tabulate(all, settings()), settings(), 300).caption, "All 2 points, newest first");
});
