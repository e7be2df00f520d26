// One row of the log as nodes: number, time, learner, fold, text. What it shows is decided by the viewer.
import { icon } from "../icon";
import { texts } from "../texts";
import { cutAtHits, cutAtLinks, pieces, type Piece } from "./ansi";
import { Level } from "./levels";
import type { Line } from "./lines";

const CLASSES = { [Level.None]: "log-row", [Level.Warn]: "log-row warning-line", [Level.Error]: "log-row error-line", [Level.Trace]: "log-row traceback" };

export interface RowView {
  n: number;
  key: string;
  /** Undefined while it is being loaded, or was not stored. */
  line: Line | undefined;
  lost: boolean;
  time: string;
  /** The log has lines of several learners, so each shows its learner. */
  merged: boolean;
  /** Its line is not complete yet. */
  open: boolean;
  picked: boolean;
  /** What is searched for, and whether this row is the current match. */
  find: string;
  current: boolean;
  /** A traceback begins here; hidden: how many lines its closed fold hides. */
  fold: { open: boolean; hidden: number } | null;
  /** Load the rest of a line that was cut. */
  whole(line: Line): void;
}

/** Fill the row again; the focus on its fold stays. */
export function drawRow(row: HTMLElement, view: RowView): void {
  const { line, n } = view;
  const held = row.querySelector(".fold") === document.activeElement;
  row.className = line ? CLASSES[line.level] : "log-row";
  row.dataset.n = String(n);
  row.dataset.key = view.key;
  if (view.open) row.classList.add("tailing");
  if (view.picked) row.classList.add("picked");
  const fold = view.fold && foldButton(n, view.fold.open);
  const rank = view.merged && line ? [span("rank", texts.log.rank(line.rank))] : [];
  row.replaceChildren(number(n), span("timestamp", view.time), ...rank, ...(fold ? [fold] : []), text(view));
  if (held) fold?.focus();
}

/** The border between two attempts, in place of a line. */
export function drawBorder(row: HTMLElement, key: string, words: string): void {
  row.className = "log-row border";
  delete row.dataset.n;
  row.dataset.key = key;
  row.replaceChildren(icon("arrow-right"), span("words", words));
}

function text({ line, lost, find, current, open, fold, whole }: RowView): HTMLElement {
  const made = span("message", line ? "" : lost ? texts.log.notStored : texts.log.missing);
  if (!line) return made;
  made.append(...pieces(line.text, line.style).flatMap((piece) => draw(piece, find)));
  if (line.cut) made.append(open ? texts.log.cutOpen(line.cut) : moreButton(line, whole)); // REST has an open line only as far as it is complete
  if (current) for (const mark of made.querySelectorAll(".highlight")) mark.classList.add("current");
  if (fold && !fold.open) made.append(span("tertiary", texts.log.folded(fold.hidden)));
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
  const made = button("number");
  made.tabIndex = -1;
  made.textContent = String(n);
  return made;
}

function foldButton(head: number, open: boolean): HTMLButtonElement {
  const made = button("fold");
  made.setAttribute("aria-expanded", String(open));
  made.setAttribute("aria-label", texts.log.traceback(head));
  made.append(icon(open ? "chevron-down" : "chevron-right"));
  return made;
}

function moreButton(line: Line, whole: (line: Line) => void): HTMLButtonElement {
  const made = button("more");
  made.textContent = texts.log.cut(line.cut);
  made.addEventListener("click", () => whole(line));
  return made;
}

/** Text in its color, with links and hits marked. */
function draw({ text, classes, rgb, fill }: Piece, hit: string): Node[] {
  const nodes = cutAtLinks(text).flatMap((part, at) => (at % 2 ? [link(part, hit)] : marked(part, hit)));
  if (!classes.length && !rgb && !fill) return nodes;
  const made = span(classes.join(" "), "");
  if (rgb) made.style.color = `color-mix(in oklab, rgb(${rgb}) 55%, var(--text))`; // readable in both themes
  if (fill) Object.assign(made.style, { color: `rgb(${fill.text})`, backgroundColor: `rgb(${fill.back})` });
  made.append(...nodes);
  return [made];
}

function link(address: string, hit: string): HTMLAnchorElement {
  const made = document.createElement("a");
  made.href = address;
  made.rel = "noopener noreferrer";
  made.target = "_blank";
  made.append(...marked(address, hit));
  return made;
}

function marked(text: string, hit: string): Node[] {
  const parts = cutAtHits(text, hit).map((part, at) => {
    if (at % 2 === 0) return document.createTextNode(part);
    const mark = document.createElement("mark");
    mark.className = "highlight";
    mark.textContent = part;
    return mark;
  });
  return parts.filter((part) => part.textContent);
}
