import assert from "node:assert/strict";
import { test } from "node:test";
import { leaveOutUnchanged } from "../../static/src/ts/quota-draft";

test("a draft posts its changes, each with what was seen, and nothing else of the matrix", () => {
  const form = new FormData();
  for (let tenant = 0; tenant < 40; tenant++) {
    form.set(`limit:tenant-${tenant}:cpu`, "8");
    form.set(`if:tenant-${tenant}:cpu`, "8");
    form.set(`term:tenant-${tenant}:cpu:weight`, "1");
    form.set(`was:tenant-${tenant}:cpu:weight`, "1");
    form.set(`term:tenant-${tenant}::cohort`, "");
    form.set(`was:tenant-${tenant}::cohort`, "");
  }
  form.set("limit:tenant-1:cpu", "6");
  form.set("term:tenant-2:cpu:weight", "");
  form.set("term:tenant-3::cohort", "research");
  form.set("reason", "One grant");
  leaveOutUnchanged(form);
  assert.deepEqual(Object.fromEntries(form), {
    "limit:tenant-1:cpu": "6",
    "if:tenant-1:cpu": "8",
    "term:tenant-2:cpu:weight": "",
    "was:tenant-2:cpu:weight": "1",
    "term:tenant-3::cohort": "research",
    "was:tenant-3::cohort": "",
    reason: "One grant",
  });
});
