import assert from "node:assert/strict";
import { test } from "node:test";
import { counted, duration, hours, metric, past, span, thousands } from "../../static/src/ts/format";
import { filesize } from "../../static/src/ts/new-job/filesize";

const each = <Value>(format: (value: Value) => string, cases: [Value, string][]): void => {
  for (const [value, text] of cases) assert.equal(format(value), text, String(value));
};

test("durations have two units, seconds only where they matter", () => {
  each(duration, [[0, "0 s"], [-5, "0 s"], [59.9, "59 s"], [60, "1 min 00 s"], [599, "9 min 59 s"], [600, "10 min"], [3600, "1 h 00 min"], [3660, "1 h 01 min"], [86_400, "1 d 0 h"], [100_000, "1 d 3 h"]]);
});

test("an age has one unit", () => {
  each(past, [[0, "0 s ago"], [-3, "0 s ago"], [59, "59 s ago"], [119, "1 min ago"], [7199, "1 h ago"], [200_000, "2 d ago"]]);
});

test("a range of time has one unit and rough ends", () => {
  const cases: [number, number, string][] = [[0, 30, "under 1 min"], [60, 60, "1 min"], [1500, 2400, "25–40 min"], [5400, 10_800, "1.5–3 h"], [480, 480, "8 min"], [0, 120, "0–2 min"], [172_800, 259_200, "2–3 d"]];
  for (const [low, high, text] of cases) assert.equal(span(low, high), text);
});

test("counts have separators and a plural", () => {
  assert.equal(thousands(1_234_567), "1,234,567");
  each((count: number) => counted(count, "line"), [[0, "0 lines"], [1, "1 line"], [2000, "2,000 lines"]]);
});

test("bytes are in the unit that fits", () => {
  each(filesize, [[0, "0 B"], [1023, "1023 B"], [1024, "1.0 KiB"], [2 ** 28, "256.0 MiB"], [2 ** 30, "1.0 GiB"], [50 * 2 ** 40, "50.0 TiB"]]);
});

test("hours of a short job are not rounded to nothing", () => {
  each(hours, [[0, "—"], [0.001, "< 0.01"], [0.25, "0.25"], [0.999, "1.0"], [12.34, "12.3"], [1234.5, "1,234.5"]]);
});

test("a metric has four digits, words for what is not finite, and a dash for nothing", () => {
  each(metric, [[null, "—"], [undefined, "—"], ["NaN", "NaN"], ["-Infinity", "-Infinity"], [0, "0"], [-0.123456, "-0.1235"], [1234.56, "1,235"], [0.00001234, "1.234e-5"], [5e15, "5e+15"], [999.96, "1,000"], [1e-4, "0.0001"]]);
});
