// <x-chart>: one metric over steps or time. Drawn only while in sight, at most twice a second; zoom survives new data.
import uPlot from "uplot";
import { metric, thousands } from "../format";
import { button, named } from "../log/toolbar";
import { columns, drawMarks, isBare, options, short, tabulate, type Mark, type Table } from "./plot";
import { BUCKETS, Metrics, addPoint, type Axis, type Point, type Series } from "./series";
import { change, settings } from "./settings";

const REDRAW_MS = 500;
const MOUNTED_MAX = 12;
const ROWS = 300; // of the table
const mounted = new Set<Chart>();

/** What a chart without a picture offers. */
interface Way {
  icon: string;
  words: string;
  act: () => void;
}

class Chart extends HTMLElement {
  private series: Series[] = [];
  private table: Table = { x: [], lines: [], notFinite: [], below: 0 };
  private plot: uPlot | undefined;
  private metrics!: Metrics;
  private holder!: HTMLElement;
  private readonly tip = document.createElement("div");
  private readonly reset = document.createElement("button");
  private observer: IntersectionObserver | undefined;
  private visible = false;
  private loaded = false;
  private other = false; // another axis or range than the plot was made for
  private upto = 0; // number of the newest point that the answer had
  private early: Point[] | null = null; // what came while an answer was under way
  private turn = 0;
  private timer = 0;
  private lastDraw = 0;
  private tableShown = false;

  connectedCallback(): void {
    this.holder = this.querySelector<HTMLElement>("[data-plot]") as HTMLElement;
    this.metrics = Metrics.of(this.dataset.job ?? "");
    this.metrics.addEventListener("points", this.onPoints);
    this.metrics.addEventListener("gap", this.reload);
    document.addEventListener("chartsettings", this.onSettings);
    document.addEventListener("themechange", this.rebuild);
    this.buildTools();
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.holder.tabIndex = 0;
    this.holder.setAttribute("role", "img");
    this.holder.setAttribute("aria-label", "Not drawn yet");
    this.holder.addEventListener("keydown", (event) => this.onKey(event));
    this.observer = new IntersectionObserver((entries) => this.onSight(entries.some((entry) => entry.isIntersecting)), { rootMargin: "120px" });
    this.observer.observe(this);
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(this.holder);
  }

