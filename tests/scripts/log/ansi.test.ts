import assert from "node:assert/strict";
import { test } from "node:test";
import { contrast } from "../../../static/src/ts/log/sgr";
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

test("256 colors are the named ones, a cube and grays", () => {
  assert.deepEqual(pieces("\x1b[38;5;1mx")[0]?.classes, ["ansi-1"]);
  assert.equal(pieces("\x1b[38;5;208mx")[0]?.rgb, "255, 135, 0");
  assert.equal(pieces("\x1b[38:5:240mx")[0]?.rgb, "88, 88, 88");
  assert.equal(pieces("\x1b[38:2::9:8:7mx")[0]?.rgb, "9, 8, 7");
  assert.deepEqual(pieces("\x1b[38;5;208;1mx")[0]?.classes, ["ansi-bold"]);
});

test("a background is shown with a text color that is readable on it", () => {
  const fills = (line: string) => pieces(line).map((piece) => piece.fill);
  assert.deepEqual(fills("\x1b[41mx"), [{ back: "205, 0, 0", text: "255, 255, 255" }]);
  assert.deepEqual(fills("\x1b[30;43mx"), [{ back: "205, 205, 0", text: "0, 0, 0" }]);
  assert.deepEqual(fills("\x1b[37;47mx"), [{ back: "229, 229, 229", text: "0, 0, 0" }]);
  for (let index = 0; index < 256; index += 1)
    for (let front = 0; front < 16; front += 1) {
      const fill = fills(`\x1b[38;5;${front};48;5;${index}mx`)[0];
      assert(fill && contrast(fill.back.split(", ").map(Number), fill.text.split(", ").map(Number)) >= 4.5, `${front} on ${index}`);
    }
});

test("reverse swaps text and background, and ends alone", () => {
  assert.deepEqual(pieces("\x1b[7ma\x1b[27mb"), [{ text: "a", classes: ["ansi-reverse"] }, { text: "b", classes: [] }]);
  assert.deepEqual(pieces("\x1b[31;7mx")[0]?.fill, { back: "205, 0, 0", text: "255, 255, 255" });
  assert.deepEqual(pieces("\x1b[44;7mx")[0]?.classes, ["ansi-reverse"]);
});

test("a partial reset ends what it names and nothing else", () => {
  const looks = pieces("\x1b[1;3;4;9;31;42ma\x1b[22mb\x1b[23mc\x1b[24md\x1b[29me\x1b[49mf\x1b[39mg");
  assert.deepEqual(looks.map((piece) => piece.classes), [
    ["ansi-bold", "ansi-italic", "ansi-underlined", "ansi-struck"], ["ansi-italic", "ansi-underlined", "ansi-struck"],
    ["ansi-underlined", "ansi-struck"], ["ansi-struck"], [], ["ansi-1"], [],
  ]); // prettier-ignore
  assert.deepEqual(looks.map((piece) => Boolean(piece.fill)), [true, true, true, true, true, false, false]);
  assert.deepEqual(pieces("\x1b[1;2ma\x1b[22mb\x1b[4:3mc\x1b[4:0md").map((piece) => piece.classes), [["ansi-bold", "ansi-dim"], [], ["ansi-underlined"], []]);
});

test("a sequence whose end is still to come is not shown, and nothing is invented for it", () => {
  for (const part of ["\x1b", "\x1b[", "\x1b[38;5;2", "\x1b]0;a tit"]) assert.deepEqual(pieces(`ok${part}`), [{ text: "ok", classes: [] }]);
  assert.equal(plain("ok\x1b[38;5"), "ok");
  assert.deepEqual(pieces("\x1b[38;5mx\x1b[38;9my\x1b[999mz").map((piece) => piece.classes), [[], [], []]);
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
