import assert from "node:assert/strict";
import { test } from "node:test";
import { diff, excerpt } from "../../../static/src/ts/new-job/diff";

test("equal specs do not differ, whatever the order of their keys", () => {
  assert.deepEqual(diff({ a: 1, b: { c: [1, 2] } }, { b: { c: [1, 2] }, a: 1 }), []);
});

test("what was changed, removed and added is named by its path", () => {
  assert.deepEqual(diff({ a: 1, b: { c: 2 } }, { a: 3, b: { d: null } }), [
    { path: "a", before: "1", after: "3" },
    { path: "b.c", before: "2", after: undefined },
    { path: "b.d", before: undefined, after: "null" },
  ]);
});

test("a list of plain values is one value", () => {
  assert.deepEqual(diff({ tags: ["a", "b"] }, { tags: ["a"] }), [{ path: "tags", before: "a, b", after: "a" }]);
});

test("a list of maps is compared value by value", () => {
  const before = { data: [{ path: "/a", name: "x" }, { path: "/b" }] };
  assert.deepEqual(diff(before, { data: [{ path: "/a", name: "y" }] }), [
    { path: "data[0].name", before: "x", after: "y" },
    { path: "data[1].path", before: "/b", after: undefined },
  ]);
});

test("a short value is shown whole, a long one from where it differs", () => {
  assert.equal(excerpt("short", "other", 10), "short");
  assert.equal(excerpt("x".repeat(30), "", 10), `${"x".repeat(10)}…`);
  const long = `${"a".repeat(100)}B${"c".repeat(100)}`;
  const text = excerpt(long, "a".repeat(150), 60);
  assert(text.startsWith("…") && text.endsWith("…") && text.includes("B"));
  assert(excerpt(`${"a".repeat(100)}B`, "a".repeat(101), 60).endsWith("B"));
});
