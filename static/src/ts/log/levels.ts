// What a line of output is: a warning, an error, a part of one. Pure. The patterns are the server's, and so are the rules:
// jobs/log_levels.py explains them; both sides pass the cases of tests/log_levels.json.
import patterns from "../../../../jobs/log_levels.json";
import { plain } from "./ansi";

/** How a line is drawn. */
export const enum Level {
  None,
  Warn,
  Error,
  Trace,
}

export type Kind = "none" | "warning" | "error" | "traceback" | "body" | "raised";

/** What came before a line, as far as it matters for what the line is. */
export type After = "nothing" | "inside" | "raised" | "chain" | "error" | "warning";

export interface Mark {
  kind: Kind;
  /** The state for the next line. */
  after: After;
}

const RANK = new RegExp(patterns.rank);
const TRACEBACK = new RegExp(patterns.traceback);
const RAISED = new RegExp(patterns.raised);
const CHAIN = new RegExp(patterns.chain);
const STATED_WARNING = new RegExp(patterns.statedWarning);
const STATED_LESS = new RegExp(patterns.statedLess);
const ERROR = new RegExp(patterns.error, "i");
const ERROR_NAME = new RegExp(patterns.errorName);
const WARNING = new RegExp(patterns.warning, "i");
const WARNING_NAME = new RegExp(patterns.warningName);
const READ = 4096; // characters of a line

const LEVELS: Record<Kind, Level> = {
  none: Level.None,
  warning: Level.Warn,
  error: Level.Error,
  traceback: Level.Trace,
  body: Level.Trace,
  raised: Level.Error,
};

const wordsOf = (text: string): string => plain(text).slice(0, READ).replace(RANK, "");

/** A traceback begins with this line, colored or not. */
export const startsTraceback = (text: string): boolean => TRACEBACK.test(wordsOf(text));

export const levelOf = (kind: Kind): Level => LEVELS[kind];

/** An error begins here: a traceback is one. */
export const startsError = (kind: Kind): boolean => kind === "error" || kind === "traceback";

/** What a line is after what came before it. */
export function classify(text: string, after: After): Mark {
  const words = wordsOf(text);
  const [isBlank, isIndented] = [!words.trim(), /^\s/.test(words)];
  if (after === "inside" && (isBlank || isIndented)) return { kind: "body", after };
  if (TRACEBACK.test(words)) return { kind: after === "chain" || after === "error" ? "body" : "traceback", after: "inside" };
  if (after === "inside" && RAISED.test(words)) return { kind: "raised", after: "raised" };
  if (after === "raised" || after === "chain") {
    if (isBlank) return { kind: "none", after };
    if (CHAIN.test(words)) return { kind: "body", after: "chain" };
  }
  if (after === "warning" && isIndented) return { kind: "none", after: "nothing" };
  if (STATED_WARNING.test(words)) return { kind: "warning", after: "warning" };
  if (STATED_LESS.test(words)) return { kind: "none", after: "nothing" };
  if (ERROR.test(words) || ERROR_NAME.test(words)) return { kind: "error", after: "error" };
  if (WARNING.test(words) || WARNING_NAME.test(words)) return { kind: "warning", after: "warning" };
  return { kind: "none", after: "nothing" };
}

/** What a line is of which the server says its level, and whether it is part of the error above it. */
export function kindOf(text: string, level: "warn" | "error", part: boolean): Kind {
  if (level === "warn") return "warning";
  const words = wordsOf(text);
  if (!part) return TRACEBACK.test(words) ? "traceback" : "error";
  return RAISED.test(words) && !CHAIN.test(words) ? "raised" : "body";
}
