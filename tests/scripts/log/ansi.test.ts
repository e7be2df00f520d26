import assert from "node:assert/strict";
import { test } from "node:test";
import { cutAtHits, cutAtLinks, pieces, plain } from "../../../static/src/ts/log/ansi";

const text = (line: string): string => pieces(line).map((piece) => piece.text).join("");

test("a line without escapes is one piece without classes", () => {
  assert.deepEqual(pieces("step 1"), [{ text: "step 1", classes: [] }]);
  assert.deepEqual(pieces(""), []);
});

test("a color ends at its reset", () => {
  assert.deepEqual(pieces("\x1b[31mred\x1b[0m plain"), [{ text: "red", classes: ["ansi-1"] }, { text: " plain", classes: [] }]);
  assert.deepEqual(pieces("\x1b[31mred\x1b[m plain").map((piece) => piece.classes), [["ansi-1"], []]);
});

test("a color that is never reset goes to the end of the line", () => {
  assert.deepEqual(pieces("a\x1b[32mb"), [{ text: "a", classes: [] }, { text: "b", classes: ["ansi-2"] }]);
});

test("bright colors are shown as their plain ones, bold and underline beside them", () => {
  assert.deepEqual(pieces("\x1b[1;4;91mx")[0]?.classes, ["ansi-1", "ansi-bold", "ansi-underlined"]);
  assert.deepEqual(pieces("\x1b[90mx")[0]?.classes, ["ansi-8"]);
});

test("a color of its own is passed on as numbers", () => {
  assert.deepEqual(pieces("\x1b[38;2;1;2;3mx"), [{ text: "x", classes: [], rgb: "1, 2, 3" }]);
});

test("titles, hyperlinks and cursor moves are dropped", () => {
  assert.equal(text("\x1b]0;title\x07a\x1b]8;;http://bad\x1b\\b\x1b[2Kc\x1b[10;5Hd\x1b[?25le"), "abcde");
});

test("an unfinished escape does not hide the line", () => {
  assert(text("step 1\x1b").startsWith("step 1"));
});

test("control characters are shown as symbols", () => {
  assert.equal(text("a\x00b\x08c\x7fd"), "a␀b␈c␡d");
});

test("characters that reorder text are replaced", () => {
  assert.equal(text("user\u202etxt.exe"), "user\ufffdtxt.exe");
});

test("markup stays text", () => {
  assert.equal(text("<script>alert(1)</script>"), "<script>alert(1)</script>");
  assert.equal(text("\x1b[31m<b>&amp;"), "<b>&amp;");
});

test("plain text has no escapes", () => {
  assert.equal(plain("\x1b[1;31mError\x1b[0m: \x1b]0;t\x07no"), "Error: no");
});

test("a line of a million characters is read within a second", () => {
  const line = "\x1b[31mx\x1b[0my".repeat(100_000);
  const began = Date.now();
  assert.equal(plain(line).length, 200_000);
  pieces("a".repeat(1_000_000));
  assert(Date.now() - began < 1000);
});

test("links are cut out of the text around them", () => {
  assert.deepEqual(cutAtLinks("see https://a.b/c?d=1, or (http://e.f)"), ["see ", "https://a.b/c?d=1,", " or (", "http://e.f", ")"]);
  assert.deepEqual(cutAtLinks("javascript:alert(1)"), ["javascript:alert(1)"]);
  assert.deepEqual(cutAtLinks(""), [""]);
});

test("hits are found in upper and lower case", () => {
  assert.deepEqual(cutAtHits("Error: no error", "ERROR"), ["", "Error", ": no ", "error", ""]);
  assert.deepEqual(cutAtHits("text", ""), ["text"]);
  assert.deepEqual(cutAtHits("text", "none"), ["text"]);
});

test("what is searched for is no pattern", () => {
  assert.deepEqual(cutAtHits("a.c abc [x]", "a.c"), ["", "a.c", " abc [x]"]);
  assert.deepEqual(cutAtHits("cost $5 (x|y)", "(x|y)"), ["cost $5 ", "(x|y)", ""]);
});

test("a character whose lower case is longer does not shift the hits after it", () => {
  assert.deepEqual(cutAtHits("İİ loss", "loss"), ["İİ ", "loss", ""]);
});
