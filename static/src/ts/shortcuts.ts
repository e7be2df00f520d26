// Every key of the portal, and the sheet that lists them (`?`): one table is the source of both. Keys with `press` are single
// keys of the page: off in text fields, while a modifier is held, and if turned off in the settings. Those without are
// handled where they work, most by the lists in keys.ts.
import { KEYS } from "./keys";
import { texts } from "./texts";

const words = texts.keys;
const { log, search, chart, quota } = KEYS;
const GO_MS = 1200;
const PLACES: Record<string, string> = { o: "", j: "jobs", c: "/cluster", u: "usage", m: "members", k: "tokens" };

interface Binding {
  /** As KeyboardEvent.key has them; "g o" is one key after the other, "Control+f" a key with a modifier. */
  keys: readonly string[];
  text: string;
  /** Returns whether it did something. */
  press?: (key: string) => boolean;
}

interface Scope {
  title: string;
  /** Whether its single keys work on this page; they come before those of every page. */
  works?: () => boolean;
  bindings: Binding[];
}

export const SCOPES: Scope[] = [
  {
    title: words.job,
    works: () => document.querySelector("x-job") !== null,
    bindings: [
      { keys: ["1", "2", "3", "4", "5", "6", "7"], text: words.sections, press: (key) => click(`x-job .tabs a:nth-child(${key})`) },
      { keys: ["h", "r", "d"], text: words.actions, press: (key) => click(ACTIONS[key] ?? "") },
      { keys: ["e"], text: words.firstError, press: firstError },
      { keys: ["y"], text: words.copyId, press: () => click("x-job .id[data-copy]") },
    ],
  },
  {
    title: words.anywhere,
    bindings: [
      { keys: Object.keys(PLACES).map((key) => `g ${key}`), text: words.go, press: go },
      { keys: ["n"], text: words.newJob, press: () => click("a[href$='/jobs/new']") },
      { keys: ["/"], text: words.search, press: () => click("#q,[type=search]") },
      { keys: ["t"], text: words.theme, press: () => click("[data-theme-toggle]") },
      { keys: ["?"], text: words.sheet, press: toggleSheet },
    ],
  },
  {
    title: words.lists,
    bindings: [
      { keys: ["j", "k"], text: words.move, press: (key) => move(key === "j" ? 1 : -1) },
      { keys: ["x"], text: words.select, press: select },
      { keys: ["."], text: words.showNew, press: () => click("#new-jobs") },
    ],
  },
  {
    title: words.log,
    bindings: [
      { keys: log.follow, text: words.follow },
      { keys: [...log.start, ...log.end], text: words.ends },
      { keys: [...log.up, ...log.down, ...log.pageUp, ...log.pageDown], text: words.scroll },
      { keys: [...log.find, ...log.next, ...log.previous], text: words.find },
      { keys: log.error, text: words.firstError },
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

const ACTIONS: Record<string, string> = {
  h: "#halt-ask, #job-actions form[data-action='halt'] button",
  r: "#job-actions form[data-action='resume'] button",
  d: "#job-actions a[href*='/jobs/new?from=']",
};
const SIGNS: Record<string, string> = { ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→", Control: "Ctrl", Escape: "Esc" };

function typing(target: EventTarget | null): boolean {
  const element = target as HTMLElement | null;
  return !!element?.closest("input:not([type=checkbox]):not([type=radio]),textarea,select,[contenteditable=true],.cm-editor");
}

/** Focus a field, click anything else; false if the page has none that can be used. */
function click(selector: string): boolean {
  const element = document.querySelector<HTMLElement>(selector);
  if (!element || element.hidden || element.matches(":disabled")) return false;
  if (element.matches("input,select")) element.focus();
  else element.click();
  return true;
}

function go(keys: string): boolean {
  const place = PLACES[keys.slice(2)] ?? "";
  const tenant = document.querySelector<HTMLElement>(".app")?.dataset.tenant;
  if (!place.startsWith("/") && !tenant) return false;
  location.assign(place.startsWith("/") ? place : `/t/${tenant}/${place}`);
  return true;
}

function move(step: number): boolean {
  const rows = [...document.querySelectorAll<HTMLTableRowElement>("tr[data-job]")];
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + step))];
  next?.querySelector<HTMLElement>("a.name")?.focus();
  return next !== undefined;
}

function select(): boolean {
  const row = document.activeElement?.closest<HTMLElement>("tr[data-job]");
  row?.querySelector<HTMLInputElement>("input[name=job]:not(:disabled)")?.click();
  return row !== null && row !== undefined;
}

/** In the log tab; from another tab, the log is opened where the job failed, else at its errors. */
function firstError(): boolean {
  if (click("x-log [data-tool='error']")) return true;
  const failed = document.querySelector<HTMLAnchorElement>("[data-first-error]");
  location.assign(failed?.href ?? `${document.querySelector<HTMLElement>("x-job")?.dataset.base}/logs?level=error`);
  return true;
}

function toggleSheet(): boolean {
  document.getElementById("keys")?.togglePopover();
  return true;
}

/** What does something with these keys, in the order in which scopes come. */
function act(keys: string): boolean {
  return SCOPES.filter((scope) => scope.works?.() ?? true).some(({ bindings }) => bindings.some((one) => one.keys.includes(keys) && one.press?.(keys)));
}

function drawSheet(): void {
  const list = document.querySelector("#keys dl");
  list?.replaceChildren(...SCOPES.flatMap((scope) => [heading(scope.title), ...scope.bindings.map(row)]));
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

export function startShortcuts(): void {
  drawSheet();
  if (document.documentElement.dataset.shortcuts === "off") return;
  let prefix = 0;
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || document.querySelector("dialog:modal") || event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    const waiting = prefix > 0 && Date.now() - prefix < GO_MS;
    prefix = !waiting && event.key === "g" ? Date.now() : 0;
    if (prefix || act(waiting ? `g ${event.key}` : event.key)) event.preventDefault();
  });
}
