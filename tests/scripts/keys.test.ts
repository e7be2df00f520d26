import assert from "node:assert/strict";
import { test } from "node:test";
import { KEYS, actionIn } from "../../static/src/ts/keys";
import { PARTS } from "../../static/src/ts/sheet";
import { SCOPES } from "../../static/src/ts/shortcuts";

const press = (key: string, more = {}) => ({ key, ctrlKey: false, metaKey: false, altKey: false, shiftKey: false, ...more });

test("every key that a part of a page handles is on the sheet, in a scope that lists nothing else", () => {
  for (const [part, actions] of Object.entries(KEYS)) {
    const keys = Object.values(actions).flat();
    const scopes = PARTS.filter(({ bindings }) => {
      const listed = bindings.flatMap((one) => one.keys);
      return keys.every((key) => listed.includes(key)) && listed.length === keys.length;
    });
    assert.equal(scopes.length, 1, part);
  }
});

test("no key does two things in one place", () => {
  for (const { title, bindings } of [...SCOPES, ...PARTS]) {
    const keys = bindings.flatMap((one) => one.keys);
    assert.equal(new Set(keys).size, keys.length, title);
  }
});

test("a modifier is another key, except Shift where it makes another character", () => {
  assert.equal(actionIn(KEYS.chart, press("ArrowLeft")), "back");
  assert.equal(actionIn(KEYS.chart, press("ArrowLeft", { shiftKey: true })), "back10");
  assert.equal(actionIn(KEYS.chart, press("+", { shiftKey: true })), "zoomIn");
  assert.equal(actionIn(KEYS.chart, press("a", { ctrlKey: true })), undefined);
  assert.equal(actionIn(KEYS.log, press("f", { metaKey: true })), "find");
  assert.equal(actionIn(KEYS.log, press("f", { altKey: true })), undefined);
  assert.equal(actionIn(KEYS.log, press("toString")), undefined);
});
