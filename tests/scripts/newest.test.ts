import assert from "node:assert/strict";
import { test } from "node:test";
import { NewestValues } from "../../static/src/ts/newest";

const point = (n: number, value: number | string, more: { step?: number; rank?: number; attempt?: number } = {}) => ({
  n,
  name: "loss",
  value,
  step: n,
  rank: 0,
  attempt: 1,
  ...more,
});

function rendered(seq: number, last: number | string, rank = 0): NewestValues {
  const newest = new NewestValues();
  newest.render({ seq, values: { loss: { last, step: seq, rank } } });
  return newest;
}

test("a name that nothing was reported of has no value", () => {
  assert.equal(new NewestValues().of("loss"), undefined);
});

test("the server's value counts until a point comes", () => {
  const newest = rendered(10, 0.5);
  assert.equal(newest.of("loss")?.value, 0.5);
  newest.add(point(11, 0.4));
  assert.deepEqual(newest.of("loss"), { value: 0.4, step: 11, rank: 0, attempt: 1, n: 11 });
});

test("a point that the server's value already has in it changes nothing", () => {
  const newest = rendered(10, 0.5);
  newest.add(point(9, 0.9));
  newest.add(point(10, 0.8));
  assert.equal(newest.of("loss")?.value, 0.5);
});

test("a page that is older than the points received since changes nothing", () => {
  const newest = rendered(10, 0.5);
  newest.add(point(20, 0.2));
  newest.render({ seq: 15, values: { loss: { last: 0.3, step: 15 } } });
  assert.equal(newest.of("loss")?.value, 0.2);
  newest.render({ seq: 25, values: { loss: { last: 0.1, step: 25 } } });
  assert.equal(newest.of("loss")?.value, 0.1);
});

test("NaN is a value like any other", () => {
  const newest = rendered(10, 0.5);
  newest.add(point(11, "NaN"));
  assert.equal(newest.of("loss")?.value, "NaN");
});

test("a lower step in a new attempt is newer", () => {
  const newest = new NewestValues();
  newest.add(point(1, 0.5, { step: 100 }));
  newest.add(point(2, 0.7, { step: 50, attempt: 2 }));
  assert.equal(newest.of("loss")?.step, 50);
});

test("what an earlier attempt still sends does not replace a newer attempt's value", () => {
  const newest = new NewestValues();
  newest.add(point(1, 0.5, { attempt: 2 }));
  newest.add(point(2, 0.9, { attempt: 1 }));
  assert.equal(newest.of("loss")?.value, 0.5);
});

test("rank 0 represents the gang, another rank only until rank 0 reports", () => {
  const newest = new NewestValues();
  newest.add(point(1, 0.1, { rank: 2 }));
  newest.add(point(2, 0.2, { rank: 1 }));
  newest.add(point(3, 0.3, { rank: 2 }));
  assert.equal(newest.of("loss")?.value, 0.2);
  newest.add(point(4, 0.4, { rank: 0 }));
  newest.add(point(5, 0.5, { rank: 1 }));
  assert.equal(newest.of("loss")?.value, 0.4);
});

test("each name has its own newest value", () => {
  const newest = rendered(3, 1);
  newest.add({ ...point(7, 2), name: "accuracy" });
  assert.equal(newest.of("loss")?.value, 1);
  assert.equal(newest.of("accuracy")?.value, 2);
  assert.deepEqual([...newest.names()], ["loss", "accuracy"]);
});
