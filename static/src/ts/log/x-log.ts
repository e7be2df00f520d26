// <x-log>: the log viewer. Follows until the reader looks back, then nothing moves under his eyes.
import { api } from "../api";
import { live } from "../live";
import { counted } from "../format";
import { toast } from "../toast";
import { plain } from "./ansi";
import { firstError } from "./errors";
import { anchor, linked } from "./anchor";
import { borderWords, ChainedRows } from "./chain";
import type { Line, Lines, LogPage } from "./lines";
import { emptyNote, problemNote } from "./note";
import { Pane } from "./pane";
import { drawBorder, drawRow } from "./row";
import { type Place, type Rows, keyOf, placeOf } from "./rows";
import { Search } from "./search";
import { attemptsShown, Streams, type Level } from "./streams";
import { statusWords } from "./status";
import { Survey } from "./survey";
import { Ticks } from "./ticks";
import { controls, showCounts, showFollow, showWhole, type Controls } from "./toolbar";

type Times = "off" | "clock" | "relative";
const TIMES: Times[] = ["clock", "relative", "off"];

class LogViewer extends HTMLElement {
  private streams!: Streams;
  private rows!: Rows;
  private pane!: Pane;
  private built = false;
  private tools: Controls | undefined;
  private search: Search | undefined;
  private survey: Survey | undefined;
  private readonly ticks = new Ticks();
  private match = -1;
  private level: Level = "all";
  private times: Times = matchMedia("(max-width: 760px)").matches ? "off" : "clock";
  private picked: { attempt: number; from: number; to: number } | null = null;
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
    this.streams?.close();
    this.survey?.close();
    live.removeEventListener("change", this.showStatus);
  }

  /** The job may have begun to print, or gone on in a new attempt, since the page was loaded. */
  private readonly onJob = (): void => {
    const newest = Number(document.querySelector<HTMLElement>("x-job")?.dataset.attempt ?? 0);
    const watched = this.isWhole || this.dataset.attempt === (this.dataset.attempts === "0" ? "1" : this.dataset.attempts);
    if (newest < 1 || (this.built && (!watched || newest <= Number(this.dataset.attempts)))) return;
    if (this.built && this.isWhole) return this.grow(newest);
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

  /** All attempts are shown, one after the other. */
  private get isWhole(): boolean {
    return this.dataset.attempt === "all";
  }

  private get newest(): number {
    return Math.max(1, Number(this.dataset.attempts));
  }

  private get ranks(): number[] {
    return this.rank === "all" ? Array.from({ length: Number(this.dataset.learners) }, (_, rank) => rank) : [Number(this.rank)];
  }

  private get rank(): string {
    return this.dataset.rank ?? "0";
  }

  /** The attempts that are shown. */
  private get attempts(): number[] {
    return this.isWhole ? attemptsShown(this.newest, this.ranks.length) : [Number(this.dataset.attempt)];
  }

  private build(): void {
    this.built = true;
    const holder = document.createElement("div");
    holder.className = "lvp";
    const attempt = linked()?.attempt ?? 0;
    if (this.isFull && attempt && attempt <= this.newest && !this.attempts.includes(attempt)) this.dataset.attempt = String(attempt);
    this.pane = new Pane(this.makeStreams().rows("all", false), {
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
        attempts: this.newest,
        rank: this.rank,
        attempt: this.dataset.attempt ?? "1",
      });
      this.nameWhole();
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

  private makeStreams(): Streams {
    this.streams?.close();
    this.streams = new Streams(this.dataset.job ?? "", this.attempts, this.ranks, (lines) => this.onLines(lines));
    const [only, ...more] = this.streams.all;
    this.survey?.close();
    this.survey = this.isFull && only && !more.length ? new Survey(only, this.showStatus) : undefined;
    return this.streams;
  }

  private async open(): Promise<void> {
    this.chooseRows("");
    this.pane.follow(); // before the lines are there: a reader who looks back meanwhile stays where he went
    const { streams } = this;
    await streams.open(this.isFull ? 300 : 60);
    if (streams !== this.streams) return; // others were chosen meanwhile
    if (this.isWhole) this.chooseRows(this.rows.keyAt(this.pane.firstIndex()));
    const query = new URLSearchParams(location.search);
    const place = linked();
    if (this.isFull && place) this.goTo(place.from, place.to, place.attempt || this.lastAttempt);
    else if (this.isFull && query.get("level") === "error") void this.jumpToError();
    const text = query.get("q");
    if (this.isFull && text && this.tools) {
      this.tools.find.value = text;
      void this.find();
    }
    this.seenTotal = this.total;
    this.showStatus();
  }

  /** One more attempt has begun: it follows what is shown, which stays where it is. */
  private grow(newest: number): void {
    const key = this.rows.keyAt(this.pane.firstIndex());
    const from = Number(this.dataset.attempts) + 1;
    this.dataset.attempts = String(newest);
    for (let attempt = from; attempt <= newest; attempt += 1) {
      this.tools?.attempt?.add(new Option(`Attempt ${attempt}`, String(attempt)), 1); // behind "All attempts"
      for (const lines of this.streams.add(attempt)) void lines.open(300);
    }
    const [oldest = newest] = this.attempts;
    this.streams.dropBefore(this.pane.following ? oldest : Math.min(oldest, placeOf(key).attempt)); // what is read stays
    this.nameWhole();
    this.linkRaw();
    this.chooseRows(key);
  }

  private nameWhole(): void {
    if (this.tools) showWhole(this.tools, attemptsShown(this.newest, this.ranks.length).length, this.newest);
  }

  private get lastAttempt(): number {
    return this.streams.all.at(-1)?.stream.attempt ?? 1;
  }

  private get total(): number {
    return this.streams.total;
  }

  private chooseRows(key: string): void {
    this.rows = this.streams.rows(this.level, this.isFull);
    this.pane.swap(this.rows, key);
  }

  private onLines(lines: Lines): void {
    if (this.folded && this.streams.refold(lines)) this.refold();
    this.rows.update();
    this.search?.update();
    this.survey?.update();
    if (this.pane.following) this.seenTotal = this.total;
    lines.forget(this.nearestLine(lines), this.streams.blocksEach, this.drawnLines(lines));
    this.started ||= this.streams.all[0]?.get(1)?.t ?? "";
    this.pane.refresh();
    this.showStatus();
  }

  private drawnLines({ stream }: Lines): number[] {
    const shown = Array.from(this.pane.drawnRows()).filter((index) => index < this.rows.length);
    const places = shown.map((index) => placeOf(this.rows.keyAt(index)));
    return places.filter(({ attempt, rank }) => attempt === stream.attempt && rank === stream.rank).map(({ n }) => n);
  }

  /** Number of the line of this log that is nearest to the first one in sight. */
  private nearestLine(lines: Lines): number {
    const { attempt, n } = placeOf(this.rows.keyAt(this.pane.firstIndex()));
    if (lines.stream.attempt === attempt) return n || 1;
    return lines.stream.attempt < attempt ? lines.total : 1;
  }

  /** Tracebacks fold where one learner's lines are shown whole. */
  private get folded(): boolean {
    return this.isFull && this.level === "all" && !this.streams.merged;
  }

  /** Folds came, opened or closed: the first line in sight stays where it is. */
  private refold(): void {
    if (this.folded) this.chooseRows(this.rows.keyAt(this.pane.firstIndex()));
  }

  private toggleFold(key: string): void {
    this.pane.pause();
    this.streams.foldsOf(key)?.toggle(placeOf(key).n);
    this.refold();
  }

  /** The row of a line, unfolded if it is hidden; -1 if this view does not have it. */
  private reveal(key: string): number {
    if (this.folded && this.streams.foldsOf(key)?.open(placeOf(key).n)) this.refold();
    return this.rows.indexOf(key);
  }

  // --- drawing ---

  private fill(row: HTMLElement, index: number): void {
    const line = this.rows.at(index);
    const key = this.rows.keyAt(index);
    const next = this.rows instanceof ChainedRows ? this.rows.borderAt(index) : 0;
    if (next) return drawBorder(row, key, borderWords(next), this.dataset.icons ?? "");
    const { attempt, n } = placeOf(key);
    const folds = this.folded && line ? this.streams.foldsOf(key) : undefined;
    const lines = this.streams.of(key);
    drawRow(row, {
      n,
      key,
      line,
      lost: Boolean(lines?.isLost(n)),
      time: line ? this.timeOf(line.t) : "",
      merged: this.streams.merged,
      open: Boolean(line && line === lines?.tail),
      picked: Boolean(this.picked && attempt === this.picked.attempt && n >= this.picked.from && n <= this.picked.to),
      find: this.search?.text ?? "",
      current: this.search?.matches[this.match] === key,
      fold: folds?.has(n) ? { open: folds.isOpen(n), hidden: (folds.ends.get(n) ?? n) - n } : null,
      icons: this.dataset.icons ?? "",
      whole: (cut) => this.bringWhole(cut),
    });
  }

  private bringWhole(line: Line): void {
    const lines = this.streams.of(keyOf(line));
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
    const { all: sources, ended } = this.streams;
    const text = following ? "Following" : fresh > 0 ? `↓ ${counted(fresh, "new line")}` : ended ? "↓ End" : "↓ Newest";
    if (this.pill.textContent !== text) this.pill.textContent = text;
    const atEnd = ended && this.pane.lastIndex() === this.rows.length - 1; // in sight though it was not asked for
    this.pill.hidden = atEnd || (following && (ended || this.isFull));
    this.pill.classList.toggle("still", following);
    const problem = sources.find((lines) => lines.problem)?.problem;
    const answered = sources.every((lines) => lines.answered);
    if (problem && !this.total) this.note.replaceChildren(...problemNote(problem, this.dataset.icons ?? "", () => void this.open()));
    else if (this.rows.length > 0) this.note.replaceChildren();
    else this.note.replaceChildren(emptyNote({ answered, level: this.level, ended, attempt: this.lastAttempt }));
    this.pane.scroller.setAttribute("aria-label", `Log of ${this.rank === "all" ? "all learners" : `learner ${this.rank}`}, ${counted(this.total, "line")}`);
    if (!this.tools) return;
    showFollow(this.tools, following, ended);
    this.status.replaceChildren(
      ...statusWords({
        following,
        ended,
        first: this.rows.at(this.pane.firstIndex()),
        searching: Boolean(this.search?.running),
        total: this.total,
        partly: Boolean(problem && this.total),
        stale: live.status !== "live" || sources.some((lines) => lines.unavailable),
      }),
    );
    this.showFound();
    this.showSurvey();
  };

  /** What a short log of one learner has in all; of others nobody has counted. */
  private showSurvey(): void {
    const { survey, tools } = this;
    if (tools) showCounts(tools, survey?.known ? { warn: survey.warnings, error: survey.errors.length } : {});
    const isOne = this.streams.all.length === 1 && this.level === "all"; // else a place is not a line's share of the log
    const found = isOne ? (this.search?.matches ?? []).map((key) => placeOf(key).n) : [];
    this.ticks.draw(Math.max(1, this.total), isOne && survey?.known ? survey.errors : [], found);
  }

  private showFound(): void {
    if (!this.tools) return;
    const { search, match } = this;
    const place = match >= 0 ? `${match + 1} of ` : "";
    const count = search ? `${place}${search.matches.length}${search.more ? "+" : ""}` : "";
    this.tools.found.textContent = search?.failed ? "search failed" : count;
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
    const attempt = this.isWhole ? this.newest : this.dataset.attempt;
    if (!this.tools) return;
    const { download } = this.tools;
    download.href = `/api/v1/jobs/${this.dataset.job}/logs/raw?learner=${rank}&attempt=${attempt}`;
    download.title = this.isWhole ? `Download the raw log of attempt ${attempt}` : "Download the raw log";
    download.setAttribute("aria-label", download.title);
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
    this.makeStreams();
    this.nameWhole();
    this.linkRaw();
    void this.open();
  }

  private async filter(chosen: HTMLButtonElement): Promise<void> {
    this.level = (chosen.dataset.level ?? "all") as typeof this.level;
    for (const one of this.tools?.levels ?? []) one.setAttribute("aria-pressed", String(one === chosen));
    const key = this.rows.keyAt(this.pane.firstIndex());
    if (this.level !== "all") for (const lines of this.streams.all) void lines.scan(1, () => false);
    this.chooseRows(key);
    this.showStatus();
  }

  private async find(): Promise<void> {
    const text = this.tools?.find.value ?? "";
    this.search?.abort();
    this.match = -1;
    const search = text ? new Search(text, this.streams.all, () => this.showStatus()) : undefined;
    this.search = search;
    this.pane.refill();
    this.showStatus();
    if (!search) return;
    this.pane.pause();
    await search.run();
    if (search !== this.search || search.failed) return; // another was begun meanwhile, or none is wanted any more
    const from = placeOf(this.rows.keyAt(this.pane.firstIndex()));
    const ahead = search.matches.map(placeOf).findIndex((place) => place.attempt > from.attempt || (place.attempt === from.attempt && place.n >= from.n));
    this.match = (ahead < 0 ? search.matches.length - 1 : ahead) - 1; // the nearest: ahead, else the last
    this.step(1);
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
    const { streams } = this;
    try {
      for (const lines of [...streams.all]) {
        const n = await firstError(lines);
        if (streams !== this.streams) return; // others were chosen meanwhile
        if (n) return this.showOnly({ ...lines.stream, n });
      }
      toast("There is no error in this log.");
    } catch {
      toast("The log could not be searched for errors.", "error");
    } finally {
      this.tools?.error.removeAttribute("aria-busy");
    }
  }

  /** Show this line even where the present choice of lines or learners leaves it out. */
  private showOnly(place: Place): void {
    const { attempt, rank, n } = place;
    if (this.rows.indexOf(keyOf(place)) < 0 && this.level !== "all") {
      const all = this.tools?.levels.find((one) => one.dataset.level === "all");
      if (all) void this.filter(all);
    }
    if (this.rows.indexOf(keyOf(place)) >= 0) return this.goTo(n, n, attempt, rank);
    if (this.tools?.learner) this.tools.learner.value = String(rank);
    this.switchTo(String(rank), this.dataset.attempt ?? "1", anchor(attempt, n, n, this.isWhole));
  }

  private goTo(from: number, to: number, attempt: number, rank = this.rank === "all" ? 0 : Number(this.rank)): void {
    this.picked = { attempt, from: Math.min(from, to), to: Math.max(from, to) };
    this.pane.show(Math.max(0, this.reveal(keyOf({ attempt, rank, n: from }))));
    this.pane.refill();
  }

  private onClick(event: MouseEvent): void {
    const row = (event.target as Element).closest<HTMLElement>(".lr");
    if (row && (event.target as Element).closest(".fold")) return this.toggleFold(row.dataset.key ?? "");
    if (!row || !(event.target as Element).closest(".n")) return;
    const { attempt, n } = placeOf(row.dataset.key ?? "");
    const before = event.shiftKey && this.picked?.attempt === attempt ? this.picked : { from: n, to: n };
    const [from, to] = [Math.min(n, before.from), Math.max(n, before.to)];
    this.picked = { attempt, from, to };
    this.pane.pause();
    if (this.isFull) history.replaceState(null, "", `${location.pathname}${location.search}${anchor(attempt, from, to, this.isWhole)}`);
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
    const { attempt, from, to } = this.picked ?? { attempt: 0, from: 0, to: -1 };
    const lines = this.streams.all.find(({ stream }) => stream.attempt === attempt);
    const texts: string[] = [];
    for (let n = from; n <= to; n += 1) texts.push(plain(lines?.get(n)?.text ?? ""));
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
