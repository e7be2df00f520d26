// Bundle the browser's side: every file in static/src/entries becomes one file of static/dist. Modules that several entries
// share become chunks of their own, so that a browser loads them once.
//
// Every file has a hash of its content in its name, so that browsers may keep it for good, and stands beside a .gz and a
// .br of itself, so that the web process compresses nothing. manifest.json gives the file of each plain name.
import { context, build } from "esbuild";
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename, join, relative } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
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
  sourcemap: watching,
  metafile: true,
  entryNames: watching ? "[name]" : "[name]-[hash]",
  chunkNames: "chunks/[name]-[hash]",
  assetNames: "assets/[name]-[hash]",
  loader: { ".woff2": "file", ".svg": "file" },
  legalComments: "linked",
  logLevel: "warning",
};

/** Plain name → { file, imports, later }: its file; what it loads with it; what it may load later, each with what that
 * loads with it. */
function manifestOf(outputs, icons) {
  const plain = (path) => relative(target, path);
  const chunks = (path, kind) => outputs[path].imports.filter((one) => one.kind === kind && !one.external).map((one) => one.path);
  const closure = (path, seen = new Set()) => {
    for (const next of chunks(path, "import-statement")) if (!seen.has(next)) closure(next, seen.add(next));
    return seen;
  };
  const found = { "icons.svg": { file: icons, imports: [], later: [] } };
  for (const [path, { entryPoint, inputs }] of Object.entries(outputs)) {
    if (path.endsWith(".map")) continue;
    const [source] = Object.keys(inputs);
    const isEntry = entryPoint?.startsWith(`${sources}/`);
    if (!isEntry && !path.endsWith(".woff2")) continue;
    const name = isEntry ? basename(entryPoint).replace(/\.ts$/, ".js") : basename(source);
    const imports = isEntry ? [...closure(path)] : [];
    const later = new Set([path, ...imports].filter((one) => outputs[one]).flatMap((one) => chunks(one, "dynamic-import")));
    const withImports = [...later].map((one) => [plain(one), [...closure(one)].map(plain)]);
    found[name] = { file: plain(path), imports: imports.map(plain), later: Object.fromEntries(withImports) };
  }
  return found;
}

function compress(folder) {
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile() || !/\.(js|css|svg)$/.test(entry.name)) continue;
    const path = join(entry.parentPath ?? entry.path, entry.name);
    const content = readFileSync(path);
    writeFileSync(`${path}.gz`, gzipSync(content, { level: 9 }));
    writeFileSync(`${path}.br`, brotliCompressSync(content, { params: { [constants.BROTLI_PARAM_SIZE_HINT]: content.length } }));
  }
}

rmSync(target, { recursive: true, force: true });
const icons = buildIcons({ hashed: !watching });
if (watching) {
  await (await context(options)).watch(); // without a manifest, each name is its file
  console.log(`Watching ${sources}`);
} else {
  const { metafile } = await build(options);
  compress(target);
  writeFileSync(join(target, "manifest.json"), `${JSON.stringify(manifestOf(metafile.outputs, icons), null, 1)}\n`);
}
