// A line of output as nodes: colours, links and search hits, never as markup. What a terminal would obey is shown or dropped.
import Anser from "anser";

const OSC = /\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?/g; // titles and hyperlinks: their targets are not to be trusted
const MOVES = /\x1b\[[0-9;?]*[A-HJKSTfhlnsu]|\x1b[=>()][A-Z0-9]?/g; // cursor moves and modes
const CONTROLS = /[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]/g;
const REORDERING = /[\u202a-\u202e\u2066-\u2069]/g; // right-to-left overrides can make a line read as another
const URLS = /https?:\/\/[^\s"'<>)\]]+/g;
const CLASSES: Record<string, string> = {
  "ansi-red": "a1",
  "ansi-green": "a2",
  "ansi-yellow": "a3",
  "ansi-blue": "a4",
  "ansi-magenta": "a5",
  "ansi-cyan": "a6",
  "ansi-bright-black": "a8",
};
const DECORATIONS: Record<string, string> = { bold: "ab", underline: "au", italic: "ai", dim: "ad" };

/** The text as a person reads it, without any escape. */
export function plain(text: string): string {
  return text.includes("\x1b") ? Anser.ansiToText(text.replace(OSC, "").replace(MOVES, "")) : text;
}

/** Nodes of a line; hit: what was searched for, marked wherever it stands. */
export function nodes(text: string, hit: string): Node[] {
  const clean = text
    .replace(OSC, "")
    .replace(MOVES, "")
    .replace(CONTROLS, (control) => (control === "\x7f" ? "␡" : String.fromCharCode(0x2400 + control.charCodeAt(0))))
    .replace(REORDERING, "\ufffd");
  if (!clean.includes("\x1b")) return linked(clean, hit);
  return Anser.ansiToJson(clean, { json: true, remove_empty: true, use_classes: true }).map((piece) => {
    const span = document.createElement("span");
    span.append(...linked(piece.content.replaceAll("\x1b", "␛"), hit));
    const known = CLASSES[(piece.fg ?? "").replace("bright-", "")] ?? CLASSES[piece.fg ?? ""];
    if (known) span.className = known;
    else if (piece.fg_truecolor) span.style.color = readable(piece.fg_truecolor);
    for (const decoration of piece.decorations ?? []) {
      const name = DECORATIONS[decoration];
      if (name) span.classList.add(name);
    }
    return span;
  });
}

/** A program's own colour, drawn towards the theme's text so that it can be read on both grounds. */
const readable = (rgb: string): string => `color-mix(in oklab, rgb(${rgb}) 55%, var(--text))`;

function linked(text: string, hit: string): Node[] {
  const parts: Node[] = [];
  let at = 0;
  for (const found of text.matchAll(URLS)) {
    parts.push(...marked(text.slice(at, found.index), hit));
    const link = document.createElement("a");
    link.href = found[0];
    link.rel = "noopener noreferrer";
    link.target = "_blank";
    link.append(...marked(found[0], hit));
    parts.push(link);
    at = found.index + found[0].length;
  }
  parts.push(...marked(text.slice(at), hit));
  return parts;
}

function marked(text: string, hit: string): Node[] {
  if (!hit || !text) return text ? [document.createTextNode(text)] : [];
  const parts: Node[] = [];
  const folded = text.toLowerCase();
  const needle = hit.toLowerCase();
  let at = 0;
  for (let found = folded.indexOf(needle); found >= 0; found = folded.indexOf(needle, at)) {
    if (found > at) parts.push(document.createTextNode(text.slice(at, found)));
    const mark = document.createElement("mark");
    mark.className = "hl";
    mark.textContent = text.slice(found, found + needle.length);
    parts.push(mark);
    at = found + needle.length;
  }
  if (at < text.length) parts.push(document.createTextNode(text.slice(at)));
  return parts;
}
