// <x-log>: the log viewer. It follows the newest line until the reader scrolls back; then nothing moves.
import { KEYS, actionIn } from "../keys";
import { live } from "../live";
import { loaded } from "../loaded";
import { texts } from "../texts";
import { toast } from "../toast";
import { firstError } from "./errors";
import { actionOf } from "./keys";
import type { Lines } from "./lines";
import { emptyNote, problemNote } from "./note";
import { ROW_PX } from "./pane";
import { anchorOf, linkedLines } from "./picked";
import { type Place, placeOf } from "./rows";
import { attemptsShown, Streams, type Level } from "./streams";
import { Survey } from "./survey";
import { nextMode } from "./times";
import type { Controls } from "./toolbar";
import { LogView } from "./view";

const { bar } = loaded;
const COUNTED = 8; // logs of which warnings and errors are counted

class LogViewer extends HTMLElement {
  private streams!: Streams;
  private view: LogView | undefined; // from the first line on
  private tools: Controls | undefined;
  private surveys: Survey[] = [];
  private readonly ticks = bar && new bar.Ticks();
  private seenTotal = 0;
  private readonly pill = document.createElement("button");
  private readonly note = document.createElement("div");
  private readonly status = document.createElement("div");

  connectedCallback(): void {
    if (this.view) return;
    document.addEventListener("jobchange", this.onJob);
    live.addEventListener("change", this.showStatus);
    document.addEventListener("selectionchange", this.onSelection);
    addEventListener("hashchange", this.onHash);
    this.addEventListener("keydown", this.onKey);
    if ("known" in this.dataset) this.build();
  }

  disconnectedCallback(): void {
    document.removeEventListener("jobchange", this.onJob);
    document.removeEventListener("selectionchange", this.onSelection);
    removeEventListener("hashchange", this.onHash);
    this.streams?.close();
    for (const survey of this.surveys) survey.close();
    live.removeEventListener("change", this.showStatus);
  }

  /** The job may have begun to print, or to run in a new attempt, since the page was loaded. */
  private readonly onJob = (): void => {
    const newest = Number(document.querySelector<HTMLElement>("x-job")?.dataset.attempt ?? 0);
    const watched = this.isWhole || this.dataset.attempt === (this.dataset.attempts === "0" ? "1" : this.dataset.attempts);
    if (newest < 1 || (this.view && (!watched || newest <= Number(this.dataset.attempts)))) return;
    delete this.dataset.over; // an attempt that begins may print
    if (this.view && this.isWhole) return this.grow(newest, this.view);
    this.dataset.attempts = this.dataset.attempt = String(newest);
    this.build();
  };

  private readonly onSelection = (): void => {
    const chosen = getSelection();
    if (chosen && !chosen.isCollapsed && this.view?.pane.scroller.contains(chosen.anchorNode)) this.view.pane.pause();
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
    const holder = document.createElement("div");
    holder.className = "log-pane";
    const attempt = linkedLines(location.hash)?.attempt ?? 0;
    if (this.isFull && attempt && attempt <= this.newest && !this.attempts.includes(attempt)) this.dataset.attempt = String(attempt);
    const times = this.view?.times ?? (matchMedia("(max-width: 760px)").matches ? "off" : "clock");
    const view = (this.view = new LogView(this.makeStreams(), this.isFull, times, this.showStatus));
    const { scroller } = view.pane;
    view.pane.wrap = this.classList.contains("wrap");
    scroller.setAttribute("role", "log");
    scroller.setAttribute("aria-live", "off");
    scroller.tabIndex = 0;
    this.pill.type = "button";
    this.pill.className = "button small newest";
    this.pill.onclick = () => view.pane.follow();
    this.note.className = "log-note";
    this.status.className = "log-status";
    holder.append(scroller, this.pill, this.note);
    const parts: HTMLElement[] = [holder];
    if (bar && this.isFull) {
      this.tools = bar.controls({
        learners: Number(this.dataset.learners),
        attempts: this.newest,
        rank: this.rank,
        attempt: this.dataset.attempt ?? "1",
      });
      this.nameWhole();
      this.connectTools(this.tools, view);
      this.tools.wrap.setAttribute("aria-pressed", String(view.pane.wrap));
      parts.unshift(this.tools.bar);
      parts.push(this.status);
      if (this.ticks) holder.append(this.ticks.element);
    }
    this.showTimes(view);
    const hadFocus = this.querySelector(".log-scroller") === document.activeElement; // in the lines that the server rendered
    this.replaceChildren(...parts);
    if (hadFocus) scroller.focus({ preventScroll: true });
    scroller.addEventListener("click", (event) => this.onClick(event, view));
    void this.open(view);
  }

