// <x-log>: the log viewer. Follows until the reader looks back, then nothing moves under his eyes.
import { api } from "../api";
import { live } from "../live";
import { counted, thousands } from "../format";
import { toast } from "../toast";
import { plain } from "./ansi";
import { firstError } from "./errors";
import { FoldedRows, Folds } from "./folds";
import { Lines, type Line, type LogPage } from "./lines";
import { emptyNote, problemNote } from "./note";
import { Pane } from "./pane";
import { drawRow } from "./row";
import { AllRows, ListedRows, isOf, type Rows } from "./rows";
import { Search } from "./search";
import { Survey } from "./survey";
import { Ticks } from "./ticks";
import { controls, type Controls } from "./toolbar";

type Times = "off" | "clock" | "relative";
const TIMES: Times[] = ["clock", "relative", "off"];
const TAIL = 1000;

class LogViewer extends HTMLElement {
  private sources: Lines[] = [];
  private rows!: Rows;
  private folds!: Folds;
  private pane!: Pane;
  private built = false;
  private tools: Controls | undefined;
  private search: Search | undefined;
  private survey: Survey | undefined;
  private readonly ticks = new Ticks();
  private match = -1;
  private level: "all" | "warn" | "error" = "all";
  private times: Times = matchMedia("(max-width: 760px)").matches ? "off" : "clock";
  private picked: [number, number] | null = null;
  private seenTotal = 0;
  private readonly pill = document.createElement("button");
  private readonly note = document.createElement("div");
  private readonly status = document.createElement("div");
  private started = "";

  connectedCallback(): void {
    if (this.built) return;
    document.addEventListener("jobchange", this.onJob);
    live.addEventListener("change", this.showStatus);
    document.addEventListener("selectionchange", this.onSelection);
    this.addEventListener("keydown", (event) => this.onKey(event));
    if ("known" in this.dataset) this.build();
  }

  disconnectedCallback(): void {
    document.removeEventListener("jobchange", this.onJob);
    document.removeEventListener("selectionchange", this.onSelection);
    for (const lines of this.sources) lines.close();
    this.survey?.close();
    live.removeEventListener("change", this.showStatus);
  }

  /** The job may have begun to print, or gone on in a new attempt, since the page was loaded. */
  private readonly onJob = (): void => {
    const newest = Number(document.querySelector<HTMLElement>("x-job")?.dataset.attempt ?? 0);
    const watched = this.dataset.attempt === (this.dataset.attempts === "0" ? "1" : this.dataset.attempts);
    if (newest < 1 || (this.built && (!watched || newest <= Number(this.dataset.attempts)))) return;
    this.dataset.attempts = this.dataset.attempt = String(newest);
    this.build();
  };

  private readonly onSelection = (): void => {
    const chosen = getSelection();
    if (chosen && !chosen.isCollapsed && this.built && this.pane.scroller.contains(chosen.anchorNode)) this.pane.pause();
  };

  private get isFull(): boolean {
    return "full" in this.dataset;
  }

  private get rank(): string {
    return this.dataset.rank ?? "0";
  }

  private build(): void {
    this.built = true;
    const holder = document.createElement("div");
    holder.className = "lvp";
    this.pane = new Pane(new AllRows(this.makeSources()[0] as Lines), {
      fill: (row, index) => this.fill(row, index),
      heightOf: (index, columns) => this.heightOf(index, columns),
      moved: () => this.showStatus(),
    });
    const { scroller } = this.pane;
    scroller.setAttribute("role", "log");
    scroller.setAttribute("aria-live", "off");
    scroller.tabIndex = 0;
    this.pill.type = "button";
    this.pill.className = "btn s newest";
    this.pill.addEventListener("click", () => this.pane.follow());
    this.note.className = "lvm";
    this.status.className = "lst";
    holder.append(scroller, this.pill, this.note);
    const parts: HTMLElement[] = [holder];
    if (this.isFull) {
      this.tools = controls(this.dataset.icons ?? "", {
        learners: Number(this.dataset.learners),
        attempts: Math.max(1, Number(this.dataset.attempts)),
        rank: this.rank,
        attempt: Number(this.dataset.attempt),
      });
      this.wire(this.tools);
      parts.unshift(this.tools.bar);
      parts.push(this.status);
      holder.append(this.ticks.element);
    }
    this.showTimes();
    this.replaceChildren(...parts);
    scroller.addEventListener("click", (event) => this.onClick(event));
    void this.open();
  }

