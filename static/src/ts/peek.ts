// The drawer beside the list of jobs (jobs/peek.html), loaded when it is first opened: it shows one job, moves along the rows
// while it is open, and stays as current as the job's page. It covers a phone's whole screen.
import { Metrics } from "./chart/metrics";
import { metric } from "./format";
import { actionIn } from "./keys";
import { live, type Frame } from "./live";
import type { Rendered } from "./newest";
import { fetchPage, morphParts } from "./parts";
import { PEEK_KEYS } from "./peek-keys";

/** Texts of the drawer alone. */
const words = {
  loading: "Loading…",
  gone: "The job was deleted, or you no longer have access to it.",
  failed: "The job could not be loaded: it was deleted, or the server is not responding.",
  tryAgain: "Try again",
};
const REFRESH_MS = 1000; // several changes at once are one refresh
const RETRY_MS = 5000;
const RECHECK_MS = 15_000; // that the cluster no longer responds is no event
const LOADING_MS = 300; // what was shown stays for so long
const PHONE = "(max-width: 768px)";

const drawer = document.getElementById("peek") as HTMLDialogElement;
const body = document.getElementById("peek-body") as HTMLElement;

class Peek {
  private row: HTMLElement | undefined;
  private leave: () => void = () => undefined; // what follows the shown job
  private asking: AbortController | undefined; // of what is fetched: one at a time, as of two the older could be drawn last
  private refreshing = false;
  private timer = 0;

  constructor() {
    forgetZoom();
    drawer.addEventListener("click", this.onClick);
    drawer.addEventListener("close", () => this.closed());
    document.addEventListener("keydown", this.onKey, true); // before the keys of the page, which move from the focused row
    live.addEventListener("resumed", () => this.refreshSoon());
  }

  toggle(row: HTMLElement): void {
    if (drawer.open && row === this.row) drawer.close();
    else void this.show(row);
  }

  /** Show this row's job. The focus goes to its name, so that a screen reader says which one it is. */
  private async show(row: HTMLElement): Promise<void> {
    clearTimeout(this.timer);
    this.timer = 0;
    this.asking?.abort();
    const { signal } = (this.asking = new AbortController());
    this.row?.removeAttribute("data-peeked");
    this.row = row;
    row.dataset.peeked = "";
    row.scrollIntoView({ block: "nearest" });
    const link = row.querySelector<HTMLAnchorElement>("a.name");
    const late = setTimeout(() => this.put(note(nameOf(row), words.loading)), LOADING_MS);
    body.ariaBusy = "true";
    const [page] = await Promise.all([fetchPage(`${link?.href}/peek`, { signal }), loadStyles()]);
    clearTimeout(late);
    if (signal.aborted) return;
    body.ariaBusy = null;
    const job = page?.querySelector<HTMLElement>(".peek-job");
    if (!job) {
      const again = Object.assign(document.createElement("button"), { type: "button", className: "button small", textContent: words.tryAgain });
      again.addEventListener("click", () => void this.show(row));
      return this.put(note(nameOf(row), words.failed, again));
    }
    const shown = document.importNode(job, true);
    this.put(shown);
    this.follow(shown, row);
  }

  private put(content: HTMLElement, focus = true): void {
    this.leave();
    this.leave = () => undefined;
    resetZoom();
    body.replaceChildren(content);
    body.scrollTop = 0;
    if (!drawer.open) drawer[matchMedia(PHONE).matches ? "showModal" : "show"]();
    if (focus) document.getElementById("peek-title")?.focus({ preventScroll: true });
  }

  private follow(shown: HTMLElement, row: HTMLElement): void {
    const job = shown.dataset.job ?? "";
    let seq = Number(shown.dataset.seq);
    let before = "";
    const metrics = Metrics.of(job);
    metrics.addEventListener("newest", () => showNewest(shown, metrics));
    metrics.addEventListener("gap", () => this.refreshSoon());
    metrics.render(JSON.parse(shown.dataset.metrics ?? "{}") as Rendered);
    const stop = live.watch(`job:${job}`, {
      cursor: () => seq,
      frame: (frame: Frame) => {
        const now = JSON.stringify(frame.job);
        const changed = frame.to > seq || (before !== "" && now !== before);
        [seq, before] = [Math.max(seq, frame.to), now];
        if (changed) this.refreshSoon();
      },
      gap: (_from, to) => {
        seq = to;
        this.refreshSoon();
      },
      error: (code) => code === "not_found" && this.row === row && this.put(note(nameOf(row), words.gone), body.contains(document.activeElement)),
    });
    const recheck = setInterval(() => shown.querySelector("[data-recheck]") && !document.hidden && this.refreshSoon(), RECHECK_MS);
    this.leave = () => {
      stop();
      clearInterval(recheck);
      Metrics.leave(job);
    };
    if (shown.querySelector("x-log")) void import("./log/x-log");
    if (shown.querySelector("x-chart")) void import("./chart/x-chart");
  }

  private refreshSoon(ms = REFRESH_MS): void {
    if (!this.timer) this.timer = window.setTimeout(() => void this.refresh(), ms);
  }

