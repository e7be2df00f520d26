// A list of jobs that stays current: changed rows are fetched and morphed in place; new jobs are counted in a pill, so no
// row moves under the pointer; the tabs of the views show their counts. The overview's cards are fetched together.
// A row that is shown as active is fetched again after every connect, whatever frames were missed.
import { type Frame, live } from "./live";
import { actionIn } from "./keys";
import { fetchPage, morph } from "./parts";
import { PEEK_KEYS } from "./peek-keys";
import { texts } from "./texts";
import { toast } from "./toast";

const GATHER_MS = 1000;
const SAVED_MS = 5000; // between counts of saved views, of which each may take a search
const COUNT_MS = 5000; // where no visible row has changed, only the views' counts
const RETRY_MS = 5000;
const RECHECK_MS = 15_000; // a cluster that no longer responds sends nothing
const ROWS_AT_ONCE = 100;

interface Item {
  id: string;
  deleted?: boolean;
}

class Jobs {
  private readonly changed = new Set<string>();
  private readonly fresh = new Set<string>();
  private timer = 0;
  private due = 0;
  private fetching = false;
  private countedAt = 0; // when those of saved views were
  private moved = false; // jobs have changed since
  private seq: number; // at first what the page was rendered with
  private first = true;
  private joining = true; // no frame has come yet since the channel was subscribed
  private readonly newest: string; // of the tenant's jobs when this page was rendered, whatever is shown of them

  constructor(region: HTMLElement) {
    this.newest = region.dataset.newest ?? "";
    this.seq = Number(region.dataset.news ?? -1);
    live.watch(region.dataset.followRows ?? "", {
      cursor: () => {
        this.joining = true;
        return this.seq;
      },
      frame: (frame) => this.take(frame),
      gap: () => {
        this.moved = true;
        this.recheck("tr[data-job]");
      },
    });
    live.addEventListener("resumed", () => {
      this.moved = true; // maybe
      this.soon();
    });
    setInterval(() => {
      if (document.hidden) return;
      this.recheck("tr[data-active]");
      this.soon(); // the banner is of the platform, whatever rows there are
    }, RECHECK_MS);
  }

  private recheck(rows: string): void {
    for (const row of document.querySelectorAll<HTMLElement>(rows)) this.changed.add(row.dataset.job ?? "");
    this.changed.delete("");
    if (this.changed.size) this.soon();
  }

  private take(frame: Frame): void {
    this.seq = Math.max(this.seq, frame.to);
    if (this.joining) {
      this.joining = false;
      this.recheck("tr[data-active]");
    }
    const items = frame.items as Item[];
    const shown = (id: string): boolean => document.getElementById(`job-${id}`) !== null;
    for (const { id, deleted } of items) {
      if (shown(id)) this.changed.add(id);
      // Ids sort by time: a newer job came after this page was rendered.
      else if (!deleted && id > this.newest) this.fresh.add(id);
    }
    if (items.length) this.moved = true;
    const later = !this.first && items.length > 0;
    this.first = false;
    if (this.changed.size || this.fresh.size) this.soon();
    else if (later) this.soon(COUNT_MS);
  }

  private soon(ms = GATHER_MS): void {
    const due = Date.now() + ms;
    if (this.timer && this.due <= due) return;
    clearTimeout(this.timer);
    this.due = due;
    this.timer = window.setTimeout(() => void this.refresh(), ms);
  }

  private async refresh(): Promise<void> {
    this.timer = 0;
    if (this.fetching) return this.soon(); // of two at once the older could be drawn last
    this.showNew();
    const ids = [...this.changed].slice(0, ROWS_AT_ONCE);
    for (const id of ids) this.changed.delete(id);
    this.fetching = true;
    const saved = this.moved && Date.now() - this.countedAt >= SAVED_MS;
    if (saved) [this.moved, this.countedAt] = [false, Date.now()];
    const page = await fetchPage(`${location.pathname}?rows=${ids.join(",")}${saved ? "&saved" : ""}`);
    this.fetching = false;
    if (!page) {
      this.moved ||= saved;
      for (const id of ids) this.changed.add(id);
      return this.soon(RETRY_MS);
    }
    this.draw(page, ids);
    if (this.changed.size) this.soon();
    else if (this.moved) this.soon(SAVED_MS);
  }

  private draw(page: DocumentFragment, ids: string[]): void {
    for (const id of ids) {
      const old = document.getElementById(`job-${id}`);
      const row = page.getElementById(`job-${id}`);
      if (old && row) {
        row.toggleAttribute("data-peeked", "peeked" in old.dataset);
        morph(old, row);
      }
      if (old && !row) old.setAttribute("aria-disabled", "true");
    }
    for (const count of page.querySelectorAll<HTMLElement>("[data-view]")) {
      const shown = document.querySelector(`.tabs [data-view="${count.dataset.view}"]`);
      if (shown) shown.textContent = count.textContent;
    }
    const outdated = page.querySelector("[data-outdated]")?.textContent ?? "";
    const banner = document.getElementById("outdated");
    const words = banner?.querySelector("span");
    if (!banner || !words) return;
    if (words.textContent !== outdated) words.textContent = outdated;
    banner.hidden = !outdated;
  }

