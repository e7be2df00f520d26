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
  failed: "The job could not be loaded: it was deleted, or the server is not responding.",
  tryAgain: "Try again",
};
const REFRESH_MS = 1000; // several changes at once are one refresh
const LOADING_MS = 300; // what was shown stays for so long
const PHONE = "(max-width: 768px)";

const drawer = document.getElementById("peek") as HTMLDialogElement;
const body = document.getElementById("peek-body") as HTMLElement;

class Peek {
  private row: HTMLElement | undefined;
  private leave: () => void = () => undefined; // what follows the shown job
  private asking: AbortController | undefined;
  private timer = 0;

  constructor() {
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
    this.asking?.abort();
    const { signal } = (this.asking = new AbortController());
    this.row?.removeAttribute("data-peeked");
    this.row = row;
    row.dataset.peeked = "";
    row.scrollIntoView({ block: "nearest" });
    const link = row.querySelector<HTMLAnchorElement>("a.name");
    const late = setTimeout(() => this.put(note(link?.textContent ?? "", words.loading)), LOADING_MS);
    body.ariaBusy = "true";
    const [page] = await Promise.all([fetchPage(`${link?.href}/peek`, { signal }), loadStyles()]);
    clearTimeout(late);
    if (signal.aborted) return;
    body.ariaBusy = null;
    const job = page?.querySelector<HTMLElement>(".peek-job");
    if (!job) {
      const again = Object.assign(document.createElement("button"), { type: "button", className: "button small", textContent: words.tryAgain });
      again.addEventListener("click", () => void this.show(row));
      return this.put(note(link?.textContent ?? "", words.failed, again));
    }
    const shown = document.importNode(job, true);
    this.put(shown);
    this.follow(shown);
  }

  private put(content: HTMLElement): void {
    this.leave();
    this.leave = () => undefined;
    resetZoom();
    body.replaceChildren(content);
    body.scrollTop = 0;
    if (!drawer.open) drawer[matchMedia(PHONE).matches ? "showModal" : "show"]();
    document.getElementById("peek-title")?.focus({ preventScroll: true });
  }

  private follow(shown: HTMLElement): void {
    const job = shown.dataset.job ?? "";
    let seq = Number(shown.dataset.seq);
    let before = "";
    const metrics = Metrics.of(job);
    metrics.addEventListener("newest", () => showNewest(shown, metrics));
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
    });
    this.leave = () => {
      stop();
      Metrics.leave(job);
    };
    if (shown.querySelector("x-log")) void import("./log/x-log");
    if (shown.querySelector("x-chart")) void import("./chart/x-chart");
  }

  private refreshSoon(): void {
    if (!this.timer) this.timer = window.setTimeout(() => void this.refresh(), REFRESH_MS);
  }

  private async refresh(): Promise<void> {
    this.timer = 0;
    const shown = body.querySelector<HTMLElement>(".peek-job");
    const link = this.row?.querySelector<HTMLAnchorElement>("a.name");
    if (!drawer.open || !shown || !link) return;
    const page = await fetchPage(`${link.href}/peek`);
    const fresh = page?.querySelector<HTMLElement>(".peek-job");
    if (!page || !fresh || !shown.isConnected || fresh.dataset.job !== shown.dataset.job) return;
    shown.dataset.marks = fresh.dataset.marks;
    morphParts(shown, page);
    renewLog(shown, fresh);
    if (shown.querySelector("x-log")) void import("./log/x-log");
    if (shown.querySelector("x-chart")) void import("./chart/x-chart");
  }

  private step(by: number): void {
    const rows = [...document.querySelectorAll<HTMLElement>("tr[data-job]:not([aria-disabled])")];
    const next = rows[(this.row ? rows.indexOf(this.row) : -1) + by];
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

/** The log keeps its lines, unless there was none, or another attempt has begun. */
function renewLog(shown: HTMLElement, fresh: HTMLElement): void {
  const [log, newer] = [shown, fresh].map((one) => one.querySelector<HTMLElement>("#peek-log"));
  const [old, now] = [log, newer].map((one) => one?.querySelector<HTMLElement>("x-log")?.dataset);
  const same = old && now && old.attempt === now.attempt && "known" in old === "known" in now;
  if (log && newer && !same && !log.closest("[data-stale]")) log.replaceChildren(...[...newer.childNodes].map((node) => document.importNode(node, true)));
}

/** The zoom is in the address, and of this job's steps only. */
function resetZoom(): void {
  body.querySelector<HTMLElement>(".zoom-pill:not([hidden])")?.click();
}

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