  private async refresh(): Promise<void> {
    this.timer = 0;
    const shown = body.querySelector<HTMLElement>(".peek-job[data-job]");
    const link = this.row?.querySelector<HTMLAnchorElement>("a.name");
    if (!drawer.open || !shown || !link || body.ariaBusy) return;
    if (this.refreshing) return this.refreshSoon();
    this.refreshing = true;
    const { signal } = (this.asking = new AbortController());
    const page = await fetchPage(`${link.href}/peek`, { signal });
    this.refreshing = false;
    if (signal.aborted || !shown.isConnected) return;
    const fresh = page?.querySelector<HTMLElement>(".peek-job");
    if (!page || !fresh) return this.refreshSoon(RETRY_MS);
    shown.dataset.marks = fresh.dataset.marks;
    renewChart(shown, fresh);
    morphParts(shown, page);
    Metrics.of(shown.dataset.job ?? "").render(JSON.parse(fresh.dataset.metrics ?? "{}") as Rendered);
    renewLog(shown, fresh);
    if (shown.querySelector("x-log")) void import("./log/x-log");
    if (shown.querySelector("x-chart")) void import("./chart/x-chart");
  }

  private step(by: number): void {
    const rows = [...document.querySelectorAll<HTMLElement>("tr[data-job]")];
    let at = this.row ? rows.indexOf(this.row) : -1; // its job may be gone by now
    do at += by;
    while (rows[at]?.ariaDisabled);
    const next = rows[at];
    if (next) void this.show(next);
  }

  private readonly onClick = (event: MouseEvent): void => {
    const pressed = (event.target as Element).closest<HTMLElement>("[data-peek-step],[data-peek-close]");
    if (!pressed) return;
    if (pressed.dataset.peekStep) this.step(Number(pressed.dataset.peekStep));
    else drawer.close();
  };

  /** The arrows scroll a log, and Escape makes a large chart small again. Off are letters, where single keys are. */
  private readonly onKey = (event: KeyboardEvent): void => {
    const action = actionIn(PEEK_KEYS, event);
    const target = event.target as Element;
    if (!drawer.open || !action || action === "open" || document.querySelector("dialog:modal:not(#peek),:popover-open")) return;
    if (target.matches("input:not([type=checkbox]),textarea,select") || target.closest(action === "close" ? "x-chart[data-big]" : "x-log,x-chart,summary")) return;
    if (event.key.length === 1 && document.documentElement.dataset.shortcuts === "off") return;
    event.preventDefault();
    if (action === "close") drawer.close();
    else this.step(action === "next" ? 1 : -1);
  };

  /** The focus returns to the row of the job that was shown last. */
  private closed(): void {
    this.asking?.abort();
    this.leave();
    this.leave = () => undefined;
    resetZoom();
    body.replaceChildren();
    this.row?.removeAttribute("data-peeked");
    this.row?.querySelector<HTMLElement>("a.name")?.focus();
    this.row = undefined;
  }
}

/** In the head of the chart. */
function showNewest(shown: HTMLElement, metrics: Metrics): void {
  for (const cell of shown.querySelectorAll<HTMLElement>("[data-value^='metric:']")) {
    const newest = metrics.newest.of(cell.dataset.value?.slice("metric:".length) ?? "");
    if (newest) cell.textContent = metric(newest.value);
  }
}

/** Another metric is the primary one now: its chart takes the place of the one that was. */
function renewChart(shown: HTMLElement, fresh: HTMLElement): void {
  const [charts, newer] = [shown, fresh].map((one) => one.querySelector<HTMLElement>("#peek-charts"));
  const [old, now] = [charts, newer].map((one) => one?.querySelector<HTMLElement>("x-chart")?.dataset.name);
  if (!charts || !newer || !old || old === now) return;
  resetZoom();
  replaceContent(charts, newer);
}

/** The log keeps its lines, unless there was none, it is over, or another attempt has begun. */
function renewLog(shown: HTMLElement, fresh: HTMLElement): void {
  const [log, newer] = [shown, fresh].map((one) => one.querySelector<HTMLElement>("#peek-log"));
  const [old, now] = [log, newer].map((one) => one?.querySelector<HTMLElement>("x-log")?.dataset);
  const same = old && now && old.attempt === now.attempt && ["known", "over"].every((one) => one in old === one in now);
  if (log && newer && !same && !log.closest("[data-stale]")) replaceContent(log, newer);
}

function replaceContent(element: HTMLElement, newer: HTMLElement): void {
  element.replaceChildren(...[...newer.childNodes].map((node) => document.importNode(node, true)));
}

/** The zoom is in the address, and of this job's steps only. */
function resetZoom(): void {
  body.querySelector<HTMLElement>(".zoom-pill:not([hidden])")?.click();
}

/** Left there by a drawer that was open when the page was left. Charts read it when they are loaded. */
function forgetZoom(): void {
  const address = new URL(location.href);
  if (!address.searchParams.has("zoom")) return;
  address.searchParams.delete("zoom");
  history.replaceState(history.state, "", address);
}

const nameOf = (row: HTMLElement): string => row.querySelector("a.name")?.textContent ?? "";

function note(name: string, text: string, way?: HTMLElement): HTMLElement {
  const made = document.createElement("div");
  made.className = "peek-job";
  const title = Object.assign(document.createElement("h2"), { id: "peek-title", tabIndex: -1, textContent: name });
  const paragraph = Object.assign(document.createElement("p"), { className: "secondary", textContent: text });
  made.append(title, paragraph, ...(way ? [way] : []));
  return made;
}

let styles: Promise<void> | undefined;

/** The drawer has no place before its styles are there; where they cannot be loaded, the next row tries again. */
function loadStyles(): Promise<void> {
  return (styles ??= new Promise((resolve) => {
    const link = Object.assign(document.createElement("link"), { rel: "stylesheet", href: drawer.dataset.style });
    link.addEventListener("load", () => resolve());
    link.addEventListener("error", () => {
      link.remove();
      styles = undefined;
      resolve();
    });
    document.head.append(link);
  }));
}

const peek = new Peek();
export const togglePeek = (row: HTMLElement): void => peek.toggle(row);