  private showNew(): void {
    const pill = document.getElementById("new-jobs");
    const text = pill?.querySelector("span");
    if (!pill || !text || !this.fresh.size) return;
    text.textContent = texts.forms.newJobs(this.fresh.size);
    pill.hidden = false;
  }
}

/** Cards that follow one channel together (overview, cluster, quotas): all of them are fetched again. */
class Cards {
  private timer = 0;
  private fetching = false;
  private seq = -1;
  private first = true;
  private missed = false;

  constructor(private readonly body: HTMLElement) {
    live.watch(body.dataset.follow ?? "", { cursor: () => this.seq, frame: (frame) => this.take(frame) });
    live.addEventListener("resumed", () => this.soon());
    document.addEventListener("visibilitychange", () => {
      if (this.missed) this.soon(); // what came while the tab was hidden
    });
    if ("recheck" in body.dataset) setInterval(() => this.soon(), RECHECK_MS);
  }

  private take(frame: Frame): void {
    this.seq = Math.max(this.seq, frame.to);
    // The first frame says how things are; what happened since the page was rendered is news.
    const news = this.first ? frame.to >= Number(this.body.dataset.news) : frame.items.length > 0;
    if (news) this.soon();
    this.first = false;
  }

  private soon(ms = GATHER_MS): void {
    this.missed = document.hidden;
    if (!this.timer && !this.missed) this.timer = window.setTimeout(() => void this.refresh(), ms);
  }

  private async refresh(): Promise<void> {
    this.timer = 0;
    if (this.fetching) return this.soon();
    this.fetching = true;
    const fresh = (await fetchPage(location.href))?.getElementById(this.body.id);
    this.fetching = false;
    if (fresh) morph(this.body, fresh);
    else this.soon(RETRY_MS);
  }
}

/** The link to older jobs brings their rows into this page. */
function startMore(): void {
  document.addEventListener("click", (event) => {
    const link = (event.target as Element).closest<HTMLAnchorElement>("a[data-load-more]");
    const last = link?.closest("tr");
    if (!link || !last || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    if (link.ariaBusy) return;
    link.ariaBusy = "true";
    void fetchPage(link.href).then((page) => {
      const rows = [...(page?.querySelectorAll("#rows > tr") ?? [])].map((row) => document.importNode(row, true));
      if (!rows.length) return location.assign(link.href);
      last.replaceWith(...rows);
      rows[0]?.querySelector<HTMLElement>("a")?.focus();
    });
  });
}

/** The actions on selected jobs are disabled while none is selected. */
function startChoice(): void {
  const buttons = document.querySelectorAll<HTMLButtonElement>("#bulk-bar button");
  const count = document.getElementById("selected-count");
  if (!buttons.length || !count) return;
  const sync = (): void => {
    const selected = document.querySelectorAll("input[name=job]:checked").length;
    for (const button of buttons) button.disabled = !selected;
    count.textContent = texts.forms.selected(selected);
  };
  document.addEventListener("change", sync);
  addEventListener("pageshow", sync); // the browser restores a selection with the page
  const rows = document.getElementById("rows");
  if (rows) new MutationObserver(sync).observe(rows, { subtree: true, childList: true, attributeFilter: ["disabled"] });
  sync();
}

/** The drawer beside the list: by a row's button, or by Space on its name, which does nothing there otherwise. */
function startPeek(): void {
  if (!document.getElementById("peek")) return;
  const open = (row: HTMLElement | null): void => {
    if (!row) return;
    void import("./peek").then(({ togglePeek }) => togglePeek(row)).catch(() => toast(texts.session.unreachable, "error"));
  };
  document.addEventListener("click", (event) => open((event.target as Element).closest("[data-peek]")?.closest("tr") ?? null));
  document.addEventListener("keydown", (event) => {
    const isName = event.target instanceof Element && event.target.matches("tr[data-job] a.name");
    if (!isName || actionIn(PEEK_KEYS, event) !== "open" || document.documentElement.dataset.shortcuts === "off") return;
    event.preventDefault();
    open(event.target.closest("tr"));
  });
}

export function startJobsList(): void {
  document.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  startPeek();
  startChoice();
  startMore();
  const list = document.querySelector<HTMLElement>("[data-follow-rows]");
  if (list) new Jobs(list);
  const cards = document.querySelector<HTMLElement>("[data-follow]");
  if (cards) new Cards(cards);
}
