// Run the unit tests of the scripts on Node's own runner: every tests/scripts/**/*.test.ts, bundled so that the sources
// are read as the browser's bundles read them. An argument names a file for the report (JUnit XML).
import { build } from "esbuild";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { tmpdir } from "node:os";

const source = "tests/scripts";
const [report] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), "scripts-"));
try {
  const tests = readdirSync(source, { recursive: true }).filter((name) => name.endsWith(".test.ts"));
  await build({
    entryPoints: tests.map((name) => join(source, name)),
    outbase: source,
    outdir: folder,
    outExtension: { ".js": ".mjs" },
    bundle: true,
    platform: "neutral", // packages as the browser gets them
    mainFields: ["browser", "module", "main"],
    conditions: ["browser"],
    external: ["node:*"],
    format: "esm",
    sourcemap: "inline",
    logLevel: "warning",
  });
  const built = tests.map((name) => join(folder, name.replace(/\.ts$/, ".mjs")));
  const reporters = ["--test-reporter=dot", "--test-reporter-destination=stdout"];
  if (report) reporters.push("--test-reporter=junit", `--test-reporter-destination=${report}`);
  const ran = spawnSync(process.execPath, ["--enable-source-maps", "--test", ...reporters, ...built], { stdio: "inherit" });
  process.exitCode = ran.status ?? 1;
} finally {
  rmSync(folder, { recursive: true, force: true });
}