  private makeStreams(): Streams {
    this.streams?.close();
    this.streams = new Streams(this.dataset.job ?? "", this.attempts, this.ranks, (lines) => this.onLines(lines));
    for (const survey of this.surveys) survey.close();
    const isCounted = this.isFull && this.streams.all.length <= COUNTED;
    this.surveys = isCounted ? this.streams.all.map((lines) => new Survey(lines, this.showStatus)) : [];
    return this.streams;
  }

  private async open(view: LogView): Promise<void> {
    const query = new URLSearchParams(location.search);
    view.level = this.isFull ? levelIn(query) : "all";
    this.showLevel(view);
    view.chooseRows("");
    view.pane.follow(); // before the lines come: a reader who scrolls back meanwhile stays there
    const { streams } = this;
    await streams.open(this.isFull ? 300 : 60);
    if (streams !== this.streams) return; // others were chosen meanwhile
    if (this.isWhole) view.chooseRows(view.firstKey);
    const place = linkedLines(location.hash);
    if (this.isFull && place) view.show({ ...place, attempt: place.attempt || this.lastAttempt }, this.firstRank);
    else if (view.level !== "all" && this.streams.ended) view.pane.toStart();
    const text = query.get("q");
    if (this.isFull && text && this.tools) {
      this.tools.find.value = text;
      void view.find(text, { stay: Boolean(place) });
    }
    this.seenTotal = this.total;
    this.showStatus();
  }

  /** The address names other lines, typed or by a link on this page. */
  private readonly onHash = (): void => {
    const { view } = this;
    const place = linkedLines(location.hash);
    if (!view || !place || !this.isFull) return;
    const attempt = place.attempt || this.lastAttempt;
    if (attempt > this.newest) return;
    if (!this.attempts.includes(attempt)) return this.switchTo(view, this.rank, String(attempt), location.hash);
    if (!view.has({ attempt, rank: this.firstRank, n: place.from })) this.filter(view, "all");
    view.show({ ...place, attempt }, this.firstRank);
  };

  /** Another attempt has begun: its lines come after what is shown, which stays in place. */
  private grow(newest: number, view: LogView): void {
    const key = view.firstKey;
    const from = Number(this.dataset.attempts) + 1;
    this.dataset.attempts = String(newest);
    for (let attempt = from; attempt <= newest; attempt += 1) {
      this.tools?.attempt?.add(new Option(texts.log.attemptOption(attempt), String(attempt)), 1); // after "All attempts"
      for (const lines of this.streams.add(attempt)) void lines.open(300);
    }
    const [oldest = newest] = this.attempts;
    this.streams.dropBefore(view.pane.following ? oldest : Math.min(oldest, placeOf(key).attempt)); // the visible lines stay
    this.nameWhole();
    this.linkRaw();
    view.chooseRows(key);
  }

  private nameWhole(): void {
    if (this.tools) bar?.showWhole(this.tools, attemptsShown(this.newest, this.ranks.length).length, this.newest);
  }

  private get lastAttempt(): number {
    return this.streams.all.at(-1)?.stream.attempt ?? 1;
  }

  private get total(): number {
    return this.streams.total;
  }

  /** The learner whose line the address names. */
  private get firstRank(): number {
    return this.rank === "all" ? 0 : Number(this.rank);
  }

  private onLines(lines: Lines): void {
    if (!this.view) return;
    this.view.update(lines);
    for (const survey of this.surveys) survey.update();
    if (this.view.pane.following) this.seenTotal = this.total;
    this.showStatus();
  }

