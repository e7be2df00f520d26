// Bundle the browser's side: every file in static/src/entries becomes one file of the same name in static/dist.
// Modules that several entries share become chunks of their own, so that a browser loads them once.
import { context, build } from "esbuild";
import { existsSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { buildIcons } from "./icons.mjs";

const sources = "static/src/entries";
const target = "static/dist";
const watching = process.argv.includes("--watch");

const entries = existsSync(sources)
  ? readdirSync(sources).filter((name) => /\.(ts|css)$/.test(name)).map((name) => join(sources, name))
  : [];

const options = {
  entryPoints: entries,
  outdir: target,
  bundle: true,
  splitting: true,
  format: "esm",
  target: ["es2022", "chrome109", "firefox115", "safari16"],
  minify: !watching,
  sourcemap: true,
  chunkNames: "chunks/[name]-[hash]",
  assetNames: "assets/[name]-[hash]",
  loader: { ".woff2": "file", ".svg": "file" },
  legalComments: "linked",
  logLevel: "warning",
};

rmSync(target, { recursive: true, force: true });
buildIcons();
if (watching) {
  await (await context(options)).watch();
  console.log(`Watching ${sources}`);
} else {
  await build(options);
}
