import assert from "node:assert/strict";
import { test } from "node:test";
import { clipping } from "../../../static/src/ts/chart/clip";
import type { Bucket, Series } from "../../../static/src/ts/chart/series";
import { settingsOf } from "../../../static/src/ts/chart/settings";
import { tabulate } from "../../../static/src/ts/chart/table";
import { legend } from "../../../static/src/ts/chart/words";

const on = settingsOf("?clip=1");
const series = (buckets: Bucket[]): Series[] => [
  { name: "loss", rank: 0, buckets, superseded: [], not_finite: [], complete: false, points: buckets.length },
];
const wave = Array.from({ length: 100 }, (_, x): Bucket => [x, x % 10, (x % 10) + 1, x % 10]);

test("a spike leaves the scale and is marked at the edge that it crosses", () => {
  const buckets = wave.map((one): Bucket => (one[0] === 54 ? [54, -500, 900, 4] : one));
  const table = tabulate(series(buckets), on);
  const found = clipping(table, on);
  assert.deepEqual(found?.outside, [[54, "top"], [54, "bottom"]]);
  assert(found && found.scale[0] < 0 && found.scale[0] > -2 && found.scale[1] > 10 && found.scale[1] < 12);
  assert(legend("loss", series(buckets), table, on, []).some(({ text }) => text === "▲ 2 outliers outside the scale"));
});

test("without outliers, or without being asked, nothing is clipped", () => {
  assert.equal(clipping(tabulate(series(wave), on), on), null);
  const off = settingsOf("");
  assert.equal(clipping(tabulate(series([[0, 1, 1e9, 1]]), off), off), null);
  assert.equal(clipping(tabulate([], on), on), null);
});

test("a flat line keeps a scale around it", () => {
  const flat = wave.map(([x]): Bucket => [x, 1, x === 7 ? 900 : 1, 1]);
  const found = clipping(tabulate(series(flat), on), on);
  assert.deepEqual(found, { scale: [0.95, 1.05], outside: [[7, "top"]] });
  const log = settingsOf("?clip=1&log=1");
  assert.deepEqual(clipping(tabulate(series(flat), log), log)?.scale, [0.5, 2]);
});