  private readonly showStatus = (): void => {
    const { view } = this;
    if (!view) return;
    const { following } = view.pane;
    const fresh = this.total - this.seenTotal;
    if (following) this.seenTotal = this.total;
    const { all: sources, ended } = this.streams;
    const { pill } = texts.log;
    const text = following ? pill.following : fresh > 0 ? texts.log.newLines(fresh) : ended ? pill.end : pill.newest;
    if (this.pill.textContent !== text) this.pill.textContent = text;
    // A log that ended may show its end without following it.
    this.pill.hidden = (ended && view.isAtEnd) || (following && (ended || this.isFull));
    this.pill.classList.toggle("still", following);
    const problem = sources.find((lines) => lines.problem)?.problem;
    const answered = sources.every((lines) => lines.answered);
    if (problem && !this.total) this.note.replaceChildren(...problemNote(problem, () => void this.open(view)));
    else if (view.rows.length > 0) this.note.replaceChildren();
    else this.note.replaceChildren(emptyNote({ answered: answered && !view.rows.waiting, level: view.level, ended: ended || this.isOver, attempt: this.lastAttempt }));
    view.pane.scroller.setAttribute("aria-label", texts.log.of(this.rank === "all" ? texts.log.allLearners : texts.log.oneLearner(this.rank), this.total));
    if (!bar || !this.tools) return;
    bar.showFollow(this.tools, following, ended);
    this.status.replaceChildren(
      ...bar.statusNodes({
        following,
        ended,
        first: view.firstLine,
        searching: view.finder.running || Boolean(view.rows.waiting),
        stoppedAt: view.finder.stoppedAt,
        total: this.total,
        partly: Boolean(problem && this.total),
        stale: live.status !== "live" || sources.some((lines) => lines.unavailable),
      }),
    );
    bar.showSearch(this.tools, view.finder);
    this.showSurvey(this.tools, view);
  };

  /** Counts of a few logs together, and ticks of one. */
  private showSurvey(tools: Controls, view: LogView): void {
    const { surveys } = this;
    const sum = (of: (survey: Survey) => number): number => surveys.reduce((total, survey) => total + of(survey), 0);
    const isKnown = surveys.length > 0 && surveys.every((survey) => survey.known);
    bar?.showCounts(tools, isKnown ? { warn: sum((survey) => survey.warnings), error: sum((survey) => survey.errors) } : {});
    const isOne = this.streams.all.length === 1 && view.level === "all"; // else a line's place is not its share of the log
    const found = isOne ? view.finder.matches.map((key) => placeOf(key).n) : [];
    this.ticks?.draw(Math.max(1, this.total), isOne ? (surveys[0]?.places ?? []) : [], found);
  }

  // --- controls ---

  private connectTools(tools: Controls, view: LogView): void {
    bar?.connect(tools, {
      learner: (rank) => this.switchTo(view, rank, this.dataset.attempt ?? "1"),
      attempt: (attempt) => this.switchTo(view, this.rank, attempt),
      level: (level) => this.filter(view, level),
      find: () => this.find(view, tools.find.value),
      stop: () => (view.finder.running ? view.finder.stop() : this.find(view, (tools.find.value = ""))),
      searchOn: () => view.finder.resume(),
      step: (by) => view.step(by),
      follow: () => (view.pane.following && tools.follow.ariaPressed ? view.pane.pause() : view.pane.follow()),
      error: () => void this.jumpToError(view),
      wrap: () => this.toggleWrap(view),
      times: () => this.nextTimes(view),
      full: () => void (document.fullscreenElement ? document.exitFullscreen() : this.requestFullscreen()),
    });
    this.linkRaw();
  }

  private linkRaw(): void {
    if (!this.tools) return;
    const rank = this.rank === "all" ? "0" : this.rank;
    const attempt = this.isWhole ? this.newest : Number(this.dataset.attempt);
    bar?.linkRaw(this.tools, this.dataset.job ?? "", rank, attempt, this.isWhole);
  }

  private switchTo(view: LogView, rank: string, attempt: string, place = ""): void {
    this.dataset.rank = rank;
    this.dataset.attempt = attempt;
    address({ learner: rank, attempt }, place);
    view.switchTo(this.makeStreams());
    this.nameWhole();
    this.linkRaw();
    void this.open(view);
  }

  private filter(view: LogView, level: Level): void {
    view.filter(level);
    this.showLevel(view);
    address({ level: level === "all" ? "" : level });
    this.showStatus();
  }

  private showLevel({ level }: LogView): void {
    for (const one of this.tools?.levels ?? []) one.setAttribute("aria-pressed", String(one.dataset.level === level));
  }