  disconnectedCallback(): void {
    this.observer?.disconnect();
    this.metrics.removeEventListener("points", this.onPoints);
    this.metrics.removeEventListener("gap", this.reload);
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

  // --- data ---

  private readonly onSight = (visible: boolean): void => {
    this.visible = visible;
    if (!visible) return;
    if (!this.loaded) void this.load();
    else this.drawSoon();
  };

  private readonly reload = (): void => {
    this.loaded = false;
    if (this.visible) void this.load();
  };

  private async load(): Promise<void> {
    this.loaded = true;
    const turn = ++this.turn;
    this.early ??= [];
    try {
      const zoom = settings.zoom && settings.x !== "relative" ? settings.zoom : undefined;
      const range = zoom && this.axis === "time" ? ([zoom[0] * 1000, zoom[1] * 1000] as [number, number]) : zoom;
      const { series, seq } = await this.metrics.fetch(this.name, this.axis, range);
      if (turn !== this.turn) return;
      this.series = series;
      this.upto = seq;
      const early = this.early ?? [];
      this.early = null;
      this.take(early);
      this.holder.querySelector(".sk")?.remove();
      this.holder.querySelector(".emp")?.remove();
      this.draw();
    } catch (error) {
      if (turn !== this.turn) return;
      this.loaded = false;
      this.early = null;
      this.showProblem(error instanceof Error ? error.message : "The numbers could not be loaded.");
    }
  }

  private readonly onPoints = (event: Event): void => {
    const points = (event as CustomEvent<Point[]>).detail.filter((point) => point.name === this.name);
    if (!points.length || !this.loaded) return;
    if (this.early) return void this.early.push(...points);
    this.take(points);
    if (this.series.some((one) => one.buckets.length > 3 * BUCKETS)) this.loaded = false;
    if (!this.visible) return;
    if (!this.loaded) void this.load();
    else this.drawSoon();
  };

  private take(points: Point[]): void {
    for (const point of points) if (point.n > this.upto) addPoint(this.series, point, this.axis);
  }

  private readonly onSettings = (event: Event): void => {
    const changed = (event as CustomEvent<string[]>).detail;
    const card = this.closest<HTMLElement>(".card");
    if (card) card.hidden = Boolean(settings.find) && !this.name.toLowerCase().includes(settings.find.toLowerCase());
    if (changed.includes("x") || changed.includes("zoom")) {
      this.other = true;
      this.reload();
    } else this.rebuild();
  };

  // --- drawing ---

  private drawSoon(): void {
    if (this.timer) return;
    const wait = Math.max(0, this.lastDraw + REDRAW_MS - Date.now());
    this.timer = window.setTimeout(() => {
      this.timer = 0;
      requestAnimationFrame(() => this.draw());
    }, wait);
  }

  private readonly rebuild = (): void => {
    this.unmount();
    if (this.visible && this.loaded) this.draw();
  };

  private draw(): void {
    if (!this.isConnected || !this.visible) return;
    this.lastDraw = Date.now();
    const before = this.table.lines.length;
    this.table = tabulate(this.series, this.tableShown ? { ...settings, log: false } : settings);
    this.showWords();
    if (!this.table.x.length || isBare(this.table)) return this.showNothing();
    if (this.tableShown) return this.drawTable();
    const data = columns(this.table, settings);
    if (this.plot && before === this.table.lines.length && !this.other) {
      this.plot.setData(data, !settings.zoom);
      this.showRange();
      return;
    }
    this.unmount();
    this.other = false;
    this.makeRoom();
    this.holder.replaceChildren();
    this.plot = new uPlot(options(this.table, settings, this.size(), this.hooks()), data, this.holder);
    this.holder.append(this.tip);
    this.showRange();
    mounted.add(this);
  }

  /** The x axis is exactly what was zoomed to, wherever the points in it lie. */
  private showRange(): void {
    if (settings.zoom) this.plot?.setScale("x", { min: settings.zoom[0], max: settings.zoom[1] });
  }

  /** Drawn charts cost time at every point: the one farthest out of sight makes room. */
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
      draw: [(plot) => drawMarks(plot, this.marks(), this.table.notFinite)],
      setCursor: [(plot) => this.showTip(plot)],
      setSelect: [(plot) => this.onSelect(plot)],
    };
  }

  private marks(): Mark[] {
    if (settings.x !== "step") return [];
    return JSON.parse(this.closest<HTMLElement>("x-job")?.dataset.marks ?? "[]") as Mark[];
  }

  private onSelect(plot: uPlot): void {
    const { left, width } = plot.select;
    if (width < 4 || !plot.cursor.event) return plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false); // no event: another chart is dragged
    const zoom: [number, number] = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    change({ zoom });
  }

  // --- words ---

  private showWords(): void {
    const first = this.series[0]?.buckets;
    const last = first?.[first.length - 1];
    this.reset.hidden = !settings.zoom;
    if (settings.zoom) this.reset.textContent = `${short(settings.zoom[0])} – ${short(settings.zoom[1])}, reset`;
    const lows = this.series.flatMap((one) => one.buckets.flatMap((bucket) => (bucket[1] === null ? [] : [bucket[1]])));
    const words = last ? `${this.name}: ${metric(last[3])} at ${settings.x === "step" ? `step ${thousands(last[0])}` : "the newest point"}, lowest ${metric(Math.min(...lows))}, ${thousands(this.points())} points` : `${this.name}: no points`;
    this.holder.setAttribute("aria-label", words);
    const head = this.querySelector("[data-last]");
    if (head?.textContent === "—" && last) head.textContent = metric(last[3]); // beyond the names of which the job keeps the newest value
    this.showLegend();
  }

  private points(): number {
    return this.series.reduce((sum, one) => sum + one.points, 0);
  }

  private showLegend(): void {
    const legend = this.querySelector("[data-legend]");
    if (!legend) return;
    const entry = (classes: string, text: string): HTMLElement => {
      const span = document.createElement("span");
      const swatch = document.createElement("i");
      swatch.className = classes;
      span.append(swatch, text);
      return span;
    };
    const many = this.series.length > 1;
    const entries = this.table.lines.map((line, at) => entry(`c${at + 1}${at % 2 ? " d" : ""}`, many ? `learner ${line.rank}` : this.name));
    if (this.series.length > this.table.lines.length) entries.push(entry("", `${this.series.length - this.table.lines.length} more learners`));
    const marks = this.marks();
    for (const [line, drawn] of [["╎ attempt", marks.some(([, words]) => words)], ["┊ checkpoint", marks.some(([, words]) => !words)]] as const)
      if (drawn) entries.push(Object.assign(document.createElement("span"), { textContent: line }));
    if (settings.smooth > 0) entries.push(entry("c1", `smoothed ${settings.smooth.toFixed(2)}`));
    if (this.series.some((one) => one.superseded.length)) entries.push(entry("c1 d", "superseded"));
    const note = (text: string): HTMLElement => Object.assign(document.createElement("span"), { className: "nf", textContent: text });
    if (this.table.notFinite.length) entries.push(note(`✕ ${this.table.notFinite.length} not finite`));
    if (this.table.below) entries.push(note(`${this.table.below} not above 0, left out`));
    legend.replaceChildren(...entries);
  }

  private showTip(plot: uPlot): void {
    const { idx, left } = plot.cursor;
    const x = idx === null || idx === undefined ? undefined : this.table.x[idx];
    this.tip.hidden = x === undefined || left === undefined || left < 0;
    if (this.tip.hidden || x === undefined || idx === null || idx === undefined) return;
    const place = settings.x === "step" ? `step ${thousands(x)}` : settings.x === "time" ? new Date(x * 1000).toISOString().slice(11, 19) : `${short(x)} s`;
    const values = this.table.lines
      .map((line) => ({ line, value: line.drawn[idx] }))
      .filter((one) => one.value !== null && one.value !== undefined)
      .sort((a, b) => (b.value ?? 0) - (a.value ?? 0))
      .map(({ line, value }) => `${this.table.lines.length > 1 ? `L${line.rank} ` : ""}${metric(value)}`);
    this.tip.textContent = [place, ...values].join(" · ");
    const right = (left ?? 0) > plot.over.clientWidth / 2;
    this.tip.style.left = right ? "56px" : "auto";
    this.tip.style.right = right ? "auto" : "8px";
    this.tip.style.top = "4px";
  }

  /** There is nothing to draw: said as it is, for the first values of a running job are merely on their way. */
  private showNothing(): void {
    if (this.table.below) this.showProblem("No value above 0: a log scale cannot show it.", { icon: "refresh-cw", words: "Linear scale", act: () => change({ log: false }) });
    else if (settings.zoom) this.showProblem("No value in this range.");
    else if (this.table.notFinite.length) this.showProblem("No finite value to draw.");
    else this.showProblem("The first values are on their way.", null);
  }

  private showProblem(text: string, way: Way | null = { icon: "refresh-cw", words: "Try again", act: this.reload }): void {
    this.unmount();
    if (this.holder.querySelector(".emp p")?.textContent === text) return; // its button may have the focus
    const note = document.createElement("div");
    note.className = "emp";
    const words = document.createElement("p");
    words.textContent = text;
    note.append(words);
    if (way) {
      const made = button(this.dataset.icons ?? "", way.icon, `${way.words}: ${this.name}`, way.words);
      made.addEventListener("click", way.act);
      note.append(made);
    }
    this.holder.replaceChildren(note);
  }

  private drawTable(): void {
    this.unmount();
    const box = document.createElement("div");
    box.className = "dt";
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", `Values of ${this.name}`);
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const title of [settings.x === "step" ? "step" : "time", ...this.table.lines.map((line) => (this.table.lines.length > 1 ? `L${line.rank}` : this.name))]) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.className = "n";
      cell.textContent = title;
      head.append(cell);
    }
    const body = table.createTBody();
    const first = Math.max(0, this.table.x.length - ROWS);
    table.createCaption().textContent = this.shownOf(first);
    for (let at = this.table.x.length - 1; at >= first; at -= 1) {
      const row = body.insertRow();
      const x = this.table.x[at] ?? 0;
      for (const text of [settings.x === "time" ? new Date(x * 1000).toISOString().slice(0, 19) : thousands(x), ...this.table.lines.map((line) => metric(line.raw[at]))]) {
        const cell = row.insertCell();
        cell.className = "n";
        cell.textContent = text;
      }
    }
    box.append(table);
    this.holder.replaceChildren(box);
  }

  /** What the table leaves out, if it does: rows of a long series stand for several points each. */
  private shownOf(first: number): string {
    const shown = this.table.lines.reduce((sum, line) => sum + line.raw.slice(first).filter((value) => value !== null).length, 0);
    const all = Math.max(shown, this.points());
    return shown === all ? `All ${thousands(all)} points, newest first` : `${thousands(shown)} of ${thousands(all)} points, newest first; zoom in to see the others`;
  }

  // --- what the reader does ---

  private buildTools(): void {
    const tools = this.querySelector(".tools");
    if (!tools || tools.childElementCount) return;
    const sprite = this.dataset.icons ?? "";
    const table = named(button(sprite, "table", `Values as a table: ${this.name}`), "Table");
    table.setAttribute("aria-pressed", "false");
    table.addEventListener("click", () => {
      this.tableShown = !this.tableShown;
      table.setAttribute("aria-pressed", String(this.tableShown));
      this.unmount();
      this.draw();
    });
    const big = named(button(sprite, "maximize-2", `Enlarge: ${this.name}`), "Enlarge");
    big.setAttribute("aria-pressed", "false");
    const enlarge = (on: boolean): void => {
      if (on) this.dataset.big = "";
      else delete this.dataset.big;
      big.setAttribute("aria-pressed", String(on));
      this.rebuild();
    };
    big.addEventListener("click", () => enlarge(!("big" in this.dataset)));
    this.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !("big" in this.dataset)) return;
      enlarge(false);
      big.focus();
    });
    this.reset.type = "button";
    this.reset.className = "zp";
    this.reset.hidden = true;
    this.reset.addEventListener("click", () => change({ zoom: null }));
    tools.before(this.reset);
    tools.append(table, big);
  }

  private onKey(event: KeyboardEvent): void {
    const plot = this.plot;
    if (!plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = event.shiftKey ? 10 : 1;
    const { min = 0, max = 1 } = plot.scales.x ?? {};
    const width = (max ?? 1) - (min ?? 0);
    const middle = ((max ?? 1) + (min ?? 0)) / 2;
    const move = (by: number): void => {
      const last = this.table.x.length - 1;
      const at = Math.max(0, Math.min(last, (plot.cursor.idx ?? last) + by));
      plot.setCursor({ left: plot.valToPos(this.table.x[at] ?? 0, "x"), top: 10 });
    };
    const keys: Record<string, () => void> = {
      ArrowLeft: () => move(-steps),
      ArrowRight: () => move(steps),
      "+": () => change({ zoom: [middle - width / 4, middle + width / 4] }),
      "-": () => change({ zoom: [middle - width, middle + width] }),
      "0": () => change({ zoom: null }),
      a: () => this.querySelector<HTMLButtonElement>(".tools button")?.click(),
    };
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }
}

customElements.define("x-chart", Chart);
