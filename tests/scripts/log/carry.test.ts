import assert from "node:assert/strict";
import { test } from "node:test";
import { pieces, styleAfter } from "../../../static/src/ts/log/ansi";
import { carry } from "../../../static/src/ts/log/carry";
import { PLAIN } from "../../../static/src/ts/log/sgr";
import type { Line } from "../../../static/src/ts/log/lines";

/** Lines that come in any order, each with what it looks like. */
class Log {
  private readonly lines = new Map<number, Line>();

  put(n: number, text: string, cut = 0): this {
    this.lines.set(n, { n, text, cut } as Line);
    carry((at) => this.lines.get(at), n);
    return this;
  }

  classes(n: number): string[] {
    const line = this.lines.get(n) as Line;
    return pieces(line.text, line.style).flatMap((piece) => piece.classes);
  }

  styleOf(n: number): unknown {
    return this.lines.get(n)?.style;
  }
}

test("a color lasts from line to line until it is reset", () => {
  const log = new Log().put(1, "\x1b[1;31mone").put(2, "two").put(3, "").put(4, "four\x1b[22m").put(5, "five\x1b[0m!").put(6, "six");
  assert.deepEqual([1, 2, 4, 5, 6].map((n) => log.classes(n)), [["ansi-1", "ansi-bold"], ["ansi-1", "ansi-bold"], ["ansi-1", "ansi-bold"], ["ansi-1"], []]);
});

test("lines that were there already change with those that come before them, as far as the color lasts", () => {
  const log = new Log();
  for (const n of [5, 6]) log.put(n, n === 6 ? "\x1b[msix" : "five");
  log.put(7, "seven");
  const before = log.styleOf(7);
  assert.deepEqual(log.classes(5), []);
  log.put(4, "\x1b[32mfour");
  assert.deepEqual([log.classes(5), log.classes(6)], [["ansi-2"], []]);
  assert.equal(log.styleOf(7), before, "nothing changed behind the reset");
});

test("what a line that was cut ends with is not known", () => {
  assert.deepEqual(new Log().put(1, "\x1b[31mlong", 90_000).put(2, "two").classes(2), []);
});

test("a line without sequences ends as it begins", () => {
  const style = styleAfter("\x1b[44mx");
  assert.equal(styleAfter("plain", style), style);
  assert.equal(styleAfter("plain"), PLAIN);
  assert.deepEqual(styleAfter("\x1b]8;;http://x\x07\x1b[31my").fg, 1);
});
