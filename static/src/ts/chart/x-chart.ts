// <x-chart>: one metric over steps or time, of a job (data-job) or of several that are compared (data-jobs, as
// Compared[]). Drawn only while visible, at most twice a second; new data keeps the zoom.
import uPlot from "uplot";
import { button, downloadLink, named } from "../button";
import { KEYS, actionIn } from "../keys";
import { texts } from "../texts";
import { clipping } from "./clip";
import { Feed } from "./feed";
import { drawMarks, drawOutside, options } from "./plot";
import { bucketsFor, csvAddress, type Axis, type Compared, type Series } from "./series";
import { columns, isBare, short, tabulate, type Table } from "./table";
import { values, valuesTable } from "./values";
import { change, settings } from "./page-settings";
import type { Settings } from "./settings";
import { comparison, legend, marksFor, nothing, summary, tip, type Entry, type Mark } from "./words";

const REDRAW_MS = 500;
const MOUNTED_MAX = 12;
const ROWS = 2_000; // of the table: more than thinned series have, so that none of their spikes is missing
const mounted = new Set<Chart>();

/** What a chart that has nothing to draw offers. */
interface Way {
  icon: string;
  text: string;
  act: () => void;
}

class Chart extends HTMLElement {
  private feeds: Feed[] = [];
  private failed: Feed[] = []; // compared jobs whose values could not be loaded
  private ends: (() => void)[] = []; // of what it receives from its feeds
  private table: Table = { x: [], lines: [], notFinite: [], below: 0 };
  private plot: uPlot | undefined;
  private holder!: HTMLElement;
  private readonly tip = document.createElement("div");
  private readonly reset = document.createElement("button");
  private observer: IntersectionObserver | undefined;
  private visible = false;
  private loaded = false;
  private loading = false; // some feeds may be of another axis or range than the others
  private outdated = false; // the plot was made for another axis or range
  private turn = 0;
  private timer = 0;
  private lastDraw = 0;
  private tableShown = false;

  connectedCallback(): void {
    this.holder = this.querySelector<HTMLElement>("[data-plot]") as HTMLElement;
    this.feeds = this.feedsOfPage();
    this.ends = this.feeds.map((feed) => feed.listen(this.onPoints, this.reload));
    document.addEventListener("chartsettings", this.onSettings);
    document.addEventListener("themechange", this.rebuild);
    this.buildTools();
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.holder.tabIndex = 0;
    this.holder.setAttribute("role", "img");
    this.holder.setAttribute("aria-label", texts.chart.notDrawn);
    this.holder.addEventListener("keydown", (event) => this.onKey(event));
    this.observer = new IntersectionObserver((entries) => this.onSight(entries.some((entry) => entry.isIntersecting)), { rootMargin: "120px" });
    this.observer.observe(this);
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(this.holder);
  }

  disconnectedCallback(): void {
    this.observer?.disconnect();
    for (const end of this.ends) end();
    document.removeEventListener("chartsettings", this.onSettings);
    document.removeEventListener("themechange", this.rebuild);
    this.unmount();
  }

  private get name(): string {
    return this.dataset.name ?? "";
  }

  private get axis(): Axis {
    return settings.x === "step" ? "step" : "time";
  }

  private get buckets(): number {
    return bucketsFor(this.size().width);
  }

  private get series(): Series[] {
    return this.feeds.flatMap((feed) => feed.series);
  }

  private feedsOfPage(): Feed[] {
    const { job, jobs } = this.dataset;
    if (jobs === undefined) return [new Feed(job ?? "", this.name)];
    return (JSON.parse(jobs) as Compared[]).map((one) => new Feed(one.id, this.name, one));
  }

  // --- data ---

  private readonly onSight = (visible: boolean): void => {
    this.visible = visible;
    if (!visible) return;
    if (!this.loaded || this.failed.length) void this.load();
    else this.drawSoon();
  };

  private readonly reload = (): void => {
    this.loaded = false;
    for (const feed of this.feeds) feed.forget();
    if (this.visible) void this.load();
  };

  private async load(): Promise<void> {
    this.loaded = this.loading = true;
    const turn = ++this.turn;
    const zoom = settings.zoom && settings.x !== "relative" ? settings.zoom : undefined;
    const range = zoom && this.axis === "time" ? ([zoom[0] * 1000, zoom[1] * 1000] as [number, number]) : zoom;
    const loads = await Promise.allSettled(this.feeds.map((feed) => feed.load(this.axis, this.buckets, range)));
    if (turn !== this.turn) return;
    this.loading = false;
    this.failed = this.feeds.filter((_, at) => loads[at]?.status === "rejected");
    if (this.failed.length === this.feeds.length) {
      this.loaded = false;
      const reason: unknown = loads[0]?.status === "rejected" && loads[0].reason;
      return this.showNote(reason instanceof Error ? reason.message : texts.chart.failed, this.again);
    }
    this.holder.querySelector(".skeleton")?.remove();
    this.holder.querySelector(".empty")?.remove();
    this.draw();
  }

