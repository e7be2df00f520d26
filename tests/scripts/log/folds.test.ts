import assert from "node:assert/strict";
import { test } from "node:test";
import { FoldedRows, Folds } from "../../../static/src/ts/log/folds";
import { FakeLog, traceback } from "./logs";

const key = (n: number): string => `1:0:${n}`;

/** Numbers of the lines that the rows show. */
function shown(log: FakeLog, folds: Folds): number[] {
  const rows = new FoldedRows(log, folds);
  return Array.from({ length: rows.length }, (_, at) => Number(rows.keyAt(at).split(":")[2]));
}

test("a long traceback folds into its first line", () => {
  const log = new FakeLog().add("before", ...traceback(10), "after");
  const folds = new Folds(log);
  assert(folds.update());
  assert.deepEqual(shown(log, folds), [1, 2, 13, 14]);
  assert.deepEqual(folds.closed(), [[2, 12]]);
  assert(!folds.update(), "there is nothing new");
});

test("a short traceback does not fold", () => {
  const folds = new Folds(new FakeLog().add(...traceback(7)));
  assert(!folds.update());
  assert(new Folds(new FakeLog().add(...traceback(8))).update());
});

test("a colored traceback folds like any other", () => {
  const [head = "", ...body] = traceback(10);
  const log = new FakeLog().add(`\x1b[31m${head}\x1b[0m`, ...body);
  const folds = new Folds(log);
  assert(folds.update());
  assert.deepEqual(folds.closed(), [[1, 11]]);
});

test("a traceback that has not ended yet folds once it has", () => {
  const log = new FakeLog().add(...traceback(10, ""));
  const folds = new Folds(log);
  assert(!folds.update());
  log.add("    x = 1", "KeyError: 1");
  assert(folds.update());
  assert.deepEqual(folds.closed(), [[1, 12]]);
});

test("a traceback ends at a gap", () => {
  const log = new FakeLog().add(...traceback(10, "")).lose(12, 500);
  const folds = new Folds(log);
  assert(folds.update());
  assert.deepEqual(folds.closed(), [[1, 11]]);
  assert.equal(shown(log, folds).length, 1 + 489);
});

test("a traceback with a gap in it folds up to the gap", () => {
  const log = new FakeLog().add(...traceback(9, "")).lose(11, 20).put(21, "  still indented").put(22, "ValueError");
  const folds = new Folds(log);
  folds.update();
  assert.deepEqual(folds.closed(), [[1, 10]]);
});

test("a traceback within another's body has a fold of its own", () => {
  const log = new FakeLog().add(...traceback(9, ""), ...traceback(9, "").map((text) => `  ${text}`), "end");
  const folds = new Folds(log);
  folds.update();
  assert.deepEqual(folds.closed(), [[1, 10], [11, 20]]);
});

test("an open fold shows its lines, closed again it hides them", () => {
  const log = new FakeLog().add(...traceback(10));
  const folds = new Folds(log);
  folds.update();
  folds.toggle(1);
  assert(folds.isOpen(1));
  assert.equal(shown(log, folds).length, 12);
  folds.toggle(1);
  assert.deepEqual(shown(log, folds), [1, 12]);
});

test("a line that is asked for opens the fold over it, also one that is found later", () => {
  const log = new FakeLog().add(...traceback(10));
  const folds = new Folds(log);
  folds.update();
  assert(!folds.open(12), "it is not hidden");
  assert(folds.open(5));
  assert(!folds.open(6), "it is open already");
  const later = new FakeLog();
  const none = new Folds(later);
  assert(!none.open(5));
  later.add(...traceback(10));
  none.update();
  assert(none.isOpen(1));
});

test("every row is found by its key, hidden lines at the head of their fold", () => {
  const log = new FakeLog().add("a", ...traceback(10), "b", "c", ...traceback(20), "d");
  const folds = new Folds(log);
  folds.update();
  const rows = new FoldedRows(log, folds);
  for (let at = 0; at < rows.length; at += 1) assert.equal(rows.indexOf(rows.keyAt(at)), at);
  assert.equal(rows.indexOf(key(7)), rows.indexOf(key(2)));
  assert.equal(rows.at(rows.length - 1)?.text, "d");
});

test("hidden lines are not fetched", () => {
  const log = new FakeLog().add("a", ...traceback(10), "b");
  const folds = new Folds(log);
  folds.update();
  const forgotten = new FakeLog();
  forgotten.total = log.total;
  new FoldedRows(forgotten, folds).need(0, 3);
  assert.deepEqual(forgotten.needed, [1, 2, 13, 14]);
});

test("thousands of folds keep every row in its place", () => {
  const log = new FakeLog();
  for (let at = 0; at < 2000; at += 1) log.add(`step ${at}`, ...traceback(9));
  const folds = new Folds(log);
  folds.update();
  const rows = new FoldedRows(log, folds);
  assert.equal(rows.length, 2000 * 3);
  assert.equal(rows.at(5999)?.n, log.total);
  assert.equal(rows.at(3000)?.text, "step 1000");
});
