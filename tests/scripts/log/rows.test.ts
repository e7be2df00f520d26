import assert from "node:assert/strict";
import { test } from "node:test";
import { ChainedRows } from "../../../static/src/ts/log/chain";
import { AllRows, keyOf, ListedRows, LoadedLines, placeOf } from "../../../static/src/ts/log/rows";
import { FakeLog } from "./logs";

const rank = (of: number, attempt = 1) => new FakeLog({ job: "j", attempt, rank: of });
const time = (second: number): string => new Date(1_700_000_000_000 + second * 1000).toISOString();

test("a key names a line and is read again", () => {
  assert.deepEqual(placeOf(keyOf({ attempt: 3, rank: 12, n: 4_000_000 })), { attempt: 3, rank: 12, n: 4_000_000 });
  assert.deepEqual(placeOf(""), { attempt: 0, rank: 0, n: 0 });
});

test("row i of one learner is line i + 1, in memory or not", () => {
  const log = rank(0).add("a", "b").put(5, "e");
  const rows = new AllRows(log);
  assert.equal(rows.length, 5);
  assert.equal(rows.at(4)?.text, "e");
  assert.equal(rows.at(3), undefined);
  assert.equal(rows.keyAt(3), "1:0:4");
  assert.equal(rows.indexOf("1:0:4"), 3);
});

test("an unfinished line is the last row", () => {
  const log = rank(0).add("a");
  log.tail = { n: 2, t: "", text: "half", cut: 0, kind: "none", after: "nothing", level: 0, attempt: 1, rank: 0 };
  const rows = new AllRows(log);
  assert.equal(rows.length, 2);
  assert.equal(rows.at(1)?.text, "half");
});

test("only lines that are missing and were stored are fetched", () => {
  const log = rank(0).add("a").put(6, "f").lose(2, 3);
  new AllRows(log).need(0, 100);
  assert.deepEqual(log.needed, [4, 5]);
});

test("the lines of several learners are in order of time, equal times in order of rank", () => {
  const [zero, one] = [rank(0), rank(1)];
  zero.put(1, "0 at 1", time(1)).put(2, "0 at 3", time(3));
  one.put(1, "1 at 1", time(1)).put(2, "1 at 2", time(2));
  const rows = new ListedRows([new LoadedLines(zero, 1), new LoadedLines(one, 1)]);
  rows.update();
  assert.deepEqual([0, 1, 2, 3].map((at) => rows.at(at)?.text), ["0 at 1", "1 at 1", "1 at 2", "0 at 3"]);
});

test("a line that comes late is put where its time is", () => {
  const [zero, one] = [rank(0), rank(1)];
  zero.put(1, "first", time(1)).put(2, "third", time(3));
  const rows = new ListedRows([new LoadedLines(zero, 1), new LoadedLines(one, 1)]);
  rows.update();
  one.put(1, "second", time(2));
  rows.update();
  rows.update();
  assert.deepEqual([0, 1, 2].map((at) => rows.at(at)?.text), ["first", "second", "third"]);
  assert.equal(rows.indexOf("1:1:1"), 1);
  assert.equal(rows.indexOf("1:1:9"), -1);
});

test("listing waits for a line that is not loaded and skips one that was not stored", () => {
  const log = rank(0).put(1, "a").put(4, "d").lose(2, 2);
  const rows = new ListedRows([new LoadedLines(log, 1)]);
  rows.update();
  assert.equal(rows.length, 1);
  assert.deepEqual(log.needed, [3]);
  log.put(3, "c");
  rows.update();
  assert.deepEqual([0, 1, 2].map((at) => rows.at(at)?.text), ["a", "c", "d"]);
});

function chain(...lengths: number[]): ChainedRows {
  return new ChainedRows(
    lengths.map((length, at) => {
      const log = rank(0, at + 1);
      for (let n = 1; n <= length; n += 1) log.add(`${at + 1}.${n}`);
      return { attempt: at + 1, rows: new AllRows(log) };
    }),
  );
}

test("attempts follow each other with a border before each later one", () => {
  const rows = chain(2, 1);
  assert.equal(rows.length, 4);
  assert.deepEqual([0, 1, 2, 3].map((at) => rows.at(at)?.text ?? ""), ["1.1", "1.2", "", "2.1"]);
  assert.equal(rows.borderAt(2), 2);
  assert.equal(rows.borderAt(3), 0);
});

test("every row of a chain is found by its key, borders too", () => {
  const rows = chain(3, 0, 2, 0);
  assert.equal(rows.length, 8);
  for (let at = 0; at < rows.length; at += 1) assert.equal(rows.indexOf(rows.keyAt(at)), at);
  assert.equal(rows.indexOf("9:0:1"), -1);
});

test("a chain fetches only rows within the range, each in its attempt", () => {
  const logs = [1, 2].map((attempt) => rank(0, attempt));
  for (const log of logs) log.total = 3;
  new ChainedRows(logs.map((log) => ({ attempt: log.stream.attempt, rows: new AllRows(log) }))).need(2, 4);
  assert.deepEqual(logs.map((log) => log.needed), [[3], [1]]);
});
