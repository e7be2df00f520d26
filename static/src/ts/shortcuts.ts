// The single keys of pages, and the sheet that lists every key (`?`). They are off in text fields, while a modifier is held,
// and if turned off in the settings. Keys of one part of a page are in keys.ts, and handled there.
import { texts } from "./texts";
import { toast } from "./toast";

const words = texts.keys;
const GO_MS = 1200;
const PLACES: Record<string, string> = { o: "", j: "jobs", c: "/cluster", u: "usage", m: "members", k: "tokens" };

export interface Binding {
  /** As KeyboardEvent.key has them; "g o" is one key after the other, "Control+f" a key with a modifier. */
  keys: readonly string[];
  text: string;
  /** Returns whether it did something. */
  press?: (key: string) => boolean;
}

export interface Scope {
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
      { keys: ["h", "r", "s", "d"], text: words.actions, press: (key) => click(ACTIONS[key] ?? "") },
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
      { keys: ["Control+k"], text: words.palette }, // no single key: it works in fields, too, and with those turned off
    ],
  },
  {
    title: words.lists,
    bindings: [
      { keys: ["j", "k"], text: words.move, press: (key) => move(key === "j" ? 1 : -1) },
      { keys: ["x"], text: words.select, press: select },
      { keys: ["c"], text: words.compare, press: () => click("#compare-many") },
      { keys: ["."], text: words.showNew, press: () => click("#new-jobs") },
    ],
  },
];

const ACTIONS: Record<string, string> = {
  h: "#halt-ask, #job-actions form[data-action='halt'] button",
  r: "#job-actions form[data-action='resume'] button",
  s: "#job-actions form[data-action='checkpoint'] button",
  d: "#job-actions a[href*='/jobs/new?from=']",
};

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
  void loadSheet().then(() => document.getElementById("keys")?.togglePopover());
  return true;
}

let sheet: Promise<void> | undefined;
const loadSheet = (): Promise<void> => (sheet ??= import("./sheet").then(({ drawSheet }) => drawSheet(SCOPES)));

/** What does something with these keys, in the order in which scopes come. */
function act(keys: string): boolean {
  return SCOPES.filter((scope) => scope.works?.() ?? true).some(({ bindings }) => bindings.some((one) => one.keys.includes(keys) && one.press?.(keys)));
}

/** While the palette is loaded, keys are meant for it and do nothing else. */
let opening: Promise<void> | undefined;
const onMac = /Mac|iP/.test(navigator.platform);

function palette(): void {
  opening ??= import("./palette")
    .then(({ togglePalette }) => togglePalette())
    .catch(() => toast(texts.keys.unreachable, "error"))
    .finally(() => (opening = undefined));
}

/** ⌘K on a Mac, where Ctrl+K deletes to the end of a line; Ctrl+K elsewhere. The key is that of the layout, or where it has other letters, the place. */
function opensPalette({ key, code, ctrlKey, metaKey, altKey, shiftKey }: KeyboardEvent): boolean {
  const letter = /^[a-z]$/i.test(key) ? key.toLowerCase() : code === "KeyK" ? "k" : "";
  return letter === "k" && (onMac ? metaKey && !ctrlKey : ctrlKey && !metaKey) && !altKey && !shiftKey;
}

function startPalette(): void {
  for (const shown of document.querySelectorAll(".open-palette kbd")) if (onMac) shown.textContent = "⌘ K";
  document.addEventListener("click", (event) => (event.target as Element).closest("[data-palette]") && palette());
  document.addEventListener("keydown", (event) => {
    if (!opensPalette(event) || document.querySelector("dialog:modal:not(.palette)") || !document.getElementById("keys")) return;
    event.preventDefault();
    if (!event.repeat) palette();
  });
}

export function startShortcuts(): void {
  startPalette();
  document.getElementById("keys")?.addEventListener("beforetoggle", () => void loadSheet());
  if (document.documentElement.dataset.shortcuts === "off") return;
  let prefix = 0;
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || opening || document.querySelector("dialog:modal") || event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    const waiting = prefix > 0 && Date.now() - prefix < GO_MS;
    prefix = !waiting && event.key === "g" ? Date.now() : 0;
    if (prefix || act(waiting ? `g ${event.key}` : event.key)) event.preventDefault();
  });
}
