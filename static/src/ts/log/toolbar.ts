// The log viewer's controls, built once; what they do is the element's business.
import { counted, thousands } from "../format";

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
  follow: HTMLButtonElement;
  wrap: HTMLButtonElement;
  times: HTMLButtonElement;
  error: HTMLButtonElement;
  download: HTMLAnchorElement;
  full: HTMLButtonElement;
}

export function icon(sprite: string, name: string): SVGElement {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "i");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `${sprite}#${name}`);
  svg.append(use);
  return svg;
}

/** The word that a phone shows under an icon. */
export function named<Made extends HTMLElement>(made: Made, word: string): Made {
  const shown = document.createElement("span");
  shown.className = "ph";
  shown.setAttribute("aria-hidden", "true");
  shown.textContent = word;
  made.append(shown);
  return made;
}

export function button(sprite: string, name: string, label: string, text = ""): HTMLButtonElement {
  const made = document.createElement("button");
  made.type = "button";
  made.className = text ? "btn s" : "btn g s ic";
  made.append(icon(sprite, name));
  if (text) {
    const words = document.createElement("span");
    words.className = "lb";
    words.textContent = text;
    made.append(words);
  }
  made.setAttribute("aria-label", label);
  made.title = label;
  return made;
}

function choice(label: string, options: [string, string][], chosen: string): HTMLSelectElement {
  const select = document.createElement("select");
  select.className = "in";
  select.setAttribute("aria-label", label);
  for (const [value, text] of options) select.add(new Option(text, value, value === chosen, value === chosen));
  return select;
}

export function controls(sprite: string, at: { learners: number; attempts: number; rank: string; attempt: string }): Controls {
  const bar = document.createElement("div");
  bar.className = "lvb";
  bar.setAttribute("role", "toolbar");
  bar.setAttribute("aria-label", "Log tools");
  const ranks: [string, string][] = Array.from({ length: at.learners }, (_, rank) => [String(rank), `Learner ${rank}`]);
  if (at.learners > 1) ranks.unshift(["all", `All ${at.learners} learners`]);
  const attempts: [string, string][] = Array.from({ length: at.attempts }, (_, back) => [String(at.attempts - back), `Attempt ${at.attempts - back}`]);
  attempts.unshift(["all", "All attempts"]);
  const learner = at.learners > 1 ? choice("Learner", ranks, at.rank) : null;
  const attempt = at.attempts > 1 ? choice("Attempt", attempts, at.attempt) : null;
  const seg = document.createElement("div");
  seg.className = "seg";
  seg.setAttribute("role", "group");
  seg.setAttribute("aria-label", "Level");
  const levels = ["All", "Warn", "Error"].map((name) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = name;
    made.dataset.level = name.toLowerCase();
    const count = document.createElement("span");
    count.className = "c";
    count.setAttribute("aria-hidden", "true"); // its title says the same
    made.append(count);
    made.setAttribute("aria-pressed", String(name === "All"));
    seg.append(made);
    return made;
  });
  const box = document.createElement("div");
  box.className = "find";
  box.setAttribute("role", "search");
  const find = document.createElement("input");
  find.type = "search";
  find.placeholder = "Search";
  find.setAttribute("aria-label", "Search the log");
  const found = document.createElement("span");
  found.className = "nm";
  found.setAttribute("role", "status");
  const previous = button(sprite, "chevron-up", "Previous match");
  const next = button(sprite, "chevron-down", "Next match");
  const clear = button(sprite, "x", "Clear search");
  box.append(icon(sprite, "search"), find, found, previous, next, clear);
  const gap = document.createElement("span");
  gap.className = "sp";
  const follow = button(sprite, "arrow-down-to-line", "Follow the newest line", "Follow");
  const error = named(button(sprite, "octagon-alert", "Jump to the first error"), "Error");
  follow.classList.add("fo");
  error.dataset.tool = "error";
  const wrap = named(button(sprite, "wrap-text", "Wrap lines"), "Wrap");
  const times = named(button(sprite, "clock", "Times: time of day"), "Times");
  const download = document.createElement("a");
  download.className = "btn g s ic";
  download.setAttribute("aria-label", "Download the raw log");
  download.title = "Download the raw log";
  download.append(icon(sprite, "download"));
  named(download, "Raw");
  const full = button(sprite, "maximize-2", "Full screen");
  full.classList.add("last");
  for (const one of [wrap, times]) one.setAttribute("aria-pressed", "false");
  times.setAttribute("aria-pressed", "true");
  bar.append(...[learner, attempt].filter((one) => one !== null), seg, box, gap, follow, error, wrap, times, download, full);
  return { bar, learner, attempt, levels, find, found, previous, next, clear, follow, wrap, times, error, download, full };
}

/** A log that has ended is not followed: the same button leads to its end. */
export function showFollow({ follow }: Controls, following: boolean, ended: boolean): void {
  if (ended) follow.removeAttribute("aria-pressed");
  else follow.setAttribute("aria-pressed", String(following));
  const label = ended ? "Go to the end" : "Follow the newest line";
  if (follow.title === label) return;
  follow.title = label;
  follow.setAttribute("aria-label", label);
  (follow.querySelector(".lb") as HTMLElement).textContent = ended ? "End" : "Follow";
}

/** Of many logs only the newest attempts are shown together: the choice says how many. */
export function showWhole({ attempt }: Controls, shown: number, attempts: number): void {
  const option = attempt?.querySelector<HTMLOptionElement>("option[value=all]");
  if (option) option.text = shown === attempts ? "All attempts" : shown === 1 ? "Newest attempt" : `Newest ${shown} attempts`;
}

/** How many lines of a level there are, where that is known. */
export function showCounts({ levels }: Controls, counts: Record<string, number>): void {
  for (const one of levels) {
    const count = counts[one.dataset.level ?? ""];
    const cell = one.querySelector(".c") as HTMLElement;
    const text = count === undefined ? "" : thousands(count);
    if (cell.textContent === text) continue;
    cell.textContent = text;
    one.title = count === undefined ? "" : counted(count, "line");
  }
}
