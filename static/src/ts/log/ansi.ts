// A line of output as pieces with color, links and search hits: data, never markup. What a terminal would obey is shown
// as a symbol or dropped. Pure; row.ts draws the pieces.
import { PLAIN, lookOf, restyled, type Look, type Style } from "./sgr";

const OSC = /\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?/g; // titles and hyperlinks: their targets are not to be trusted
const MOVES = /\x1b\[[0-9;?]*[A-HJKSTfhlnsu]|\x1b[=>()][A-Z0-9]?/g; // cursor moves and modes
const CONTROLS = /[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]/g;
const REORDERING = /[\u202a-\u202e\u2066-\u2069]/g; // right-to-left overrides can make a line read as another
const URLS = /https?:\/\/[^\s"'<>)\]]+/g;
const SGR = /\x1b\[([0-9;:]*)m/g;
const UNFINISHED = /\x1b(?:\[[0-9;:?]*|\][^\x07\x1b]*)?$/; // its end is in a chunk to come, or was cut off

export interface Piece extends Look {
  text: string;
}

/** The text as a person reads it, without escapes. */
export function plain(text: string): string {
  return text.includes("\x1b") ? text.replace(OSC, "").replace(MOVES, "").replace(SGR, "").replace(UNFINISHED, "") : text;
}

/** style: in which the line begins. */
export function pieces(text: string, style: Style = PLAIN): Piece[] {
  const clean = text
    .replace(OSC, "")
    .replace(MOVES, "")
    .replace(UNFINISHED, "")
    .replace(CONTROLS, (control) => (control === "\x7f" ? "␡" : String.fromCharCode(0x2400 + control.charCodeAt(0))))
    .replace(REORDERING, "\ufffd");
  const made: Piece[] = [];
  // Every second part, from the second on, is the parameters of a sequence.
  for (const [at, part] of clean.split(SGR).entries()) {
    if (at % 2) style = restyled(style, part);
    else if (part) made.push({ text: part.replaceAll("\x1b", "␛"), ...lookOf(style) });
  }
  return made;
}

/** The style at the end of a line. */
export function styleAfter(text: string, style: Style = PLAIN): Style {
  if (!text.includes("\x1b[")) return style;
  return Array.from(text.replace(OSC, "").matchAll(SGR), ([, parameters = ""]) => parameters).reduce(restyled, style);
}

/** A text cut at its links: every second entry, from the second on, is an address. */
export function cutAtLinks(text: string): string[] {
  const parts: string[] = [];
  let at = 0;
  for (const found of text.matchAll(URLS)) {
    parts.push(text.slice(at, found.index), found[0]);
    at = found.index + found[0].length;
  }
  return [...parts, text.slice(at)];
}

/** A text cut at what was searched for, upper or lower case: every second entry, from the second on, is a hit. */
export function cutAtHits(text: string, hit: string): string[] {
  if (!hit) return [text];
  return text.split(new RegExp(`(${hit.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")})`, "iu"));
}