  private find(view: LogView, text: string): void {
    address({ q: text });
    void view.find(text);
  }

  /** The job of this log has ended, whether or not its learner could say so. */
  private get isOver(): boolean {
    return "over" in this.dataset;
  }

  private async jumpToError(view: LogView): Promise<void> {
    this.tools?.error.setAttribute("aria-busy", "true");
    const { streams } = this;
    try {
      for (const lines of [...streams.all]) {
        const n = await firstError(lines);
        if (streams !== this.streams) return; // others were chosen meanwhile
        if (n) return this.showOnly(view, { ...lines.stream, n });
      }
      toast(texts.log.noError);
    } catch {
      toast(texts.log.errorSearchFailed, "error");
    } finally {
      this.tools?.error.removeAttribute("aria-busy");
    }
  }

  /** Show this line even if the chosen level or learner leaves it out. */
  private showOnly(view: LogView, place: Place): void {
    const { attempt, rank, n } = place;
    if (!view.has(place) && view.level !== "all") this.filter(view, "all");
    if (view.has(place)) return view.show({ attempt, from: n, to: n }, rank);
    if (this.tools?.learner) this.tools.learner.value = String(rank);
    this.switchTo(view, String(rank), this.dataset.attempt ?? "1", anchorOf({ attempt, from: n, to: n }, this.isWhole));
  }

  private onClick(event: MouseEvent, view: LogView): void {
    if (!view.click(event.target as Element, event.shiftKey) || !view.picked || !this.isFull) return;
    history.replaceState(null, "", `${location.pathname}${location.search}${anchorOf(view.picked, this.isWhole)}`);
  }

  private readonly onKey = (event: KeyboardEvent): void => {
    const { view } = this;
    if (!view) return;
    const isTyping = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
    if (isTyping) {
      const press = actionIn(KEYS.search, event);
      if (press === "next" || press === "previous") view.step(press === "next" ? 1 : -1);
      if (press === "leave") view.finder.running ? view.finder.stop() : view.pane.scroller.focus();
      return;
    }
    const { pane } = view;
    const page = pane.scroller.clientHeight - 40;
    const act = actionOf(event, document.activeElement === this.tools?.find, {
      follow: () => (pane.following ? pane.pause() : pane.follow()),
      end: () => pane.follow(),
      start: () => pane.toStart(),
      pageUp: () => pane.scrollBy(-page),
      pageDown: () => pane.scrollBy(page),
      up: () => pane.scrollBy(-ROW_PX),
      down: () => pane.scrollBy(ROW_PX),
      find: () => this.tools?.find.focus(),
      next: () => view.step(1),
      previous: () => view.step(-1),
      wrap: () => this.toggleWrap(view),
      times: () => this.nextTimes(view),
      error: () => void this.jumpToError(view),
      full: () => void this.requestFullscreen(),
      copy: () => this.copy(view),
    });
    if (!act) return;
    event.preventDefault();
    act();
  };

  private copy(view: LogView): void {
    const lines = view.pickedLines();
    if (lines.length) void navigator.clipboard.writeText(lines.join("\n")).then(() => toast(texts.log.copied(lines.length), "success"));
  }

  private toggleWrap({ pane }: LogView): void {
    pane.wrap = this.classList.toggle("wrap");
    this.tools?.wrap.setAttribute("aria-pressed", String(pane.wrap));
    pane.relayout();
  }

  private nextTimes(view: LogView): void {
    view.times = nextMode(view.times);
    this.showTimes(view);
    view.pane.refill();
  }

  private showTimes({ times }: LogView): void {
    this.classList.toggle("hide-times", times === "off");
    this.classList.toggle("timed", times !== "off");
    if (this.tools) bar?.showTimes(this.tools, times);
  }
}

/** The level that an address names. */
function levelIn(query: URLSearchParams): Level {
  const level = query.get("level");
  return level === "warn" || level === "error" ? level : "all";
}

/** Note what is shown in the address, so that it can be shared and a reload shows it again; "" removes a name. */
function address(changes: Record<string, string>, hash = location.hash): void {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const text = query.toString();
  history.replaceState(null, "", `${location.pathname}${text && "?"}${text}${hash}`);
}

customElements.define("x-log", LogViewer);