  private makeSources(): Lines[] {
    for (const lines of this.sources) lines.close();
    const job = this.dataset.job ?? "";
    const attempt = Number(this.dataset.attempt);
    const count = Number(this.dataset.learners);
    const ranks = this.rank === "all" ? Array.from({ length: count }, (_, rank) => rank) : [Number(this.rank)];
    this.sources = ranks.map((rank) => new Lines({ job, attempt, rank }));
    for (const lines of this.sources) lines.addEventListener("change", () => this.onLines(lines));
    this.folds = new Folds(this.sources[0] as Lines);
    this.survey?.close();
    this.survey = this.isFull && ranks.length === 1 ? new Survey(this.sources[0] as Lines, this.showStatus) : undefined;
    return this.sources;
  }

  private async open(): Promise<void> {
    const linked = /^#L(\d+)(?:-(\d+))?$/.exec(location.hash);
    this.chooseRows("");
    this.pane.follow(); // before the lines are there: a reader who looks back meanwhile stays where he went
    await Promise.all(this.sources.map((lines) => lines.open(this.isFull ? 300 : 60)));
    const query = new URLSearchParams(location.search);
    if (this.isFull && linked) this.goTo(Number(linked[1]), Number(linked[2] ?? linked[1]));
    else if (this.isFull && query.get("level") === "error") void this.jumpToError();
    const text = query.get("q");
    if (this.isFull && text && this.tools) {
      this.tools.find.value = text;
      void this.find();
    }
    this.seenTotal = this.total;
    this.showStatus();
  }

  private get total(): number {
    return this.sources.reduce((sum, lines) => sum + lines.total, 0);
  }

  private chooseRows(key: string): void {
    const merged = this.sources.length > 1;
    const only = this.sources[0] as Lines;
    if (!merged && this.level === "all") this.rows = this.isFull ? new FoldedRows(only, this.folds) : new AllRows(only);
    else {
      const chosen = this.level === "all" ? () => true : isOf(this.level);
      const listed = new ListedRows(this.sources, chosen, (lines) => (this.level === "all" ? Math.max(1, lines.total - TAIL) : 1));
      listed.update();
      this.rows = listed;
    }
    this.pane.swap(this.rows, key);
  }

  private onLines(lines: Lines): void {
    if (this.rows instanceof ListedRows) this.rows.update();
    else if (this.isFull && this.folds.update()) this.refold();
    this.search?.update();
    this.survey?.update();
    if (this.pane.following) this.seenTotal = this.total;
    lines.forget(this.rows instanceof ListedRows ? this.pane.firstIndex() + 1 : this.firstLine());
    this.started ||= this.sources[0]?.get(1)?.t ?? "";
    this.pane.refresh();
    this.showStatus();
  }

  /** Number of the first line in sight. */
  private firstLine(): number {
    return Number(this.rows.keyAt(this.pane.firstIndex()).split(":")[1]) || 1;
  }

  /** Folds came, opened or closed: the first line in sight stays where it is. */
  private refold(): void {
    if (this.rows instanceof FoldedRows) this.chooseRows(this.rows.keyAt(this.pane.firstIndex()));
  }

  private toggleFold(head: number): void {
    this.pane.pause();
    this.folds.toggle(head);
    this.refold();
  }

  /** The row of a line, unfolded if it is hidden; -1 if this view does not have it. */
  private reveal(key: string): number {
    if (this.rows instanceof FoldedRows && this.folds.open(Number(key.split(":")[1]))) this.refold();
    return this.rows.indexOf(key);
  }

  // --- drawing ---

  private fill(row: HTMLElement, index: number): void {
    const line = this.rows.at(index);
    const n = line?.n ?? (Number(this.rows.keyAt(index).split(":")[1]) || index + 1);
    const folds = line && this.rows instanceof FoldedRows && this.folds.has(n);
    drawRow(row, {
      n,
      line,
      lost: Boolean(this.sources[0]?.isLost(n)),
      time: line ? this.timeOf(line.t) : "",
      merged: this.sources.length > 1,
      open: Boolean(line && line === this.sources[0]?.tail),
      picked: Boolean(this.picked && n >= this.picked[0] && n <= this.picked[1]),
      find: this.search?.text ?? "",
      current: this.search?.matches[this.match] === `${line?.rank ?? this.rank}:${n}`,
      fold: folds ? { open: this.folds.isOpen(n), hidden: (this.folds.ends.get(n) ?? n) - n } : null,
      icons: this.dataset.icons ?? "",
      whole: (cut) => this.bringWhole(cut),
    });
  }

