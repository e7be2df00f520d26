import assert from "node:assert/strict";
import { test } from "node:test";
import { live, type Frame, type Watcher } from "../../../static/src/ts/live";
import { firstError } from "../../../static/src/ts/log/errors";
import { Finder } from "../../../static/src/ts/log/finder";
import { BLOCK, Lines, type LogPage } from "../../../static/src/ts/log/lines";
import { Search } from "../../../static/src/ts/log/search";

/** The server of one log: what it has stored, and every request that it answered. */
class Store {
  readonly requests: URLSearchParams[] = [];
  readonly watchers: Watcher[] = [];
  stopped = 0;
  sealed = false;
  refuse: number[] = []; // status codes of the next answers
  gap: [number, number] | null = null;

  constructor(readonly texts: string[]) {
    globalThis.fetch = ((address: string) => Promise.resolve(this.answer(new URLSearchParams(address.split("?")[1])))) as typeof fetch;
    live.watch = (_ch, watcher) => {
      this.watchers.push(watcher);
      return () => void (this.stopped += 1);
    };
  }

  frame(first: number, more: Partial<Frame> = {}): void {
    const items = this.texts.slice(first - 1).map((text, at) => ({ n: first + at, t: "", text }));
    for (const watcher of this.watchers) watcher.frame({ ch: "", from: first, to: this.texts.length, items, ...more });
  }

  private answer(query: URLSearchParams): Response {
    this.requests.push(query);
    const status = this.refuse.shift();
    if (status) return new Response(JSON.stringify({ title: `refused ${status}` }), { status });
    const number = (name: string, or: number): number => Number(query.get(name) ?? or);
    const sought = query.get("q")?.toLowerCase();
    const after = query.has("tail") ? Math.max(0, this.texts.length - number("tail", 0)) : number("after", 0);
    const isKept = (n: number): boolean => !this.gap || n < this.gap[0] || n > this.gap[1];
    const found = this.texts
      .map((text, at) => ({ n: at + 1, t: "", text }))
      .filter(({ n, text }) => n > after && isKept(n) && (!sought || text.toLowerCase().includes(sought)));
    const lines = found.slice(0, number("limit", 10_000));
    const last = found.length > lines.length ? (lines.at(-1)?.n ?? 0) : this.texts.length;
    const gaps = this.gap ? [{ from: this.gap[0], to: this.gap[1] }] : [];
    const page: LogPage = { attempt: 1, learner: 0, lines, gaps, next: last, more: found.length > lines.length, sealed: this.sealed, total: this.texts.length };
    return new Response(JSON.stringify(page));
  }
}

const texts = (count: number, of = (n: number): string => `line ${n}`): string[] => Array.from({ length: count }, (_, at) => of(at + 1));
const log = (): Lines => new Lines({ job: "j", attempt: 1, rank: 0 });

test("a log is opened at its end, and followed from there", async () => {
  const store = new Store(texts(500));
  const lines = log();
  await lines.open(100);
  assert.equal(lines.total, 500);
  assert.equal(lines.get(401)?.text, "line 401");
  assert.equal(lines.get(400), undefined);
  assert.equal(store.watchers[0]?.cursor(), 500);
  store.texts.push("line 501");
  store.frame(501);
  assert.equal(lines.get(501)?.text, "line 501");
  assert.equal(store.watchers[0]?.cursor(), 501);
  lines.close();
  assert.equal(store.stopped, 1);
});

test("a log that is opened twice is fetched and followed once", async () => {
  const store = new Store(texts(5));
  const lines = log();
  await Promise.all([lines.open(10), lines.open(10)]);
  await lines.open(10);
  assert.deepEqual([store.requests.length, store.watchers.length], [1, 1]);
});

test("a sealed log is not followed", async () => {
  const store = new Store(texts(5));
  store.sealed = true;
  const lines = log();
  await lines.open(10);
  assert(lines.sealed);
  assert.equal(store.watchers.length, 0);
});

