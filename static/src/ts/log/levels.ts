// What a line of output is: a warning, an error, part of a traceback. Pure.
import { plain } from "./ansi";

export const enum Level {
  None,
  Warn,
  Error,
  Trace,
}

/** A line with one of these words is an error; the server finds the lines of a long log by them. */
export const ERROR_WORDS = ["error", "traceback", "exception", "fatal", "critical", "panic", "oom", "out of memory"];
const ERROR = new RegExp(`^E\\s|\\b(?:${ERROR_WORDS.join("|")})\\b`, "i");
const ERROR_NAME = /[a-z](?:Error|Exception)\b/; // ValueError, KeyboardException
const TRACEBACK = /^\s*Traceback \(most recent call last\)/;
const WARN = /^W\s|\bwarn(?:ing)?\b/i;
const WARN_NAME = /[a-z]Warning\b/;

/** A traceback begins with this line, colored or not. */
export const startsTraceback = (text: string): boolean => TRACEBACK.test(plain(text));

/** The level of a line, given that of the line before: a traceback's body belongs to it. */
export function levelOf(text: string, before: Level): Level {
  const words = plain(text);
  if (before === Level.Trace && /^\s/.test(words)) return Level.Trace;
  if (TRACEBACK.test(words)) return Level.Trace;
  if (ERROR.test(words) || ERROR_NAME.test(words)) return Level.Error;
  return WARN.test(words) || WARN_NAME.test(words) ? Level.Warn : Level.None;
}