  private bringWhole(line: Line): void {
    const lines = this.sources.find((one) => one.stream.rank === line.rank);
    if (!lines) return;
    void api<LogPage>("GET", `${lines.path}&after=${line.n - 1}&limit=1&full=true`).then(
      (page) => {
        Object.assign(line, { text: page.lines[0]?.text ?? line.text, cut: page.lines[0]?.cut ?? 0 });
        this.pane.relayout();
      },
      () => toast("The rest of the line could not be loaded.", "error"),
    );
  }

  private timeOf(t: string): string {
    if (this.times === "off" || !t) return "";
    if (this.times === "clock" || !this.started) return t.slice(11, 23);
    const seconds = (Date.parse(t) - Date.parse(this.started)) / 1000;
    return `${seconds < 0 ? "-" : "+"}${Math.abs(seconds).toFixed(3)}`.padStart(12);
  }

  private heightOf(index: number, columns: number): number {
    const line = this.rows.at(index);
    return line ? Math.max(1, Math.ceil(plain(line.text).length / columns)) : 1;
  }

  private readonly showStatus = (): void => {
    if (!this.built || !this.rows) return;
    const { following } = this.pane;
    const fresh = this.total - this.seenTotal;
    if (following) this.seenTotal = this.total;
    const ended = this.sources.length > 0 && this.sources.every((lines) => lines.sealed);
    const text = following ? "Following" : fresh > 0 ? `↓ ${counted(fresh, "new line")}` : ended ? "↓ End" : "↓ Newest";
    if (this.pill.textContent !== text) this.pill.textContent = text;
    const atEnd = ended && this.pane.lastIndex() === this.rows.length - 1; // in sight though it was not asked for
    this.pill.hidden = atEnd || (following && (ended || this.isFull));
    this.pill.classList.toggle("still", following);
    const problem = this.sources.find((lines) => lines.problem)?.problem;
    const answered = this.sources.every((lines) => lines.answered);
    if (problem && !this.total) this.note.replaceChildren(...problemNote(problem, this.dataset.icons ?? "", () => void this.open()));
    else if (this.rows.length > 0) this.note.replaceChildren();
    else this.note.replaceChildren(emptyNote({ answered, level: this.level, ended, attempt: Number(this.dataset.attempt) }));
    const first = this.rows.at(this.pane.firstIndex());
    this.pane.scroller.setAttribute("aria-label", `Log of ${this.rank === "all" ? "all learners" : `learner ${this.rank}`}, ${counted(this.total, "line")}`);
    if (!this.tools) return;
    this.showFollow(following, ended);
    const stale = live.status !== "live" || this.sources.some((lines) => lines.unavailable);
    const state = stale ? "Not live" : ended ? "End of log" : "Live";
    const place = first ? `${ended ? "At" : " at"} ${first.t.slice(11, 19)}, line ${thousands(first.n)}` : "";
    const words = [
      ended ? (following ? "" : place) : following ? "Following" : `Paused${place}`, // nothing more comes to what has ended
      this.search?.running ? "Searching…" : "",
      `${counted(this.total, "line")}`,
      state,
    ];
    this.status.replaceChildren(...words.filter(Boolean).map((word, at) => {
      const span = document.createElement("span");
      span.textContent = word;
      if (at === 0 && !ended) span.dataset.following = String(following);
      return span;
    }));
    this.showFound();
    this.showSurvey();
  };

  /** What a short log of one learner has in all; of others nobody has counted. */
  private showSurvey(): void {
    const { survey } = this;
    const counts: Record<string, number> = survey?.known ? { warn: survey.warnings, error: survey.errors.length } : {};
    for (const one of this.tools?.levels ?? []) {
      const count = counts[one.dataset.level ?? ""];
      const cell = one.querySelector(".c") as HTMLElement;
      const text = count === undefined ? "" : thousands(count);
      if (cell.textContent === text) continue;
      cell.textContent = text;
      one.title = count === undefined ? "" : counted(count, "line");
    }
    const isWhole = this.sources.length === 1 && this.level === "all"; // else a place is not a line's share of the log
    const found = isWhole ? (this.search?.matches ?? []).map((key) => Number(key.split(":")[1])) : [];
    this.ticks.draw(Math.max(1, this.total), isWhole && survey?.known ? survey.errors : [], found);
  }