test("a log that is sealed while it is followed leaves its channel and asks for its end", async () => {
  const store = new Store(texts(5));
  const lines = log();
  await lines.open(10);
  store.sealed = true;
  store.frame(6, { sealed: true });
  assert.equal(store.stopped, 1);
  await new Promise((done) => setTimeout(done, 5));
  assert.equal(store.requests.at(-1)?.get("tail"), "1");
  assert.equal(store.watchers.length, 1);
});

test("the unfinished last line is shown until it is complete", async () => {
  const store = new Store(texts(1));
  const lines = log();
  await lines.open(10);
  store.frame(2, { tail: { n: 2, t: "", text: "hal" } });
  assert.equal(lines.tail?.text, "hal");
  store.texts.push("half");
  store.frame(2, { tail: null });
  assert.equal(lines.tail, null);
  assert.equal(lines.get(2)?.text, "half");
});

test("a line that comes twice stays as it is", async () => {
  const store = new Store(texts(3));
  const lines = log();
  await lines.open(10);
  const before = lines.get(2);
  store.frame(1);
  assert.equal(lines.get(2), before);
});

test("a block is fetched once, however many of its lines are needed", async () => {
  const store = new Store(texts(2 * BLOCK));
  const lines = log();
  await lines.open(1);
  await Promise.all([1, 2, 500, BLOCK].map((n) => lines.need(n)));
  assert.equal(store.requests.length, 2);
  assert.equal(lines.get(BLOCK)?.text, `line ${BLOCK}`);
});

test("lines that the server does not have are lost, not fetched forever", async () => {
  const store = new Store(texts(50));
  store.gap = [10, 20];
  const lines = log();
  await lines.open(1);
  await lines.need(1);
  assert(lines.isLost(10) && lines.isLost(20));
  assert(!lines.isLost(9) && !lines.isLost(21));
});

test("far blocks are forgotten, but neither those near, nor the newest, nor those that are drawn", async () => {
  new Store(texts(10 * BLOCK));
  const lines = log();
  await lines.open(1);
  for (let block = 0; block < 10; block += 1) await lines.need(block * BLOCK + 1);
  lines.forget(1, 5, [5 * BLOCK + 1]);
  const kept = Array.from({ length: 10 }, (_, block) => lines.get(block * BLOCK + 1) !== undefined);
  assert.deepEqual(kept, [true, true, false, false, false, true, false, false, true, true]);
});

test("a refused log says why and is not asked for again, one that cannot be reached is", async () => {
  const store = new Store(texts(5));
  store.refuse = [404];
  const refused = log();
  await refused.open(10);
  assert.equal(refused.problem, "refused 404");
  assert(!refused.answered);
  store.refuse = [503];
  const busy = log();
  await busy.open(10);
  assert.equal(busy.problem, "refused 503");
  await busy.open(10); // as the retry does
  assert.equal(busy.problem, "");
  assert.equal(busy.total, 5);
  refused.close();
  busy.close();
});

test("a traceback that was loaded from its end gets its level once its first line comes", async () => {
  new Store(["Traceback (most recent call last):", ...texts(20, (n) => `  File ${n}`), "KeyError"]);
  const lines = log();
  await lines.open(10);
  assert.equal(lines.get(15)?.level, 0);
  await lines.need(1);
  assert.equal(lines.get(15)?.level, lines.get(1)?.level);
  assert.deepEqual(lines.heads, [1]);
});

test("the first error comes from the server's index, which may need several requests", async () => {
  const answers = [{ first_error: null, complete: false }, { first_error: 123, complete: false }];
  globalThis.fetch = (() => Promise.resolve(new Response(JSON.stringify(answers.shift())))) as typeof fetch;
  assert.equal(await firstError(log()), 123);
  globalThis.fetch = (() => Promise.resolve(new Response(JSON.stringify({ first_error: null, complete: true })))) as typeof fetch;
  assert.equal(await firstError(log()), 0);
});