  private readonly onPoints = (): void => {
    if (!this.loaded) return;
    if (this.series.some((one) => one.buckets.length > 3 * this.buckets)) return this.reload();
    if (this.visible) this.drawSoon();
  };

  private readonly onSettings = (event: Event): void => {
    const changed = (event as CustomEvent<string[]>).detail;
    const card = this.closest<HTMLElement>(".card");
    if (card) card.hidden = Boolean(settings.find) && !this.name.toLowerCase().includes(settings.find.toLowerCase());
    if (changed.includes("x") || changed.includes("zoom")) {
      this.outdated = true;
      this.reload();
    } else this.rebuild();
  };

  // --- drawing ---

  private drawSoon(): void {
    if (this.timer) return;
    const wait = Math.max(0, this.lastDraw + REDRAW_MS - Date.now());
    this.timer = window.setTimeout(() => {
      this.timer = 0;
      requestAnimationFrame(() => this.loading || this.draw());
    }, wait);
  }

  private readonly rebuild = (): void => {
    this.unmount();
    if (this.visible && this.loaded && !this.loading) this.draw();
  };

  private draw(): void {
    if (!this.isConnected || !this.visible) return;
    this.lastDraw = Date.now();
    const before = this.table.lines.length;
    const shown = this.tableShown ? { ...settings, log: false, delta: false } : settings;
    this.table = tabulate(this.series, shown);
    this.showWords(shown);
    if (!this.table.x.length || isBare(this.table)) return this.showNothing();
    if (this.tableShown) {
      this.unmount();
      return this.holder.replaceChildren(valuesTable(this.name, values(this.name, this.series, this.table, settings, ROWS)));
    }
    const data = columns(this.table, settings);
    if (this.plot && before === this.table.lines.length && !this.outdated) {
      this.plot.setData(data, !settings.zoom);
      this.showRange();
      return;
    }
    this.unmount();
    this.outdated = false;
    this.makeRoom();
    this.holder.replaceChildren();
    this.plot = new uPlot(options(this.table, settings, this.size(), this.hooks(), () => clipping(this.table, settings)), data, this.holder);
    this.holder.append(this.tip);
    this.showRange();
    mounted.add(this);
  }

  /** The x axis is exactly the zoom, wherever its points are. */
  private showRange(): void {
    if (settings.zoom) this.plot?.setScale("x", { min: settings.zoom[0], max: settings.zoom[1] });
  }

  /** Drawn charts cost time at every point: unmount one that is not visible. */
  private makeRoom(): void {
    if (mounted.size < MOUNTED_MAX) return;
    for (const other of mounted) if (!other.visible) return other.unmount();
  }

  private unmount(): void {
    this.plot?.destroy();
    this.plot = undefined;
    mounted.delete(this);
  }

  private size(): { width: number; height: number } {
    return { width: Math.max(120, this.holder.clientWidth), height: this.holder.clientHeight || 178 };
  }

  private hooks(): uPlot.Hooks.Arrays {
    return {
      draw: [
        (plot) => {
          drawMarks(plot, this.marks(), this.table.notFinite);
          drawOutside(plot, clipping(this.table, settings)?.outside ?? []);
        },
      ],
      setCursor: [(plot) => this.showTip(plot)],
      setSelect: [(plot) => this.onSelect(plot)],
    };
  }

  private marks(): Mark[] {
    if (settings.x !== "step") return [];
    return marksFor(this.name, this.series, JSON.parse(this.closest<HTMLElement>("[data-marks]")?.dataset.marks ?? "[]") as Mark[]);
  }

