import assert from "node:assert/strict";
import { test } from "node:test";
import { Gaps } from "../../../static/src/ts/log/gaps";
import { actionOf, type KeyActions } from "../../../static/src/ts/log/keys";
import { KEYS } from "../../../static/src/ts/keys";
import cases from "../../log_levels.json";
import { classify, kindOf, startsTraceback, type After } from "../../../static/src/ts/log/levels";
import { Marked } from "../../../static/src/ts/log/marked";
import { anchorOf, has, linkedLines, pick } from "../../../static/src/ts/log/picked";
import { statusTexts } from "../../../static/src/ts/log/status";
import { attemptsShown } from "../../../static/src/ts/log/streams";
import { Survey, type LogLevels } from "../../../static/src/ts/log/survey";
import { nextMode, timeText } from "../../../static/src/ts/log/times";
import type { Line, LogPage } from "../../../static/src/ts/log/lines";
import { FakeLog, traceback } from "./logs";

test("a line is what the server takes it for", () => {
  for (const [name, lines] of cases as [string, [string, string][]][]) {
    let after: After = "nothing";
    const kinds = lines.map(([text]) => {
      const mark = classify(text, after);
      after = mark.after;
      return mark.kind;
    });
    assert.deepEqual(kinds, lines.map(([, kind]) => kind), name);
  }
});

test("colors do not hide what a line is", () => {
  assert.equal(classify("\x1b[31mERROR\x1b[0m", "nothing").kind, "error");
  assert(startsTraceback("\x1b[1m  Traceback (most recent call last):"));
});

test("a line that the server found is drawn as one that was read here", () => {
  for (const [, lines] of cases as [string, [string, string][]][])
    for (const [text, kind] of lines) {
      if (kind === "none") continue;
      const part = kind === "body" || kind === "raised";
      assert.equal(kindOf(text, kind === "warning" ? "warn" : "error", part), kind, text);
    }
});

test("gaps join what touches and answer where one ends", () => {
  const gaps = new Gaps();
  gaps.add(10, 20);
  gaps.add(30, 40);
  assert.deepEqual([9, 10, 20, 21, 35, 41].map((n) => gaps.endOf(n)), [0, 20, 20, 0, 40, 0]);
  gaps.add(21, 29);
  assert.equal(gaps.endOf(10), 40);
  gaps.add(15, 16);
  gaps.add(1, 1);
  assert.equal(gaps.endOf(1), 1);
  assert.equal(gaps.endOf(2), 0);
});

test("a gap over others takes them in", () => {
  const gaps = new Gaps();
  for (const n of [5, 7, 9, 100]) gaps.add(n, n);
  gaps.add(1, 50);
  assert.equal(gaps.endOf(3), 50);
  assert.equal(gaps.endOf(60), 0);
  assert.equal(gaps.endOf(100), 100);
});

test("an address names lines, of an attempt or not", () => {
  assert.deepEqual(linkedLines("#L20-24"), { attempt: 0, from: 20, to: 24 });
  assert.deepEqual(linkedLines("#a3-L7"), { attempt: 3, from: 7, to: 7 });
  for (const hash of ["", "#L", "#Lx", "#L1-", "#a-L1"]) assert.equal(linkedLines(hash), null);
  assert.deepEqual(linkedLines(anchorOf({ attempt: 2, from: 5, to: 9 }, true)), { attempt: 2, from: 5, to: 9 });
  assert.equal(anchorOf({ attempt: 2, from: 5, to: 5 }, false), "#L5");
});

test("a second pick extends the first, upward and downward, within one attempt", () => {
  const first = pick(null, 1, 10, true);
  assert.deepEqual(first, { attempt: 1, from: 10, to: 10 });
  assert.deepEqual(pick(first, 1, 4, true), { attempt: 1, from: 4, to: 10 });
  assert.deepEqual(pick(first, 1, 14, true), { attempt: 1, from: 10, to: 14 });
  assert.deepEqual(pick(first, 2, 4, true), { attempt: 2, from: 4, to: 4 });
  assert.deepEqual(pick(first, 1, 4, false), { attempt: 1, from: 4, to: 4 });
  assert(has(first, 1, 10) && !has(first, 2, 10) && !has(null, 1, 10));
});

test("times are of the day, since the first line, or none", () => {
  const [t, start] = ["2026-01-01T10:00:01.500Z", "2026-01-01T10:00:00.000Z"];
  assert.equal(timeText("clock", t, start), "10:00:01.500");
  assert.equal(timeText("relative", t, start).trim(), "+1.500");
  assert.equal(timeText("relative", start, t).trim(), "-1.500");
  assert.equal(timeText("relative", t, ""), "10:00:01.500", "where the first line is not known");
  assert.equal(timeText("off", t, start), "");
  assert.equal(timeText("clock", "", start), "");
  assert.equal(nextMode(nextMode(nextMode("clock"))), "clock");
});

const line = { n: 1234, t: "2026-01-01T10:00:01.500Z" } as Line;
const status = { following: true, ended: false, first: line, searching: false, stoppedAt: 0, total: 2000, partly: false, stale: false };

