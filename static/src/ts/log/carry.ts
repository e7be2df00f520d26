// A terminal keeps its colors from line to line until they are reset. Pure.
import { styleAfter } from "./ansi";
import type { Line } from "./lines";
import { PLAIN, isSame, type Style } from "./sgr";

/** Lines before the first one of a page that are read for the colors in which it begins; a color that was set earlier is not known. */
export const LOOK_BACK = 100;

/** Line n has come: set the style in which it begins, and that of the lines behind it as far as it changes. */
export function carry(get: (n: number) => Line | undefined, n: number): void {
  const before = get(n - 1);
  let style = before ? endOf(before) : PLAIN;
  for (let line = get(n); line; line = get(line.n + 1)) {
    if (line.n > n && isSame(line.style ?? PLAIN, style)) return;
    line.style = style;
    style = endOf(line);
  }
}

/** Of a line that was cut it is not known. */
export const endOf = (line: Line): Style => (line.cut ? PLAIN : styleAfter(line.text, line.style));