  /** A log that has ended is not followed: the same button leads to its end. */
  private showFollow(following: boolean, ended: boolean): void {
    const { follow } = this.tools as Controls;
    if (ended) follow.removeAttribute("aria-pressed");
    else follow.setAttribute("aria-pressed", String(following));
    const label = ended ? "Go to the end" : "Follow the newest line";
    if (follow.title === label) return;
    follow.title = label;
    follow.setAttribute("aria-label", label);
    (follow.querySelector(".lb") as HTMLElement).textContent = ended ? "End" : "Follow";
  }

  private showFound(): void {
    if (!this.tools) return;
    const { matches } = this.search ?? { matches: [] };
    const place = this.match >= 0 ? `${this.match + 1} of ` : "";
    this.tools.found.textContent = this.search ? `${place}${matches.length}${this.search.more ? "+" : ""}` : "";
  }

  // --- what the reader does ---

  private wire(tools: Controls): void {
    tools.learner?.addEventListener("change", () => this.switchTo(tools.learner?.value ?? "0", this.dataset.attempt ?? "1"));
    tools.attempt?.addEventListener("change", () => this.switchTo(this.rank, tools.attempt?.value ?? "1"));
    for (const one of tools.levels) one.addEventListener("click", () => void this.filter(one));
    let typing = 0;
    tools.find.addEventListener("input", () => {
      clearTimeout(typing);
      typing = window.setTimeout(() => void this.find(), 250);
    });
    tools.next.addEventListener("click", () => this.step(1));
    tools.previous.addEventListener("click", () => this.step(-1));
    tools.clear.addEventListener("click", () => {
      tools.find.value = "";
      void this.find();
    });
    tools.follow.addEventListener("click", () => (this.pane.following && tools.follow.ariaPressed ? this.pane.pause() : this.pane.follow()));
    tools.error.addEventListener("click", () => void this.jumpToError());
    tools.wrap.addEventListener("click", () => this.toggleWrap());
    tools.times.addEventListener("click", () => this.nextTimes());
    tools.full.addEventListener("click", () => void (document.fullscreenElement ? document.exitFullscreen() : this.requestFullscreen()));
    this.linkRaw();
  }

  private linkRaw(): void {
    const rank = this.rank === "all" ? "0" : this.rank;
    if (this.tools) this.tools.download.href = `/api/v1/jobs/${this.dataset.job}/logs/raw?learner=${rank}&attempt=${this.dataset.attempt}`;
  }

  private switchTo(rank: string, attempt: string, place = ""): void {
    this.dataset.rank = rank;
    this.dataset.attempt = attempt;
    const query = new URLSearchParams(location.search);
    query.set("learner", rank);
    query.set("attempt", attempt);
    history.replaceState(null, "", `?${query}${place}`);
    this.search?.abort();
    this.search = undefined;
    this.picked = null;
    this.started = "";
    this.makeSources();
    this.linkRaw();
    void this.open();
  }

  private async filter(chosen: HTMLButtonElement): Promise<void> {
    this.level = (chosen.dataset.level ?? "all") as typeof this.level;
    for (const one of this.tools?.levels ?? []) one.setAttribute("aria-pressed", String(one === chosen));
    const key = this.rows.keyAt(this.pane.firstIndex());
    if (this.level !== "all") for (const lines of this.sources) void lines.scan(1, () => false);
    this.chooseRows(key);
    this.showStatus();
  }

  private async find(): Promise<void> {
    const text = this.tools?.find.value ?? "";
    this.search?.abort();
    this.match = -1;
    this.search = text ? new Search(text, this.sources, () => this.showStatus()) : undefined;
    this.pane.refill();
    this.showFound();
    if (!this.search) return;
    this.pane.pause();
    try {
      await this.search.run();
      const from = this.rows.at(this.pane.firstIndex())?.n ?? 1;
      const ahead = this.search.matches.findIndex((key) => Number(key.split(":")[1]) >= from);
      this.match = (ahead < 0 ? this.search.matches.length - 1 : ahead) - 1; // the nearest: ahead, else the last
      this.step(1);
    } catch {
      if (this.tools) this.tools.found.textContent = "search failed";
    }
  }

  private step(by: number): void {
    const count = this.search?.matches.length ?? 0;
    if (!count) return;
    this.match = (this.match + by + count) % count;
    const index = this.reveal(this.search?.matches[this.match] ?? "");
    if (index >= 0) this.pane.show(index);
    this.pane.refill();
    this.showFound();
  }

