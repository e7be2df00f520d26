// A line of output as pieces with color, links and search hits: data, never markup. What a terminal would obey is shown
// as a symbol or dropped. Pure; row.ts draws the pieces.
import Anser from "anser";

const OSC = /\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?/g; // titles and hyperlinks: their targets are not to be trusted
const MOVES = /\x1b\[[0-9;?]*[A-HJKSTfhlnsu]|\x1b[=>()][A-Z0-9]?/g; // cursor moves and modes
const CONTROLS = /[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]/g;
const REORDERING = /[\u202a-\u202e\u2066-\u2069]/g; // right-to-left overrides can make a line read as another
const URLS = /https?:\/\/[^\s"'<>)\]]+/g;
const COLORS: Record<string, string> = {
  "ansi-red": "ansi-1",
  "ansi-green": "ansi-2",
  "ansi-yellow": "ansi-3",
  "ansi-blue": "ansi-4",
  "ansi-magenta": "ansi-5",
  "ansi-cyan": "ansi-6",
  "ansi-bright-black": "ansi-8",
};
const DECORATIONS: Record<string, string> = { bold: "ansi-bold", underline: "ansi-underlined", italic: "ansi-italic", dim: "ansi-dim" };

export interface Piece {
  text: string;
  /** Class names of its color and decorations. */
  classes: string[];
  /** "r, g, b" where the program chose a color of its own. */
  rgb?: string;
}

/** The text as a person reads it, without escapes. */
export function plain(text: string): string {
  return text.includes("\x1b") ? Anser.ansiToText(text.replace(OSC, "").replace(MOVES, "")) : text;
}

export function pieces(text: string): Piece[] {
  const clean = text
    .replace(OSC, "")
    .replace(MOVES, "")
    .replace(CONTROLS, (control) => (control === "\x7f" ? "␡" : String.fromCharCode(0x2400 + control.charCodeAt(0))))
    .replace(REORDERING, "\ufffd");
  if (!clean.includes("\x1b")) return clean ? [{ text: clean, classes: [] }] : [];
  return Anser.ansiToJson(clean, { json: true, remove_empty: true, use_classes: true }).map(({ content, fg, fg_truecolor: rgb, decorations }) => {
    const color = COLORS[(fg ?? "").replace("bright-", "")] ?? COLORS[fg ?? ""];
    const classes = [color, ...(decorations ?? []).map((one) => DECORATIONS[one])].filter((one) => one !== undefined);
    return { text: content.replaceAll("\x1b", "␛"), classes, ...(rgb && !color ? { rgb } : {}) };
  });
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