test("a search finds all stored lines and those that come later", async () => {
  const store = new Store(texts(2500, (n) => (n % 2 ? `Loss ${n}` : "ok")));
  const lines = log();
  await lines.open(1);
  const search = new Search("loss", [lines], () => undefined);
  await search.run();
  assert.equal(search.matches.length, 1250);
  assert(!search.stoppedAt && !search.running);
  store.texts.push("the LOSS again", "ok");
  store.frame(2501);
  search.update();
  search.update();
  assert.equal(search.matches.length, 1251);
  assert.equal(search.matches.at(-1), "1:0:2501");
});

test("a search stops after a bounded time, says where, and resumes there", async () => {
  const store = new Store(texts(5000, (n) => (n % 2 ? "hit" : "ok")));
  const lines = log();
  await lines.open(1);
  const { now } = performance;
  let clock = 0;
  performance.now = () => (clock += 4000);
  const search = new Search("hit", [lines], () => undefined);
  await search.run();
  performance.now = now;
  assert.equal(search.stoppedAt, 3999);
  assert.equal(search.matches.length, 2000);
  store.texts.push("hit");
  store.frame(5001);
  search.update(); // they come when the search gets there
  assert.equal(search.matches.length, 2000);
  await search.run();
  assert.deepEqual([search.matches.length, new Set(search.matches).size, search.stoppedAt], [2501, 2501, 0]);
});

test("a search that is stopped keeps what it found and sends nothing more", async () => {
  const store = new Store(texts(5000, () => "hit"));
  const lines = log();
  await lines.open(1);
  const search = new Search("hit", [lines], () => search.matches.length >= 1000 && search.stop());
  await search.run();
  assert.deepEqual([search.matches.length, search.stoppedAt, search.failed, search.running], [1000, 1000, false, false]);
  assert.equal(store.requests.filter((query) => query.has("q")).length, 1);
});

test("a search that fails says so", async () => {
  const store = new Store(texts(5));
  const lines = log();
  await lines.open(1);
  store.refuse = [500];
  const search = new Search("x", [lines], () => undefined);
  await search.run();
  assert(search.failed && !search.running);
});

test("the finder starts at the match nearest ahead and goes around", async () => {
  new Store(texts(100, (n) => (n % 10 ? "ok" : "hit")));
  const lines = log();
  await lines.open(1);
  const finder = new Finder(() => undefined);
  assert(await finder.find("hit", [lines], () => ({ attempt: 1, rank: 0, n: 35 })));
  assert.equal(finder.current, "1:0:40");
  assert.equal(finder.count, "4 of 10");
  finder.step(-1);
  assert.equal(finder.current, "1:0:30");
  for (let at = 0; at < 10; at += 1) finder.step(1);
  assert.equal(finder.current, "1:0:30");
});

test("beyond the last match the finder shows the last", async () => {
  new Store(texts(20, (n) => (n === 5 ? "hit" : "ok")));
  const lines = log();
  await lines.open(1);
  const finder = new Finder(() => undefined);
  assert(await finder.find("hit", [lines], () => ({ attempt: 1, rank: 0, n: 10 })));
  assert.equal(finder.current, "1:0:5");
  assert(!(await finder.find("none", [lines], () => ({ attempt: 1, rank: 0, n: 10 }))));
  assert.equal(finder.count, "0");
  assert(!finder.step(1));
  assert(!(await finder.find("", [lines], () => ({ attempt: 1, rank: 0, n: 10 }))));
  assert.equal(finder.count, "");
});

test("of two searches only the later counts", async () => {
  new Store(texts(20, (n) => `line ${n}`));
  const lines = log();
  await lines.open(1);
  const finder = new Finder(() => undefined);
  const place = () => ({ attempt: 1, rank: 0, n: 1 });
  const [first, second] = await Promise.all([finder.find("line", [lines], place), finder.find("line 7", [lines], place)]);
  assert.deepEqual([first, second], [false, true]);
  assert.equal(finder.current, "1:0:7");
});
