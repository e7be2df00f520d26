import assert from "node:assert/strict";
import { test } from "node:test";
import type { Verdict } from "../../../static/src/ts/new-job/check";
import { texts } from "../../../static/src/ts/new-job/texts";
import { details, headline, kindOf, oneLine, quotaCells, when, where } from "../../../static/src/ts/new-job/verdict";

const NONE = { from: null, to: null, message: "" };
const now = { starts: false, nodes: [], code: "quota", actor: "wait" as const, message: "The quota is used up.", numbers: {}, estimate: NONE };
const waits: Verdict = { errors: [], warnings: [], now };
const starts: Verdict = { errors: [], warnings: [], now: { ...now, starts: true, nodes: ["node-a", "node-a"] } };
const wrong: Verdict = { errors: [{ path: "name", code: "required", message: "is required" }], warnings: [] };

test("errors and refusals are bad, waiting is not, unless only a change helps", () => {
  assert.equal(kindOf(wrong), "bad");
  assert.equal(kindOf({ ...starts, problem: "no answer" }), "bad");
  assert.equal(kindOf(starts), "good");
  assert.equal(kindOf({ errors: [], warnings: [] }), "good");
  assert.equal(kindOf(waits), "wait");
  assert.equal(kindOf({ ...waits, now: { ...now, actor: "fix" as const } }), "bad");
});

test("a job that can start names its nodes once", () => {
  assert.equal(headline(starts, "good"), "Can start now on node-a");
  assert.equal(oneLine(starts), "Can start now on node-a");
  assert.equal(details(starts), "2 learners, both on node-a.");
});

test("a job that waits says why, and when it would start if that is known", () => {
  assert.equal(headline(waits, "wait"), "Would wait in the queue");
  assert.equal(oneLine(waits), "The quota is used up.");
  const soon = (seconds: number): string => new Date(Date.now() + seconds * 1000).toISOString();
  const known = { ...waits, now: { ...now, estimate: { from: soon(1500), to: soon(2400), message: "" } } };
  assert.equal(headline(known, "wait"), "Starts in 25–40 min");
  assert.equal(oneLine(known), "The quota is used up. Starts in 25–40 min.");
  assert.equal(details(known), "The quota is used up.");
});

test("a spec with errors has not been checked further", () => {
  assert.equal(headline(wrong, "bad"), "Not checked yet");
  assert.equal(details(wrong), "");
  assert.equal(headline({ ...wrong, errors: [], problem: "The server is not responding" }, "bad"), "The server is not responding");
  assert.equal(headline(waits, "bad"), "It can't start as configured");
});

test("why there is no estimate is part of a sentence", () => {
  assert.equal(when({ ...NONE, message: "Running jobs report no progress." }), "No estimate: running jobs report no progress.");
  assert.equal(when({ ...NONE, message: "GPU jobs ahead report no progress." }), "No estimate: GPU jobs ahead report no progress.");
  assert.equal(when(NONE), "");
});

test("an estimate that has passed is soon", () => {
  assert.equal(when({ from: "2026-01-01T00:00:00Z", to: "2026-01-01T00:01:00Z", message: "" }, Date.parse("2026-01-01T00:02:00Z")), "Starts in under 1 min.");
});

test("learners are counted by node", () => {
  assert.equal(where([]), "");
  assert.equal(where(["node-a"]), "1 learner on node-a.");
  assert.equal(where(["a", "a"]), "2 learners, both on a.");
  assert.equal(where(["a", "a", "a"]), "3 learners, all on a.");
  assert.equal(where(["a", "b", "a"]), "3 learners: a 2, b 1.");
});

test("a quota has a cell for each device, and what exceeds it comes after the limit", () => {
  assert.deepEqual(quotaCells({ slot_type: "H200", limit: 4, used: 1, asked: 2 }, 24), ["used", "own", "own", "free", "limit"]);
  assert.deepEqual(quotaCells({ slot_type: "H200", limit: 2, used: 1, asked: 3 }, 24), ["used", "own", "limit", "over", "over"]);
  assert.deepEqual(quotaCells({ slot_type: "H200", limit: 0, used: 0, asked: 1 }, 24), ["limit", "over"]);
});

test("a large quota has few cells", () => {
  const cells = quotaCells({ slot_type: "cpu", limit: 10_000, used: 9_000, asked: 3_000 }, 24);
  assert(cells.length <= 24 + 3);
  assert.equal(cells.filter((cell) => cell === "limit").length, 1);
});

test("a message that is a sentence follows a colon, one that is not follows the name", () => {
  assert.equal(texts.problem("Memory each", "Unknown unit “GB”. Did you mean 4Gi?"), "Memory each: Unknown unit “GB”. Did you mean 4Gi?");
  assert.equal(texts.problem("Name", "is required"), "Name is required");
});
