// A list of jobs that stays right: changed rows are fetched as the server draws them and morphed in place; new jobs
// are counted in a pill, so no row moves under the pointer; the views' tabs count what they hold. The overview's cards are refreshed whole, the same way.
import { Idiomorph } from "idiomorph";
import { type Frame, live } from "./live";
import { texts } from "./texts";

const GATHER_MS = 1000;
const COUNT_MS = 5000; // where no row that is shown has changed, only the views' counts
const ROWS_AT_ONCE = 100;

interface Item {
  id: string;
  deleted?: boolean;
}

/** What stands at an address, or null while the server does not give it. */
async function text(address: string): Promise<string | null> {
  try {
    const answer = await fetch(address, { credentials: "same-origin" });
    return answer.ok && !answer.redirected ? await answer.text() : null;
  } catch {
    return null;
  }
}

/** Inputs keep what the person chose. */
const options = {
  morphStyle: "outerHTML" as const,
  callbacks: { beforeNodeMorphed: (old: Node) => !(old instanceof HTMLInputElement) },
};

class Jobs {
  private readonly changed = new Set<string>();
  private readonly fresh = new Set<string>();
  private timer = 0;
  private due = 0;
  private seq = -1;
  private first = true;

  constructor(region: HTMLElement) {
    live.watch(region.dataset.live ?? "", { cursor: () => this.seq, frame: (frame) => this.take(frame) });
    live.addEventListener("resumed", () => this.soon());
  }

  private take(frame: Frame): void {
    this.seq = Math.max(this.seq, frame.to);
    const items = frame.items as Item[];
    const shown = (id: string): boolean => document.getElementById(`job-${id}`) !== null;
    const newest = document.querySelector<HTMLElement>("tr[data-job]")?.dataset.job ?? "";
    for (const { id, deleted } of items) {
      if (shown(id)) this.changed.add(id);
      // Ids sort by time: what is newer than the newest row came after this page was drawn.
      else if (!deleted && !this.first && id > newest) this.fresh.add(id);
    }
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
    this.showNew();
    const ids = [...this.changed].slice(0, ROWS_AT_ONCE);
    for (const id of ids) this.changed.delete(id);
    const html = await text(`${location.pathname}?rows=${ids.join(",")}`);
    // Not now: they are still to be drawn, when something changes or the connection is back.
    if (html === null) return ids.forEach((id) => this.changed.add(id));
    this.draw(html, ids);
    if (this.changed.size) this.soon();
  }

  private draw(html: string, ids: string[]): void {
    const template = document.createElement("template");
    template.innerHTML = html;
    for (const id of ids) {
      const old = document.getElementById(`job-${id}`);
      const row = template.content.querySelector(`#job-${id}`);
      if (old && row) Idiomorph.morph(old, row, options);
      else if (old) old.setAttribute("aria-disabled", "true");
    }
    for (const count of template.content.querySelectorAll<HTMLElement>("[data-view]")) {
      const shown = document.querySelector(`.tabs [data-view="${count.dataset.view}"]`);
      if (shown) shown.textContent = count.textContent;
    }
  }

  private showNew(): void {
    const pill = document.getElementById("new-jobs");
    const text = pill?.querySelector("span");
    if (!pill || !text || !this.fresh.size) return;
    text.textContent = texts.forms.newJobs(this.fresh.size);
    pill.hidden = false;
  }
}

/** Cards that hang on one channel together (overview, cluster, quotas): all of them are drawn anew. */
class Cards {
  private timer = 0;
  private seq = -1;
  private first = true;

  constructor(private readonly body: HTMLElement) {
    live.watch(body.dataset.follow ?? "", { cursor: () => this.seq, frame: (frame) => this.take(frame) });
    live.addEventListener("resumed", () => this.soon());
  }

  private take(frame: Frame): void {
    this.seq = Math.max(this.seq, frame.to);
    if (!this.first && frame.items.length) this.soon();
    this.first = false;
  }

  private soon(): void {
    if (!this.timer && !document.hidden) this.timer = window.setTimeout(() => void this.refresh(), GATHER_MS);
  }

  private async refresh(): Promise<void> {
    this.timer = 0;
    const html = await text(location.href);
    const fresh = html === null ? null : new DOMParser().parseFromString(html, "text/html").getElementById(this.body.id);
    if (fresh) Idiomorph.morph(this.body, fresh, options);
  }
}

/** Halting what is chosen waits for a choice. */
function startChoice(): void {
  const button = document.querySelector<HTMLButtonElement>("#halt-many");
  if (!button) return;
  const sync = (): void => void (button.disabled = !document.querySelector("input[name=job]:checked:not(:disabled)"));
  document.addEventListener("change", sync);
  addEventListener("pageshow", sync); // a choice comes back with the page
  const rows = document.getElementById("rows");
  if (rows) new MutationObserver(sync).observe(rows, { subtree: true, childList: true, attributeFilter: ["disabled"] });
  sync();
}

export function startJobsList(): void {
  startChoice();
  const list = document.querySelector<HTMLElement>("[data-region=jobs][data-live]");
  if (list) new Jobs(list);
  const cards = document.querySelector<HTMLElement>("[data-follow]");
  if (cards) new Cards(cards);
}