  private async jumpToError(): Promise<void> {
    this.tools?.error.setAttribute("aria-busy", "true");
    try {
      for (const lines of this.sources) {
        const n = await firstError(lines);
        if (n) return this.showOnly(lines.stream.rank, n);
      }
      toast("There is no error in this log.");
    } catch {
      toast("The log could not be searched for errors.", "error");
    } finally {
      this.tools?.error.removeAttribute("aria-busy");
    }
  }

  /** Show this line even where the present choice of lines or learners leaves it out. */
  private showOnly(rank: number, n: number): void {
    if (this.rows.indexOf(`${rank}:${n}`) < 0 && this.level !== "all") {
      const all = this.tools?.levels.find((one) => one.dataset.level === "all");
      if (all) void this.filter(all);
    }
    if (this.rows.indexOf(`${rank}:${n}`) >= 0) return this.goTo(n, n, rank);
    if (this.tools?.learner) this.tools.learner.value = String(rank);
    this.switchTo(String(rank), this.dataset.attempt ?? "1", `#L${n}`);
  }

  private goTo(from: number, to: number, rank = this.rank === "all" ? 0 : Number(this.rank)): void {
    this.picked = [Math.min(from, to), Math.max(from, to)];
    this.pane.show(Math.max(0, this.reveal(`${rank}:${from}`)));
    this.pane.refill();
  }

  private onClick(event: MouseEvent): void {
    const row = (event.target as Element).closest<HTMLElement>(".lr");
    if (row && (event.target as Element).closest(".fold")) return this.toggleFold(Number(row.dataset.n));
    if (!row || !(event.target as Element).closest(".n")) return;
    const n = Number(row.dataset.n);
    this.picked = event.shiftKey && this.picked ? [Math.min(n, this.picked[0]), Math.max(n, this.picked[0])] : [n, n];
    const [from, to] = this.picked;
    this.pane.pause();
    if (this.isFull) history.replaceState(null, "", `${location.pathname}${location.search}#L${from}${to > from ? `-${to}` : ""}`);
    this.pane.refill();
  }

  private onKey(event: KeyboardEvent): void {
    const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
    if (typing) {
      if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") this.pane.scroller.focus();
      return;
    }
    const find = (event.ctrlKey || event.metaKey) && event.key === "f";
    if (find && document.activeElement === this.tools?.find) return; // the second time: the browser's own
    const page = this.pane.scroller.clientHeight - 40;
    const keys: Record<string, () => void> = {
      f: () => (this.pane.following ? this.pane.pause() : this.pane.follow()),
      G: () => this.pane.follow(),
      End: () => this.pane.follow(),
      g: () => this.pane.toStart(),
      Home: () => this.pane.toStart(),
      PageUp: () => this.pane.scrollBy(-page),
      PageDown: () => this.pane.scrollBy(page),
      ArrowUp: () => this.pane.scrollBy(-20),
      ArrowDown: () => this.pane.scrollBy(20),
      "/": () => this.tools?.find.focus(),
      n: () => this.step(1),
      N: () => this.step(-1),
      w: () => this.toggleWrap(),
      m: () => this.nextTimes(),
      e: () => void this.jumpToError(),
      z: () => void this.requestFullscreen(),
      y: () => this.copy(),
    };
    const act = find ? () => this.tools?.find.focus() : event.ctrlKey || event.metaKey || event.altKey ? undefined : keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  private copy(): void {
    const [from, to] = this.picked ?? [0, -1];
    const texts: string[] = [];
    for (let n = from; n <= to; n += 1) texts.push(plain(this.sources[0]?.get(n)?.text ?? ""));
    if (texts.length) void navigator.clipboard.writeText(texts.join("\n")).then(() => toast(`${counted(texts.length, "line")} copied.`, "success"));
  }

  private toggleWrap(): void {
    const on = this.classList.toggle("wrap");
    this.tools?.wrap.setAttribute("aria-pressed", String(on));
    this.pane.wrap = on;
    this.pane.relayout();
  }

  private nextTimes(): void {
    this.times = TIMES[(TIMES.indexOf(this.times) + 1) % TIMES.length] ?? "clock";
    this.showTimes();
    this.pane.refill();
  }

  private showTimes(): void {
    this.classList.toggle("nots", this.times === "off");
    this.classList.toggle("timed", this.times !== "off");
    const words = { off: "off", clock: "time of day", relative: "since the first line" }[this.times];
    this.tools?.times.setAttribute("aria-label", `Times: ${words}`);
    this.tools?.times.setAttribute("aria-pressed", String(this.times !== "off"));
  }
}

customElements.define("x-log", LogViewer);
