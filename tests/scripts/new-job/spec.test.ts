import assert from "node:assert/strict";
import { test } from "node:test";
import { diff } from "../../../static/src/ts/new-job/diff";
import { pathOf, Spec } from "../../../static/src/ts/new-job/spec";

const TEXT = `# what we train
name: digits
resources:
  gpus: 2 # enough
env:
  A: "1"
data:
  - path: /a
  - path: /b
`;

const changed = (change: (spec: Spec) => void, text = TEXT): string => {
  const spec = new Spec(text);
  change(spec);
  return spec.toString();
};

test("paths are read as the server writes them", () => {
  assert.deepEqual(pathOf("data[0].path"), ["data", 0, "path"]);
  assert.deepEqual(pathOf('code.files["train.py"]'), ["code", "files", "train.py"]);
  assert.deepEqual(pathOf('code.files["a[0].b"]'), ["code", "files", "a[0].b"]);
  assert.deepEqual(pathOf(""), []);
});

test("a value is written in its place, and comments stay", () => {
  const text = changed((spec) => spec.set(["resources", "gpus"], 4));
  assert.equal(text, TEXT.replace("gpus: 2", "gpus: 4"));
});

test("an empty value removes its key, and the map above it if nothing is left", () => {
  const text = changed((spec) => spec.set(["resources", "gpus"], undefined));
  assert(!text.includes("resources"));
  assert(text.includes("name: digits"));
  assert(changed((spec) => spec.set(["env", "A"], "")).includes("resources"));
});

test("removing what is not there changes nothing", () => {
  assert.equal(changed((spec) => spec.set(["resources", "cpus"], undefined)), TEXT);
  assert.equal(changed((spec) => spec.set(["none", "of", "it"], "")), TEXT);
});

test("a value of a map that the spec does not have makes the map", () => {
  assert.deepEqual(new Spec(changed((spec) => spec.set(["checkpoint", "keep"], 2))).get(["checkpoint"]), { keep: 2 });
});

test("a key without a value, as it is while a person types, becomes a map in its place", () => {
  for (const text of ["name: x\nresources:\nseed: 1\n", "name: x\nresources: 5\nseed: 1\n"]) {
    const spec = new Spec(text);
    spec.set(["resources", "gpus"], 1);
    spec.put(["resources", "memory"], "1Gi");
    assert.deepEqual(spec.toJSON(), { name: "x", resources: { gpus: 1, memory: "1Gi" }, seed: 1 });
    assert(spec.toString().indexOf("resources") < spec.toString().indexOf("seed"));
  }
});

test("a text of several lines is a block, and an empty text stays", () => {
  const text = changed((spec) => spec.put(["code", "files", "main.py"], "a = 1\nb = 2\n"));
  assert(text.includes("main.py: |\n      a = 1\n      b = 2\n"));
  assert.equal(new Spec(changed((spec) => spec.put(["env", "A"], ""))).get(["env", "A"]), "");
});

test("text that looks like a number stays text", () => {
  const text = changed((spec) => spec.put(["env", "B"], "007"));
  assert.equal(new Spec(text).get(["env", "B"]), "007");
});

test("an entry is renamed in its place", () => {
  const text = changed((spec) => spec.rename(["resources", "gpus"], "cpus"));
  assert.equal(text, TEXT.replace("gpus: 2", "cpus: 2"));
  assert.equal(changed((spec) => spec.rename(["resources", "none"], "x")), TEXT);
});

test("entries of a list are read, changed and removed by their index", () => {
  assert.equal(new Spec(TEXT).get(["data", 1, "path"]), "/b");
  const spec = new Spec(changed((one) => one.set(["data", 0], undefined)));
  assert.deepEqual(spec.get(["data"]), [{ path: "/b" }]);
});

test("text that is not a map cannot be read, and says where", () => {
  for (const text of ["", "- a\n", "just text", "a: [1", "a: 1\na: 2\n", "a:\n\tb: 1"]) {
    const spec = new Spec(text);
    assert(!spec.readable, JSON.stringify(text));
    assert(spec.problem && spec.problem.line >= 1 && spec.problem.message, JSON.stringify(text));
  }
  assert.equal(new Spec("a: 1\nb: [1\nc: 2").problem?.line, 3);
  assert.equal(new Spec(TEXT).problem, null);
});

test("a path has the line of its value, a missing one that of the map above", () => {
  const spec = new Spec(TEXT);
  assert.equal(spec.lineOf(["resources", "gpus"], TEXT), 4);
  assert.equal(spec.lineOf(["resources", "none"], TEXT), 4);
  assert.equal(spec.lineOf(["none"], TEXT), 1);
});

test("a path has the place of its key, an entry of a list its own", () => {
  const spec = new Spec(TEXT);
  const at = (path: (string | number)[]): string => TEXT.slice(...(spec.keyAt(path) ?? [0, 0]));
  assert.equal(at(["resources", "gpus"]), "gpus");
  assert.equal(at(["resources", "none"]), "resources");
  assert.equal(at(["data", 1]).trim(), "path: /b");
  assert.equal(spec.keyAt(["none"]), null);
  assert.equal(spec.keyAt([]), null);
});

test("a value of several lines is a block, and is none again with one line", () => {
  const spec = new Spec("name: x\ncommand: python a.py\n");
  spec.set(["command"], "python a.py\npython b.py");
  assert.equal(spec.toString(), "name: x\ncommand: |-\n  python a.py\n  python b.py\n");
  spec.set(["command"], "python b.py");
  assert.equal(spec.toString(), "name: x\ncommand: python b.py\n");
});

test("a spec of ten thousand lines is written within a second", () => {
  const text = `name: x\ncode:\n  files:\n    main.py: |\n${"      print(1)\n".repeat(10_000)}`;
  const began = Date.now();
  changed((spec) => spec.set(["name"], "y"), text);
  assert(Date.now() - began < 1000);
});

test("no name in a spec reaches the prototype of objects", () => {
  const spec = new Spec("name: x\n__proto__:\n  polluted: 1\nenv:\n  __proto__: {polluted: 1}\n  constructor: {prototype: {polluted: 1}}\n");
  spec.set(["env", "__proto__", "more"], "1");
  spec.set(["constructor", "prototype", "more"], "1");
  diff(spec.toJSON(), new Spec("name: y\n").toJSON());
  const empty = {} as { polluted?: unknown; more?: unknown };
  assert.equal(empty.polluted ?? empty.more, undefined);
  assert.equal(new Spec("name: x\n").get(["__proto__"]), undefined);
  assert.equal(new Spec("name: x\n").get(["constructor", "name"]), undefined);
});
