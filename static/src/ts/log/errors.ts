// The first error of a log, loaded or not. A short log is read; in a long one the server looks for the words that
// make an error, and each line it finds is classified as a drawn line is.
import { api } from "../api";
import { ERROR_WORDS, Level, levelOf } from "./levels";
import type { Lines, LogPage } from "./lines";

const READ = 20_000;
const PAGES = 5; // of matches that are not errors, such as "room"; then give up on this word

/** Its number; 0 if there is none. */
export async function firstError(lines: Lines): Promise<number> {
  if (lines.total <= READ) return (await lines.scan(1, (line) => line.level >= Level.Error))?.n ?? 0;
  let first = 0;
  for (const word of ERROR_WORDS) {
    const n = await firstWith(lines, word, first || lines.total + 1);
    if (n) first = n;
  }
  return first;
}

/** The first error with this word before line `end`. */
async function firstWith(lines: Lines, word: string, end: number): Promise<number> {
  let after = 0;
  for (let pages = 0; pages < PAGES; ) {
    const found = await api<LogPage>("GET", `${lines.path}&q=${encodeURIComponent(word)}&after=${after}&limit=200`);
    for (const line of found.lines) {
      if (line.n >= end) return 0;
      if (levelOf(line.text, Level.None) >= Level.Error) return line.n;
    }
    if (!found.more || found.next >= end) return 0;
    after = found.next;
    pages += found.lines.length ? 1 : 0; // a page without lines: the server only ran out of time
  }
  return 0;
}
