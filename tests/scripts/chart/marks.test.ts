import assert from "node:assert/strict";
import { test } from "node:test";

Object.assign(globalThis, {
  devicePixelRatio: 1,
  document: { documentElement: {} },
  getComputedStyle: () => ({ getPropertyValue: () => "#000" }),
});
const { drawMarks } = await import("../../../static/src/ts/chart/plot");

/** What is written on a plot of 100 px, from 10 to 20 on the x axis, and where. */
function written(marks: [number, string][]): [string, number][] {
  const texts: [string, number][] = [];
  const ctx = new Proxy({} as Record<string, unknown>, {
    get: (_, name) => {
      if (name === "fillText") return (words: string, at: number) => texts.push([words, at]);
      return name === "measureText" ? () => ({ width: 30 }) : () => undefined;
    },
    set: () => true,
  });
  const plot = { ctx, bbox: { left: 0, top: 0, width: 100, height: 50 }, valToPos: (x: number) => (x - 10) * 10 };
  drawMarks(plot as never, marks as never, []);
  return texts;
}

test("a mark in sight has its label, near the right edge on its left", () => {
  assert.deepEqual(written([[12, "attempt 2"]]), [["attempt 2", 24]]);
  assert.deepEqual(written([[19, "attempt 3"]]), [["attempt 3", 56]]);
});

test("a mark out of sight has none", () => {
  assert.deepEqual(written([[5, "attempt 2"], [9.8, "attempt 3"], [25, "attempt 4"]]), []);
});
