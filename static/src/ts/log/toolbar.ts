// The log viewer's controls, built once; x-log.ts connects them.
import { button, named } from "../button";
import { thousands } from "../format";
import { icon } from "../icon";
import { texts } from "../texts";
import type { Level } from "./streams";
import type { Mode } from "./times";

const words = texts.log;
const FIND_MS = 250; // after the last key, before a search begins

export interface Controls {
  bar: HTMLElement;
  learner: HTMLSelectElement | null;
  attempt: HTMLSelectElement | null;
  levels: HTMLButtonElement[];
  find: HTMLInputElement;
  found: HTMLElement;
  previous: HTMLButtonElement;
  next: HTMLButtonElement;
  clear: HTMLButtonElement;
  searchOn: HTMLButtonElement;
  follow: HTMLButtonElement;
  wrap: HTMLButtonElement;
  times: HTMLButtonElement;
  error: HTMLButtonElement;
  download: HTMLAnchorElement;
  full: HTMLButtonElement;
}

function choice(label: string, options: [string, string][], chosen: string): HTMLSelectElement {
  const select = document.createElement("select");
  select.className = "input";
  select.setAttribute("aria-label", label);
  for (const [value, text] of options) select.add(new Option(text, value, value === chosen, value === chosen));
  return select;
}

export function controls(at: { learners: number; attempts: number; rank: string; attempt: string }): Controls {
  const bar = document.createElement("div");
  bar.className = "log-toolbar";
  bar.setAttribute("role", "toolbar");
  bar.setAttribute("aria-label", words.tools);
  const ranks: [string, string][] = Array.from({ length: at.learners }, (_, rank) => [String(rank), words.learnerOption(rank)]);
  if (at.learners > 1) ranks.unshift(["all", words.allLearnersOption(at.learners)]);
  const attempts: [string, string][] = Array.from({ length: at.attempts }, (_, back) => [String(at.attempts - back), words.attemptOption(at.attempts - back)]);
  attempts.unshift(["all", words.attempts(at.attempts, at.attempts)]);
  const learner = at.learners > 1 ? choice(words.learner, ranks, at.rank) : null;
  const attempt = at.attempts > 1 ? choice(words.attempt, attempts, at.attempt) : null;
  const seg = document.createElement("div");
  seg.className = "segments";
  seg.setAttribute("role", "group");
  seg.setAttribute("aria-label", words.level);
  const levels = (["all", "warn", "error"] as const).map((level) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = words.levels[level];
    made.dataset.level = level;
    const count = document.createElement("span");
    count.className = "count";
    count.setAttribute("aria-hidden", "true"); // its title has the same text
    made.append(count);
    made.setAttribute("aria-pressed", String(level === "all"));
    seg.append(made);
    return made;
  });
  const box = document.createElement("div");
  box.className = "find";
  box.setAttribute("role", "search");
  const find = document.createElement("input");
  find.type = "search";
  find.placeholder = words.search;
  find.setAttribute("aria-label", words.searchLabel);
  const found = document.createElement("span");
  found.className = "match-count";
  found.setAttribute("role", "status");
  const previous = button("chevron-up", words.previous);
  const next = button("chevron-down", words.next);
  const clear = button("x", words.clear);
  const searchOn = button("search", words.searchOn, words.searchOn);
  searchOn.hidden = true;
  box.append(icon("search"), find, found, previous, next, clear);
  const gap = document.createElement("span");
  gap.className = "spacer";
  const follow = button("arrow-down-to-line", words.followLabel, words.follow);
  const error = named(button("octagon-alert", words.firstError), words.error);
  follow.classList.add("follow");
  error.dataset.tool = "error";
  const wrap = named(button("wrap-text", words.wrapLabel), words.wrap);
  const times = named(button("clock", words.timesLabel.clock), words.times);
  const download = document.createElement("a");
  download.className = "button ghost small icon-only";
  download.setAttribute("aria-label", words.rawLabel);
  download.title = words.rawLabel;
  download.append(icon("download"));
  named(download, words.raw);
  const full = button("maximize-2", words.fullScreen);
  full.classList.add("last");
  for (const one of [wrap, times]) one.setAttribute("aria-pressed", "false");
  times.setAttribute("aria-pressed", "true");
  bar.append(...[learner, attempt].filter((one) => one !== null), seg, box, searchOn, gap, follow, error, wrap, times, download, full);
  return { bar, learner, attempt, levels, find, found, previous, next, clear, searchOn, follow, wrap, times, error, download, full };
}