test("the status says where the reader is and whether more will come", () => {
  assert.deepEqual(statusTexts(status), ["Following", "2,000 lines", "Live"]);
  assert.deepEqual(statusTexts({ ...status, following: false }), ["Paused at 10:00:01, line 1,234", "2,000 lines", "Live"]);
  assert.deepEqual(statusTexts({ ...status, following: false, first: undefined, total: 1, stale: true }), ["Paused", "1 line", "Not live"]);
  assert.deepEqual(statusTexts({ ...status, ended: true, searching: true }), ["Searching…", "2,000 lines", "End of log"]);
  assert.deepEqual(statusTexts({ ...status, stoppedAt: 1204000 })[1], "Search stopped at line 1,204,000");
  assert.deepEqual(statusTexts({ ...status, ended: true, following: false, partly: true })[0], "At 10:00:01, line 1,234");
});

test("of a job with many attempts the newest are shown, at least one", () => {
  assert.deepEqual(attemptsShown(3, 1), [1, 2, 3]);
  assert.deepEqual(attemptsShown(100, 4), Array.from({ length: 10 }, (_, at) => 91 + at));
  assert.deepEqual(attemptsShown(5, 1000), [5]);
  assert.deepEqual(attemptsShown(0, 1).length, 1);
});

function counted(log: FakeLog, ...answers: Partial<LogLevels>[]): { survey: Survey; asked: () => number } {
  let asked = 0;
  const ask = (): Promise<LogLevels> => {
    const answer = answers[Math.min(asked, answers.length - 1)];
    asked += 1;
    return Promise.resolve({ warnings: 0, errors: 0, first_error: null, errors_at: [], counted: 0, complete: true, total: log.total, ...answer });
  };
  const lines = { get total() { return log.total; }, get: (n: number) => log.get(n), levelsPath: "" }; // prettier-ignore
  return { survey: new Survey(lines, () => undefined, ask), asked: () => asked };
}

const settled = (): Promise<void> => new Promise((done) => setTimeout(done));

test("the server counts what is stored in one request, the page what comes later", async () => {
  const log = new FakeLog();
  log.total = 1_000_000;
  const { survey, asked } = counted(log, { warnings: 7, errors: 2, errors_at: [10, 20], counted: 1_000_000 });
  survey.update();
  await settled();
  log.add("warning: x", "error: y", ...traceback(3));
  survey.update();
  assert.deepEqual([survey.warnings, survey.errors, survey.places, asked()], [8, 3, [10, 20, 1_000_002], 1]);
});

test("lines that are not in memory are counted by the server again", async () => {
  const log = new FakeLog().add("ok");
  const { survey, asked } = counted(log, { counted: 1 }, { errors: 1, errors_at: [5], counted: 9 });
  survey.update();
  await settled();
  log.total = 9;
  survey.update();
  await settled();
  assert.deepEqual([survey.errors, survey.known, asked()], [1, true, 2]);
});

test("the lines of a level come from the server, then from what is read", async () => {
  const log = new FakeLog();
  log.total = 500_000;
  const asked: string[] = [];
  const lines = { stream: log.stream, path: "/logs?learner=0", closed: false, changed: () => undefined, get: (n: number) => log.get(n), get total() { return log.total; } }; // prettier-ignore
  const found = { lines: [{ n: 7, t: "", text: "ERROR: x", level: "error", part: false }], next: 500_000, more: false } as unknown as LogPage;
  const marked = new Marked(lines, "error", (path) => (asked.push(path), Promise.resolve(found)));
  assert.deepEqual(marked.take(), []);
  assert(marked.waiting);
  await settled();
  log.add("fine", "ERROR: later", "WARNING: no");
  assert.deepEqual(marked.take().map((line) => line.n), [7, 500_002]);
  assert.deepEqual([asked.length, marked.waiting], [1, false]);
  assert(asked[0]?.includes("level=error"));
});

test("keys do what the help says, and nothing with a modifier held", () => {
  const done: string[] = [];
  const actions = Object.fromEntries(Object.keys(KEYS.log).map((name) => [name, () => void done.push(name)])) as unknown as KeyActions;
  const press = (key: string, more = {}, isFinding = false): boolean => {
    const act = actionOf({ key, ctrlKey: false, metaKey: false, altKey: false, shiftKey: false, ...more }, isFinding, actions);
    act?.();
    return act !== undefined;
  };
  for (const key of ["f", "G", "g", "PageUp", "n", "N", "/", "y"]) assert(press(key), key);
  assert(press("f", { ctrlKey: true }));
  assert.deepEqual(done, ["follow", "end", "start", "pageUp", "next", "previous", "find", "copy", "find"]);
  assert(!press("f", { ctrlKey: true }, true), "in the search field: the browser's own search");
  for (const more of [{ ctrlKey: true }, { altKey: true }, { metaKey: true }]) assert(!press("n", more));
  for (const key of ["q", "toString", "constructor"]) assert(!press(key), key);
});
