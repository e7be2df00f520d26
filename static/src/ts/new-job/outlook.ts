// What would happen to the job if it were submitted now: the box below the resources, and the list of checks.
import { icon } from "../icon";
import type { Check, Quota, Verdict } from "./check";
import { texts } from "./texts";
import { details, headline, quotaCells, type Cell, type Kind } from "./verdict";

const MOST_CELLS = 24;
const MARKS: Record<Check["result"], [icon: string, color: string]> = {
  passed: ["circle-check", "green-text"],
  waits: ["hourglass", "amber-text"],
  failed: ["circle-alert", "red-text"],
  skipped: ["circle-dashed", "tertiary"],
};
const RESULTS: Record<Kind, Check["result"]> = { good: "passed", wait: "waits", bad: "failed" };
const CELLS: Record<Exclude<Cell, "limit">, string> = { used: "others", own: "mine", free: "", over: "waiting-mark" };

export function showChecks(page: HTMLElement, { checks = [] }: Verdict): void {
  page.querySelector("[data-checks]")?.replaceChildren(
    ...checks.map(({ name, result, message }) => {
      const [mark, color] = MARKS[result];
      const item = document.createElement("li");
      const symbol = icon(mark);
      symbol.classList.add(color);
      const title = document.createElement("b");
      title.textContent = name.charAt(0).toUpperCase() + name.slice(1);
      const state = document.createElement("span");
      state.className = "visually-hidden";
      state.textContent = `${texts.results[result]}: `;
      const text = document.createElement("span");
      text.append(state, message);
      if (result === "failed") text.classList.add(color);
      item.append(symbol, title, text);
      return item;
    }),
  );
}

/** While there are errors the box says so and keeps the last quota, so that nothing moves while a person types. */
export function showOutlook(page: HTMLElement, verdict: Verdict, kind: Kind): void {
  const box = page.querySelector<HTMLElement>("[data-fits]");
  const title = box?.querySelector("[data-fits-title]");
  const text = box?.querySelector("p");
  if (!box || !title || !text) return;
  const [mark, color] = MARKS[verdict.now ? RESULTS[kind] : "skipped"];
  const symbol = icon(mark);
  symbol.classList.add(color);
  title.replaceChildren(symbol, headline(verdict, kind));
  text.textContent = details(verdict);
  if (verdict.quota) showQuota(box, verdict.quota);
  else if (verdict.errors.length || verdict.problem) showOldQuota(box);
  else hideQuota(box);
}

/** The quota is of the last valid spec, and says so. */
function showOldQuota(box: HTMLElement): void {
  const holder = box.querySelector<HTMLElement>("[data-quota]");
  const small = holder?.querySelector("small");
  if (!holder || !small || holder.hidden || "old" in holder.dataset) return;
  holder.dataset.old = "";
  small.textContent = texts.lastValid;
}

/** An opportunistic job uses none. */
function hideQuota(box: HTMLElement): void {
  const holder = box.querySelector<HTMLElement>("[data-quota]");
  if (holder) holder.hidden = true;
}

function showQuota(box: HTMLElement, quota: Quota): void {
  const { slot_type, limit, used, asked } = quota;
  const holder = box.querySelector<HTMLElement>("[data-quota]");
  const cells = holder?.querySelector(".cells");
  const [kind, sum] = holder?.querySelectorAll("b") ?? [];
  const small = holder?.querySelector("small");
  if (!holder || !cells || !kind || !sum || !small) return;
  holder.hidden = false;
  delete holder.dataset.old;
  kind.textContent = slot_type;
  sum.textContent = texts.sum(used + asked, limit);
  sum.classList.toggle("amber-text", used + asked > limit);
  small.textContent = texts.shares(used, asked);
  cells.setAttribute("aria-label", texts.quota(slot_type, small.textContent, limit));
  cells.replaceChildren(
    ...quotaCells(quota, MOST_CELLS).map((cell) => {
      const made = document.createElement(cell === "limit" ? "b" : "i");
      if (cell !== "limit") made.className = CELLS[cell];
      return made;
    }),
  );
}
