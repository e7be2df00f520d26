// What the new-job page says of names: for tests that compare it with the server (tests/portal/pages/test_code_names.py).
import { readFileSync } from "node:fs";
import { Names, type Rules } from "../../../static/src/ts/new-job/names";

const { rules, archives, texts } = JSON.parse(readFileSync("/dev/stdin", "utf8")) as { rules: Rules; archives: string[][]; texts: string[] };
const problems = archives.map((paths) => {
  const names = new Names(rules);
  return paths.map((path) => names.problem(path)?.why ?? null);
});
const folded = texts.map((text) => new Names(rules).folded(text));
console.log(JSON.stringify({ problems, folded }));
