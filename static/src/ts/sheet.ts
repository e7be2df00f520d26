// The sheet of keys, loaded when it is opened: the keys of pages, and those of parts of a page from keys.ts.
import { KEYS } from "./keys";
import { PEEK_KEYS as peek } from "./peek-keys";
import type { Binding, Scope } from "./shortcuts";
import { texts } from "./texts";

const { log, search, chart, quota } = KEYS;
/** Texts of this sheet alone; those of single keys are in texts.ts. */
const words = {
  peek: "Peek at a job of a list",
  peekOpen: "Open beside the list, close",
  peekStep: "Next job, previous job",
  log: "In the log",
  logSearch: "In the search field of the log",
  matches: "Next match, previous match",
  leaveSearch: "Stop the search, or return to the log",
  chart: "In a chart",
  cursor: "Move the cursor by a point",
  cursor10: "Move the cursor by ten points",
  zoom: "Zoom in, zoom out, reset the zoom",
  chartView: "Values as a table, enlarge, make small again",
  editor: "In an editor of a new job",
  quotas: "In the quota table",
  follow: "Follow the newest line",
  ends: "Start, end",
  scroll: "Scroll by lines, by pages",
  find: "Search, next match, previous match",
  view: "Wrap lines, show times, full screen",
  copyLines: "Copy the selected lines",
  submit: "Submit the job, also from a field",
  indent: "Indent; after Escape, Tab leaves the editor",
  quotaMove: "Tenant above, tenant below",
  quotaStep: "One more, one less",
  quotaUndo: "Check the draft, undo the cell",
};
const SIGNS: Record<string, string> = { ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→", Control: "Ctrl", Escape: "Esc", " ": "Space" };

export const PARTS: Scope[] = [
  {
    title: words.peek,
    bindings: [
      { keys: [...peek.open, ...peek.close], text: words.peekOpen },
      { keys: [...peek.next, ...peek.previous], text: words.peekStep },
    ],
  },
  {
    title: words.log,
    bindings: [
      { keys: log.follow, text: words.follow },
      { keys: [...log.start, ...log.end], text: words.ends },
      { keys: [...log.up, ...log.down, ...log.pageUp, ...log.pageDown], text: words.scroll },
      { keys: [...log.find, ...log.next, ...log.previous], text: words.find },
      { keys: log.error, text: texts.keys.firstError },
      { keys: [...log.wrap, ...log.times, ...log.full], text: words.view },
      { keys: log.copy, text: words.copyLines },
    ],
  },
  {
    title: words.logSearch,
    bindings: [
      { keys: [...search.next, ...search.previous], text: words.matches },
      { keys: search.leave, text: words.leaveSearch },
    ],
  },
  {
    title: words.chart,
    bindings: [
      { keys: [...chart.back, ...chart.forward], text: words.cursor },
      { keys: [...chart.back10, ...chart.forward10], text: words.cursor10 },
      { keys: [...chart.zoomIn, ...chart.zoomOut, ...chart.reset], text: words.zoom },
      { keys: [...chart.table, ...chart.enlarge, ...chart.smaller], text: words.chartView },
    ],
  },
  {
    title: words.editor,
    bindings: [
      { keys: ["Control+Enter"], text: words.submit },
      { keys: ["Tab", "Escape"], text: words.indent },
    ],
  },
  {
    title: words.quotas,
    bindings: [
      { keys: [...quota.above, ...quota.below], text: words.quotaMove },
      { keys: [...quota.more, ...quota.less], text: words.quotaStep },
      { keys: [...quota.check, ...quota.undo], text: words.quotaUndo },
    ],
  },
];

export function drawSheet(pages: Scope[]): void {
  const list = document.querySelector("#keys dl");
  list?.replaceChildren(...[...pages, ...PARTS].flatMap((scope) => [heading(scope.title), ...scope.bindings.map(row)]));
}

function heading(title: string): HTMLElement {
  const made = document.createElement("div");
  made.className = "key-scope";
  const term = document.createElement("dt");
  term.textContent = title;
  made.append(term, document.createElement("dd"));
  return made;
}

function row({ keys, text }: Binding): HTMLElement {
  const made = document.createElement("div");
  const [term, words] = [document.createElement("dt"), document.createElement("dd")];
  // "g o", "g j" are shown as g and then o, j.
  const shown = [...new Set(keys.flatMap((key) => key.split(" ")))];
  term.append(...shown.flatMap((key) => [cap(key), " "]));
  words.textContent = text;
  made.append(term, words);
  return made;
}

function cap(key: string): HTMLElement {
  const made = document.createElement("kbd");
  made.textContent = key.split("+").map((part) => SIGNS[part] ?? part).join("+") || key;
  return made;
}

