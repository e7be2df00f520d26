import assert from "node:assert/strict";
import { test } from "node:test";
import { loaded } from "../../../static/src/ts/loaded";
import * as delta from "../../../static/src/ts/chart/delta";
import type { Bucket, Series } from "../../../static/src/ts/chart/series";
import { changed, searchOf, settingsOf } from "../../../static/src/ts/chart/settings";
import { tabulate } from "../../../static/src/ts/chart/table";
import { legend } from "../../../static/src/ts/chart/words";

loaded.delta = delta;

const line = (id: string, base: boolean, values: [number, number][]): Series => ({
  name: "loss",
  rank: 0,
  buckets: values.map(([x, value]): Bucket => [x, value - 1, value + 1, value]),
  superseded: [],
  not_finite: [],
  complete: true,
  points: values.length,
  job: { id, label: `job-${id}`, color: 1, dashed: false, base },
});
const differing = { ...settingsOf(""), delta: true };
const base = line("a", true, [[0, 10], [10, 20]]);

test("lines are less the baseline, which is straight between its points", () => {
  const { x, lines } = tabulate([base, line("b", false, [[0, 13], [5, 13], [10, 13]])], differing);
  assert.deepEqual(x, [0, 5, 10]);
  assert.deepEqual(lines.map(({ raw }) => raw), [[0, null, 0], [3, -2, -7]]);
  assert.deepEqual([lines[1]?.low, lines[1]?.high], [[2, -3, -8], [4, -1, -6]]);
});

test("there is no difference before the baseline's first point and after its last", () => {
  const { lines } = tabulate([base, line("b", false, [[-5, 1], [0, 1], [11, 1]])], differing);
  assert.deepEqual(lines[1]?.raw, [null, -9, null, null]);
});

test("what is drawn smoothed is compared smoothed", () => {
  const { lines } = tabulate([base, line("b", false, [[0, 10], [10, 20]])], { ...differing, smooth: 0.9 });
  assert.deepEqual(lines[1]?.drawn, [0, 0]);
});

test("the legend names the baseline, or that it has nothing here", () => {
  const words = (all: Series[]): string[] => legend("loss", all, tabulate(all, differing), differing, []).map(({ text }) => text);
  assert(words([base]).includes("difference from job-a"));
  const without = [line("b", false, [[0, 1]])];
  assert(words(without).includes("The baseline has no values here"));
  assert.deepEqual(tabulate(without, differing).lines[0]?.raw, [null]);
});

test("a difference has no logarithm", () => {
  const log = { ...settingsOf("?log=1&clip=1") };
  assert.deepEqual([log.log, log.delta], [true, false]);
  const turned = changed(log, { delta: true });
  assert.deepEqual([turned.log, turned.delta, turned.clip], [false, true, true]);
  assert.equal(searchOf(turned, "?ids=a,b"), "?ids=a%2Cb&clip=1&delta=1");
  assert.equal(changed(turned, { log: true }).delta, false);
  assert.equal(settingsOf("?log=1&delta=1").log, false);
});
