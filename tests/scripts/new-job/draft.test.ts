import assert from "node:assert/strict";
import { test } from "node:test";
import { withoutValues } from "../../../static/src/ts/new-job/draft";

test("a draft keeps the names of env, and none of their values", () => {
  const text = "name: x\nenv:\n  # a key\n  API_KEY: sk-123\n  LONG: |\n    sk-4\n    56\n  N: &n 7\ncommand: python a.py # keep\n";
  const kept = withoutValues(text) ?? "";
  for (const secret of ["sk-123", "sk-4", "56", "7"]) assert(!kept.includes(secret), secret);
  assert(kept.includes("API_KEY:"));
  assert(kept.includes("command: python a.py # keep"));
});

test("a spec without env is kept as it is written", () => {
  const text = "name:   x\ncommand: 'python a.py'\n";
  assert.equal(withoutValues(text), text);
  assert.equal(withoutValues("name:   x\nenv: {}\n"), "name:   x\nenv: {}\n");
});

test("values that the page came with stay", () => {
  const given = 'name: x\nenv: {THREADS: "1", LR: 0.1}\n';
  assert.equal(withoutValues(given.replace("x", "y"), given), given.replace("x", "y"));
  const kept = withoutValues('name: x\nenv: {THREADS: "1", LR: sk-2, KEY: sk-3}\n', given) ?? "";
  assert(kept.includes('THREADS: "1"') && kept.includes("LR") && kept.includes("KEY") && !kept.includes("sk-"), kept);
});

test("env that is no map of values is not kept at all", () => {
  for (const env of ["sk-123", "[sk-123]", "{A: {B: sk-123}}", "{A: [sk-123]}"]) assert(!withoutValues(`name: x\nenv: ${env}\n`)?.includes("sk-123"), env);
});

test("what cannot be read as YAML is not kept: its values cannot be found", () => {
  assert.equal(withoutValues("name: a: b\nenv:\n  KEY: sk-123\n"), null);
  assert.equal(withoutValues("name: x\nenv: {A: sk-1}\nenv: {A: sk-2}\n"), null);
});

test("a value of env that is used elsewhere, or comes from there, is not kept", () => {
  assert.equal(withoutValues('name: x\nenv: {SEED: &s "7"}\ncommand: *s\n'), null);
  assert.equal(withoutValues("command: &s sk-123\nenv: {SEED: *s}\n"), null);
});
