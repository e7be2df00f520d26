import assert from "node:assert/strict";
import { test } from "node:test";
import { matching } from "../../static/src/ts/palette-match";

const all = ["Overview", "Jobs", "Quota & usage", "New job", "Audit log"].map((text) => ({ text }));
const found = (typed: string): string[] => matching(typed, all).map(({ text }) => text);

test("nothing typed is everything, in its order", () => {
  assert.deepEqual(found("  "), all.map(({ text }) => text));
});

test("each word must occur, in any order and case", () => {
  assert.deepEqual(found("USAGE quota"), ["Quota & usage"]);
  assert.deepEqual(found("usage jobs"), []);
});

test("what starts a word comes before what is in its middle", () => {
  assert.deepEqual(found("o"), ["Overview", "Jobs", "Quota & usage", "New job", "Audit log"]);
  assert.deepEqual(found("log"), ["Audit log"]);
  assert.deepEqual(matching("us", [{ text: "Status" }, { text: "Quota & usage" }]).map(({ text }) => text), ["Quota & usage", "Status"]);
});
