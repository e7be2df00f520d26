import assert from "node:assert/strict";
import { test } from "node:test";
import { changed, searchOf, settingsOf } from "../../../static/src/ts/chart/settings";

test("an address without settings has the defaults", () => {
  assert.deepEqual(settingsOf(""), { x: "step", smooth: 0, log: false, clip: false, delta: false, find: "", zoom: null });
});

test("settings survive their address", () => {
  for (const settings of [
    { x: "time", smooth: 0.6, log: true, clip: true, delta: false, find: "val/loss", zoom: [1.5, 20] },
    { x: "step", smooth: 0, log: false, clip: false, delta: true, find: "", zoom: [-5, -2] },
    { x: "relative", smooth: 0.99, log: false, clip: false, delta: false, find: "ä&b=c", zoom: null },
  ] as const) {
    assert.deepEqual(settingsOf(searchOf({ ...settings, zoom: settings.zoom && [...settings.zoom] }, "")), settings);
  }
});

test("a zoom of seconds since 1970 keeps its seconds", () => {
  const zoom: [number, number] = [1_763_912_345.25, 1_763_912_375.75];
  const { zoom: read } = settingsOf(searchOf({ ...settingsOf(""), x: "time", zoom }, ""));
  assert(read && Math.abs(read[0] - zoom[0]) < 0.1 && Math.abs(read[1] - zoom[1]) < 0.1);
});

test("a zoom of tiny or huge numbers is read again", () => {
  for (const zoom of [[1e-9, 3e-9], [1e22, 3e22]] as [number, number][]) {
    const { zoom: read } = settingsOf(searchOf({ ...settingsOf(""), zoom }, ""));
    assert(read && Math.abs(read[0] / zoom[0] - 1) < 0.01 && Math.abs(read[1] / zoom[1] - 1) < 0.01);
  }
});

test("what cannot be read is the default", () => {
  assert.deepEqual(settingsOf("?x=epoch&smooth=much&log=yes&zoom=1.2.3-4"), settingsOf(""));
});

test("smoothing is between 0 and 0.999", () => {
  assert.equal(settingsOf("?smooth=7").smooth, 0.999);
  assert.equal(settingsOf("?smooth=-1").smooth, 0);
  assert.equal(settingsOf("?smooth=NaN").smooth, 0);
});

test("other parts of the address stay", () => {
  assert.equal(searchOf({ ...settingsOf(""), log: true }, "?learner=1&zoom=1-2"), "?learner=1&log=1");
  assert.equal(searchOf(settingsOf(""), "?log=1"), "");
});

test("another x axis ends the zoom, the same one keeps it", () => {
  const zoomed = { ...settingsOf(""), zoom: [1, 2] as [number, number] };
  assert.equal(changed(zoomed, { x: "time" }).zoom, null);
  assert.deepEqual(changed(zoomed, { x: "step", log: true }).zoom, [1, 2]);
});
