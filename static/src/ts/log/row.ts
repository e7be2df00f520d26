// One row of the log as nodes: number, time, learner, fold, text. What it shows is decided by the viewer.
import { counted, thousands } from "../format";
import { nodes } from "./ansi";
import { Level, type Line } from "./lines";
import { icon } from "./toolbar";

const CLASSES = { [Level.None]: "lr", [Level.Warn]: "lr w", [Level.Error]: "lr e", [Level.Trace]: "lr tb" };

export interface RowView {
  n: number;
  key: string;
  /** Undefined while it is on its way, or was not kept. */
  line: Line | undefined;
  lost: boolean;
  time: string;
  /** Lines of several learners stand together, so each says whose it is. */
  merged: boolean;
  /** Its line is not complete yet. */
  open: boolean;
  picked: boolean;
  /** What is searched for, and whether this row is the present match. */
  find: string;
  current: boolean;
  /** A traceback begins here; hidden: lines that its closed fold holds back. */
  fold: { open: boolean; hidden: number } | null;
  icons: string;
  /** Bring the rest of a line that was cut. */
  whole(line: Line): void;
}

/** Fill the row anew; the focus on its fold stays. */
export function drawRow(row: HTMLElement, view: RowView): void {
  const { line, n } = view;
  const held = row.querySelector(".fold") === document.activeElement;
  row.className = line ? CLASSES[line.level] : "lr";
  row.dataset.n = String(n);
  row.dataset.key = view.key;
  if (view.open) row.classList.add("tailing");
  if (view.picked) row.classList.add("pick");
  const fold = view.fold && foldButton(n, view.fold.open, view.icons);
  const rank = view.merged && line ? [span("rk", `L${line.rank}`)] : [];
  row.replaceChildren(number(n), span("ts", view.time), ...rank, ...(fold ? [fold] : []), text(view));
  if (held) fold?.focus();
}

/** What stands between two attempts, in place of a line. */
export function drawBorder(row: HTMLElement, key: string, words: string, icons: string): void {
  row.className = "lr border";
  delete row.dataset.n;
  row.dataset.key = key;
  row.replaceChildren(icon(icons, "arrow-right"), span("words", words));
}

function text({ line, lost, find, current, open, fold, whole }: RowView): HTMLElement {
  const made = span("m", line ? "" : lost ? "— not kept —" : "…");
  if (!line) return made;
  made.append(...nodes(line.text, find));
  if (line.cut) made.append(open ? ` … ${thousands(line.cut)} more characters` : moreButton(line, whole)); // REST has no whole of an open one yet
  if (current) for (const mark of made.querySelectorAll(".hl")) mark.classList.add("c");
  if (fold && !fold.open) made.append(span("t3", ` … ${counted(fold.hidden, "line")}`));
  return made;
}

function span(kind: string, words: string): HTMLElement {
  const made = document.createElement("span");
  made.className = kind;
  made.textContent = words;
  return made;
}

function button(kind: string): HTMLButtonElement {
  const made = document.createElement("button");
  made.type = "button";
  made.className = kind;
  return made;
}

function number(n: number): HTMLButtonElement {
  const made = button("n");
  made.tabIndex = -1;
  made.textContent = String(n);
  return made;
}

function foldButton(head: number, open: boolean, icons: string): HTMLButtonElement {
  const made = button("fold");
  made.setAttribute("aria-expanded", String(open));
  made.setAttribute("aria-label", `Traceback at line ${head}`);
  made.append(icon(icons, open ? "chevron-down" : "chevron-right"));
  return made;
}

function moreButton(line: Line, whole: (line: Line) => void): HTMLButtonElement {
  const made = button("more");
  made.textContent = ` show ${thousands(line.cut)} more characters`;
  made.addEventListener("click", () => whole(line));
  return made;
}