  private onSelect(plot: uPlot): void {
    const { left, width } = plot.select;
    if (width < 4 || !plot.cursor.event) return plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false); // no event: another chart is dragged
    const zoom: [number, number] = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    change({ zoom });
  }

  // --- words ---

  /** shown: the settings of what is drawn; a table has values as they are. */
  private showWords(shown: Settings): void {
    this.reset.hidden = !settings.zoom;
    if (settings.zoom) this.reset.textContent = texts.chart.resetZoom(short(settings.zoom[0]), short(settings.zoom[1]));
    const [{ compared, newest } = {}] = this.feeds;
    this.holder.setAttribute("aria-label", compared ? comparison(this.name, this.table, shown) : summary(this.name, this.series, newest));
    const entries = legend(this.name, this.series, this.table, shown, this.marks());
    for (const { compared } of this.failed) if (compared) entries.push({ text: texts.chart.notLoaded(compared.label), isNote: true });
    this.querySelector("[data-legend]")?.replaceChildren(...entries.map(entryOf));
  }

  private showTip(plot: uPlot): void {
    const { idx, left } = plot.cursor;
    this.tip.hidden = typeof idx !== "number" || this.table.x[idx] === undefined || left === undefined || left < 0;
    if (this.tip.hidden || typeof idx !== "number") return;
    this.tip.textContent = tip(this.table, idx, settings, this.series[0]?.axis);
    const right = (left ?? 0) > plot.over.clientWidth / 2;
    this.tip.style.left = right ? "56px" : "auto";
    this.tip.style.right = right ? "auto" : "8px";
    this.tip.style.top = "4px";
  }

  private showNothing(): void {
    const linear = { icon: "refresh-cw", text: texts.chart.linear, act: () => change({ log: false }) };
    const text = nothing(this.table, settings);
    if (this.table.below) this.showNote(text, linear);
    else this.showNote(text, text === texts.chart.noneYet ? null : this.again);
  }

  private readonly again: Way = { icon: "refresh-cw", text: texts.chart.tryAgain, act: () => this.reload() };

  private showNote(text: string, way: Way | null): void {
    this.unmount();
    if (this.holder.querySelector(".empty p")?.textContent === text) return; // its button may have the focus
    const note = document.createElement("div");
    note.className = "empty";
    const words = document.createElement("p");
    words.textContent = text;
    note.append(words);
    if (way) {
      const made = button(way.icon, texts.chart.of(way.text, this.name), way.text);
      made.addEventListener("click", way.act);
      note.append(made);
    }
    this.holder.replaceChildren(note);
  }

  // --- controls ---

  private buildTools(): void {
    const tools = this.querySelector(".tools");
    if (!tools || tools.childElementCount) return;
    const table = named(button("table", texts.chart.of(texts.chart.asTable, this.name)), texts.chart.table);
    table.setAttribute("aria-pressed", "false");
    table.addEventListener("click", () => {
      this.tableShown = !this.tableShown;
      table.setAttribute("aria-pressed", String(this.tableShown));
      this.unmount();
      this.draw();
    });
    const big = named(button("maximize-2", texts.chart.of(texts.chart.enlarge, this.name)), texts.chart.enlarge);
    big.setAttribute("aria-pressed", "false");
    big.dataset.enlarge = "";
    const enlarge = (on: boolean): void => {
      if (on) this.dataset.big = "";
      else delete this.dataset.big;
      big.setAttribute("aria-pressed", String(on));
      this.rebuild();
      if (on) this.reload(); // a wider plot shows more
    };
    big.addEventListener("click", () => enlarge(!("big" in this.dataset)));
    this.addEventListener("keydown", (event) => {
      if (actionIn(KEYS.chart, event) !== "smaller" || !("big" in this.dataset)) return;
      enlarge(false);
      big.focus();
    });
    this.reset.type = "button";
    this.reset.className = "zoom-pill";
    this.reset.hidden = true;
    this.reset.addEventListener("click", () => change({ zoom: null }));
    tools.before(this.reset);
    tools.append(table);
    if (this.dataset.job) tools.append(named(downloadLink(csvAddress(this.dataset.job, this.name), texts.chart.of(texts.chart.downloadCsv, this.name)), texts.chart.csv));
    tools.append(big);
  }

  private onKey(event: KeyboardEvent): void {
    const plot = this.plot;
    const action = actionIn(KEYS.chart, event);
    if (!action || action === "smaller") return; // the whole element's
    const { min = 0, max = 1 } = plot?.scales.x ?? {};
    const width = (max ?? 1) - (min ?? 0);
    const middle = ((max ?? 1) + (min ?? 0)) / 2;
    const move = (by: number): void => {
      if (!plot) return; // the values are shown as a table
      const last = this.table.x.length - 1;
      const at = Math.max(0, Math.min(last, (plot.cursor.idx ?? last) + by));
      plot.setCursor({ left: plot.valToPos(this.table.x[at] ?? 0, "x"), top: 10 });
    };
    const actions: Record<Exclude<keyof typeof KEYS.chart, "smaller">, () => void> = {
      back: () => move(-1),
      forward: () => move(1),
      back10: () => move(-10),
      forward10: () => move(10),
      zoomIn: () => change({ zoom: [middle - width / 4, middle + width / 4] }),
      zoomOut: () => change({ zoom: [middle - width, middle + width] }),
      reset: () => change({ zoom: null }),
      table: () => this.querySelector<HTMLButtonElement>(".tools button")?.click(),
      enlarge: () => this.querySelector<HTMLButtonElement>("[data-enlarge]")?.click(),
    };
    event.preventDefault();
    actions[action]();
  }
}

function entryOf({ text, swatch, isNote }: Entry): HTMLElement {
  const span = document.createElement("span");
  if (isNote) span.className = "non-finite";
  if (swatch !== undefined) span.append(Object.assign(document.createElement("i"), { className: swatch }));
  span.append(text);
  return span;
}

customElements.define("x-chart", Chart);
