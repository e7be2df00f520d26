// The colors and decorations that a terminal's SGR sequences set, and how they are shown. Pure.

/** One of the 16 named colors, or one that the program mixed. */
export type Color = number | readonly [number, number, number];

/** Their classes. */
const DECORATIONS = {
  bold: "ansi-bold",
  dim: "ansi-dim",
  italic: "ansi-italic",
  underlined: "ansi-underlined",
  reverse: "ansi-reverse",
  struck: "ansi-struck",
} as const;
type Decoration = keyof typeof DECORATIONS;

export interface Style {
  fg: Color | null;
  bg: Color | null;
  on: ReadonlySet<Decoration>;
}

/** What a terminal shows before any sequence. */
export const PLAIN: Style = { fg: null, bg: null, on: new Set() };

export interface Look {
  /** Class names of its color and decorations. */
  classes: string[];
  /** "r, g, b" where the program chose a color of its own; the page mixes it with its text color. */
  rgb?: string;
  /** "r, g, b" of a background, and of a text color that is readable on it. */
  fill?: { back: string; text: string };
}

const SETS: Record<number, Decoration> = { 1: "bold", 2: "dim", 3: "italic", 4: "underlined", 7: "reverse", 9: "struck", 21: "underlined" };
const ENDS: Record<number, Decoration[]> = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underlined"], 27: ["reverse"], 29: ["struck"] };
const CUBE = [0, 95, 135, 175, 215, 255];
// xterm's, where a color needs numbers: as a background
const NAMED: readonly (readonly [number, number, number])[] = [
  [0, 0, 0], [205, 0, 0], [0, 205, 0], [205, 205, 0], [0, 0, 238], [205, 0, 205], [0, 205, 205], [229, 229, 229],
  [127, 127, 127], [255, 0, 0], [0, 255, 0], [255, 255, 0], [92, 92, 255], [255, 0, 255], [0, 255, 255], [255, 255, 255],
]; // prettier-ignore
const BLACK = [0, 0, 0] as const;
const WHITE = [255, 255, 255] as const;
const READABLE = 4.5; // contrast of text on its background (WCAG AA)

export const isSame = (one: Style, other: Style): boolean =>
  one === other || (sameColor(one.fg, other.fg) && sameColor(one.bg, other.bg) && one.on.size === other.on.size && [...one.on].every((each) => other.on.has(each)));

const sameColor = (one: Color | null, other: Color | null): boolean => String(one) === String(other);

/** The style after a sequence with these parameters, such as "1;38;5;208"; what is unknown changes nothing. */
export function restyled(style: Style, parameters: string): Style {
  let { fg, bg } = style;
  const on = new Set(style.on);
  const parts = parameters.split(";");
  for (let at = 0; at < parts.length; at += 1) {
    const [code = 0, ...more] = (parts[at] ?? "").split(":").map(Number);
    if (code === 0) {
      fg = bg = null;
      on.clear();
    } else if (code === 4 && more[0] === 0) on.delete("underlined");
    else if (SETS[code]) on.add(SETS[code]);
    else if (ENDS[code]) for (const one of ENDS[code]) on.delete(one);
    else if (code === 38 || code === 48) {
      const rest = more.length ? more : parts.slice(at + 1).map(Number);
      const [color, used] = mixed(rest, more.length > 0);
      if (!more.length) at += used;
      if (color === undefined) continue;
      if (code === 38) fg = color;
      else bg = color;
    } else if (code === 39) fg = null;
    else if (code === 49) bg = null;
    else if (code >= 30 && code <= 37) fg = code - 30;
    else if (code >= 90 && code <= 97) fg = code - 82;
    else if (code >= 40 && code <= 47) bg = code - 40;
    else if (code >= 100 && code <= 107) bg = code - 92;
  }
  return { fg, bg, on };
}

/** The color behind 38 or 48, and how many parameters it takes. In colon form a color space may come first. */
function mixed([kind, ...rest]: number[], colons: boolean): [Color | undefined, number] {
  if (kind === 5) return [rest[0] === undefined ? undefined : indexed(rest[0]), 2];
  if (kind !== 2) return [undefined, 1];
  const [r, g, b] = colons && rest.length > 3 ? rest.slice(1) : rest;
  const known = [r, g, b].every((part) => part !== undefined && part >= 0 && part <= 255);
  return [known ? [r ?? 0, g ?? 0, b ?? 0] : undefined, 4];
}

function indexed(index: number): Color | undefined {
  if (!(index >= 0 && index <= 255)) return undefined;
  if (index < 16) return index;
  if (index >= 232) return [8 + (index - 232) * 10, 8 + (index - 232) * 10, 8 + (index - 232) * 10];
  const at = index - 16;
  return [CUBE[Math.floor(at / 36)] ?? 0, CUBE[Math.floor(at / 6) % 6] ?? 0, CUBE[at % 6] ?? 0];
}

/** How text of a style is drawn. Black and white are the page's own text color, which is readable in both themes. */
export function lookOf({ fg, bg, on }: Style): Look {
  const decorations: string[] = [...on].filter((one) => one !== "reverse").map((one) => DECORATIONS[one]);
  const [front, back] = on.has("reverse") ? [bg, fg] : [fg, bg];
  if (back !== null) {
    const under = numbers(back);
    return { classes: decorations, fill: { back: under.join(", "), text: readableOn(under, front).join(", ") } };
  }
  if (on.has("reverse")) return { classes: [DECORATIONS.reverse, ...decorations] };
  if (typeof front === "object" && front) return { classes: decorations, rgb: front.join(", ") };
  const name = front === null ? "" : front === 8 ? "ansi-8" : front % 8 && front % 8 !== 7 ? `ansi-${front % 8}` : "";
  return { classes: name ? [name, ...decorations] : decorations };
}

const numbers = (color: Color): readonly [number, number, number] => (typeof color === "number" ? (NAMED[color] ?? [0, 0, 0]) : color);

/** The chosen color if it can be read on this background, else black or white. */
function readableOn(back: readonly number[], front: Color | null): readonly number[] {
  const chosen = front === null ? undefined : numbers(front);
  if (chosen && contrast(chosen, back) >= READABLE) return chosen;
  return contrast(BLACK, back) >= contrast(WHITE, back) ? BLACK : WHITE;
}

/** From 1 to 21, by WCAG. */
export function contrast(a: readonly number[], b: readonly number[]): number {
  const [light, dark] = [luminance(a), luminance(b)].sort((one, other) => other - one) as [number, number];
  return (light + 0.05) / (dark + 0.05);
}

function luminance(color: readonly number[]): number {
  const [r, g, b] = color.map((part) => (part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4)) as [number, number, number];
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
