// Build static/dist/icons.svg: one sprite with the Lucide icons named in static/src/icons.txt, and no others.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";

/** Returns the file's name, with a hash of its content if `hashed`. */
export function buildIcons({ list = "static/src/icons.txt", target = "static/dist", hashed = false } = {}) {
  const names = readFileSync(list, "utf8").split("\n").filter(Boolean);
  const symbols = names.map((name) => {
    const source = readFileSync(`node_modules/lucide-static/icons/${name}.svg`, "utf8");
    const shapes = source.replace(/<!--.*?-->/gs, "").replace(/^[\s\S]*?<svg[\s\S]*?>/, "").replace(/<\/svg>\s*$/, "");
    return `<symbol id="${name}" viewBox="0 0 24 24">${shapes.replace(/\s+/g, " ").trim()}</symbol>`;
  });
  const sprite = `<svg xmlns="http://www.w3.org/2000/svg">${symbols.join("")}</svg>\n`;
  const hash = createHash("sha256").update(sprite).digest("hex").slice(0, 8).toUpperCase();
  const file = hashed ? `icons-${hash}.svg` : "icons.svg";
  mkdirSync(target, { recursive: true });
  writeFileSync(`${target}/${file}`, sprite);
  return file;
}
