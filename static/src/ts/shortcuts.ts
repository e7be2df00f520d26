// Single-key shortcuts. Off in text fields, while a modifier is held, and if turned off in the settings.

const GO_MS = 1200;
const PLACES: Record<string, string> = { o: "", j: "jobs", u: "usage", m: "members", k: "tokens" };
let prefix = 0;

function tenant(): string {
  return document.querySelector<HTMLElement>(".app")?.dataset.tenant ?? "";
}

function typing(target: EventTarget | null): boolean {
  const element = target as HTMLElement | null;
  return !!element?.closest("input:not([type=checkbox]):not([type=radio]),textarea,select,[contenteditable=true],.cm-editor");
}

function move(step: number): void {
  const rows = [...document.querySelectorAll<HTMLTableRowElement>("tr[data-job]")];
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + step))];
  next?.querySelector<HTMLElement>("a.name")?.focus();
}

function press(selector: string): boolean {
  const element = document.querySelector<HTMLElement>(selector);
  if (!element || element.hidden || element.matches(":disabled")) return false;
  if (element.matches("input,select")) element.focus();
  else element.click();
  return true;
}

/** On a job's page: digits open its tabs, letters are its actions. */
function onJob(key: string): boolean {
  if (!document.querySelector("x-job")) return false;
  if (/^[1-9]$/.test(key)) return press(`x-job .tabs a:nth-child(${key})`);
  switch (key) {
    case "h":
      return press("#halt-ask, #job-actions form[data-action='halt'] button");
    case "r":
      return press("#job-actions form[data-action='resume'] button");
    case "d":
      return press("#job-actions a[href*='/jobs/new?from=']");
    case "y":
      return press("x-job .id[data-copy]");
    case "e":
      return firstError();
    default:
      return false;
  }
}

/** In the log tab; from another tab, the log is opened where the job failed, else at the first error. */
function firstError(): boolean {
  if (press("x-log [data-tool='error']")) return true;
  const failed = document.querySelector<HTMLAnchorElement>("[data-first-error]");
  location.assign(failed?.href ?? `${document.querySelector<HTMLElement>("x-job")?.dataset.base}/logs?level=error`);
  return true;
}

function act(key: string): boolean {
  if (onJob(key)) return true;
  const row = document.activeElement?.closest<HTMLElement>("tr[data-job]");
  switch (key) {
    case "g":
      prefix = Date.now();
      return true;
    case "n":
      return press("a[href$='/jobs/new']");
    case "/":
      return press("#q,[type=search]");
    case "t":
      return press("[data-theme-toggle]");
    case ".":
      return press("#new-jobs");
    case "?":
      (document.getElementById("keys") as HTMLElement | null)?.togglePopover();
      return true;
    case "j":
      move(1);
      return true;
    case "k":
      move(-1);
      return true;
    case "x":
      row?.querySelector<HTMLInputElement>("input[name=job]:not(:disabled)")?.click();
      return !!row;
    default:
      return false;
  }
}

function go(key: string): boolean {
  prefix = 0;
  if (key === "c") {
    location.assign("/cluster");
    return true;
  }
  const place = PLACES[key];
  if (place === undefined || !tenant()) return false;
  location.assign(`/t/${tenant()}/${place}`);
  return true;
}

export function startShortcuts(): void {
  if (document.documentElement.dataset.shortcuts === "off") return;
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || document.querySelector("dialog:modal") || event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    const waiting = prefix > 0 && Date.now() - prefix < GO_MS;
    if (waiting ? go(event.key) : act(event.key)) event.preventDefault();
  });
}