/** A log that has ended is not followed: the same button leads to its end. */
export function showFollow({ follow }: Controls, following: boolean, ended: boolean): void {
  if (ended) follow.removeAttribute("aria-pressed");
  else follow.setAttribute("aria-pressed", String(following));
  const label = ended ? words.endLabel : words.followLabel;
  if (follow.title === label) return;
  follow.title = label;
  follow.setAttribute("aria-label", label);
  (follow.querySelector(".label") as HTMLElement).textContent = ended ? words.end : words.follow;
}

/** Of many logs only the newest attempts are shown together: the choice says how many. */
export function showWhole({ attempt }: Controls, shown: number, attempts: number): void {
  const option = attempt?.querySelector<HTMLOptionElement>("option[value=all]");
  if (option) option.text = words.attempts(shown, attempts);
}

/** How many lines of a level there are, where that is known. */
export function showCounts({ levels }: Controls, counts: Record<string, number>): void {
  for (const one of levels) {
    const count = counts[one.dataset.level ?? ""];
    const cell = one.querySelector(".count") as HTMLElement;
    const text = count === undefined ? "" : thousands(count);
    if (cell.textContent === text) continue;
    cell.textContent = text;
    one.title = count === undefined ? "" : words.inLevel(one.dataset.level ?? "", count);
  }
}

/** How many matches there are so far, and what can be done about the search. */
export function showSearch({ found, clear, searchOn }: Controls, { count, running, stoppedAt }: { count: string; running: boolean; stoppedAt: number }): void {
  if (found.textContent !== count) found.textContent = count;
  searchOn.hidden = running || !stoppedAt;
  const label = running ? words.stop : words.clear;
  if (clear.title !== label) clear.title = label;
  clear.setAttribute("aria-label", label);
}

/** What the reader can do with the controls. */
export interface Actions {
  learner(rank: string): void;
  attempt(attempt: string): void;
  level(level: Level): void;
  find(): void;
  /** Stop a search that runs, clear one that does not. */
  stop(): void;
  searchOn(): void;
  step(by: number): void;
  follow(): void;
  error(): void;
  wrap(): void;
  times(): void;
  full(): void;
}

export function connect(tools: Controls, actions: Actions): void {
  const { learner, attempt, find } = tools;
  learner?.addEventListener("change", () => actions.learner(learner.value));
  attempt?.addEventListener("change", () => actions.attempt(attempt.value));
  for (const one of tools.levels) one.addEventListener("click", () => actions.level((one.dataset.level ?? "all") as Level));
  let typing = 0;
  find.addEventListener("input", () => {
    clearTimeout(typing);
    typing = window.setTimeout(actions.find, FIND_MS);
  });
  tools.next.addEventListener("click", () => actions.step(1));
  tools.previous.addEventListener("click", () => actions.step(-1));
  tools.clear.addEventListener("click", actions.stop);
  tools.searchOn.addEventListener("click", () => {
    tools.searchOn.hidden = true;
    find.focus();
    actions.searchOn();
  });
  for (const name of ["follow", "error", "wrap", "times", "full"] as const) tools[name].addEventListener("click", actions[name]);
}

/** Of several attempts the newest one is downloaded, and the link says so. */
export function linkRaw({ download }: Controls, job: string, rank: string, attempt: number, whole: boolean): void {
  download.href = `/api/v1/jobs/${job}/logs/raw?learner=${rank}&attempt=${attempt}`;
  download.title = whole ? words.rawOfAttempt(attempt) : words.rawLabel;
  download.setAttribute("aria-label", download.title);
}

export function showTimes({ times }: Controls, mode: Mode): void {
  times.setAttribute("aria-label", words.timesLabel[mode]);
  times.setAttribute("aria-pressed", String(mode !== "off"));
}
