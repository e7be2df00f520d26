// What would happen to the job if it were submitted now: the box below the resources, and the list of what was looked at.
import { span, thousands } from "../format";
import { icon } from "../icon";
import type { Check, Estimate, Quota, Verdict } from "./check";

const MOST_CELLS = 24;
const MARKS: Record<Check["result"], [icon: string, colour: string, said: string]> = {
  passed: ["circle-check", "gfg", "passed"],
  waits: ["hourglass", "afg", "it would wait"],
  failed: ["circle-alert", "rfg", "failed"],
  skipped: ["circle-dashed", "t3", "not looked at"],
};

/** When it would start, or why nobody can say. */
export function when({ from, to, message }: Estimate): string {
  if (!from || !to) return message && `No estimate: ${message.charAt(0).toLowerCase()}${message.slice(1)}`;
  const [low = 0, high = 0] = [from, to].map((at) => (Date.parse(at) - Date.now()) / 1000);
  return `Starts in ${span(low, high)}.`;
}

export function showChecks(page: HTMLElement, { checks = [] }: Verdict): void {
  page.querySelector("[data-checks]")?.replaceChildren(
    ...checks.map(({ name, result, message }) => {
      const [mark, colour, said] = MARKS[result];
      const item = document.createElement("li");
      const symbol = icon(mark);
      symbol.classList.add(colour);
      const title = document.createElement("b");
      title.textContent = name.charAt(0).toUpperCase() + name.slice(1);
      const state = document.createElement("span");
      state.className = "vh";
      state.textContent = `${said}: `;
      const text = document.createElement("span");
      text.append(state, message);
      if (result === "failed") text.classList.add(colour);
      item.append(symbol, title, text);
      return item;
    }),
  );
}

/** While there are errors the box says so and keeps the last quota, so that nothing jumps below somebody who types. */
export function showOutlook(page: HTMLElement, { errors, now, quota, problem }: Verdict, kind: string): void {
  const box = page.querySelector<HTMLElement>("[data-fits]");
  const title = box?.querySelector("[data-fits-title]");
  const why = box?.querySelector("p");
  if (!box || !title || !why) return;
  const [mark, colour] = MARKS[!now ? "skipped" : kind === "good" ? "passed" : kind === "wait" ? "waits" : "failed"];
  const symbol = icon(mark);
  symbol.classList.add(colour);
  title.replaceChildren(symbol, problem ?? (errors.length ? "Judged again once the errors are mended" : !now ? "Valid" : headline(now, kind)));
  why.textContent = now ? (now.starts ? where(now.nodes) : `${now.message} ${now.estimate.from ? "" : when(now.estimate)}`) : "";
  if (quota) showQuota(box, quota);
}

function headline(now: NonNullable<Verdict["now"]>, kind: string): string {
  if (now.starts) return `Fits: starts now on ${[...new Set(now.nodes)].join(", ")}`;
  if (kind === "bad") return "Cannot start as it is";
  return now.estimate.from ? when(now.estimate).replace(/\.$/, "") : "Waits";
}

/** "2 learners, both on node-a", "3 learners: node-a 2, node-b 1". */
function where(nodes: string[]): string {
  const each = new Map<string, number>();
  for (const node of nodes) each.set(node, (each.get(node) ?? 0) + 1);
  if (nodes.length < 2) return "It waits for nobody.";
  if (each.size === 1) return `${nodes.length} learners, ${nodes.length === 2 ? "both" : "all"} on ${nodes[0]}.`;
  return `${nodes.length} learners: ${[...each].map(([node, count]) => `${node} ${count}`).join(", ")}.`;
}

/** One cell per device: in use, this job's, free; what goes over the limit stands behind its tick. */
function showQuota(box: HTMLElement, { slot_type, limit, used, asked }: Quota): void {
  const holder = box.querySelector<HTMLElement>("[data-quota]");
  const cells = holder?.querySelector(".cells");
  const [kind, sum] = holder?.querySelectorAll("b") ?? [];
  const small = holder?.querySelector("small");
  if (!holder || !cells || !kind || !sum || !small) return;
  holder.hidden = false;
  kind.textContent = slot_type;
  sum.textContent = `${thousands(used + asked)} of ${thousands(limit)}`;
  sum.classList.toggle("afg", used + asked > limit);
  small.textContent = `${thousands(used)} in use + ${thousands(asked)} for this job`;
  const within = Math.max(0, Math.min(asked, limit - used));
  const perCell = Math.max(1, Math.ceil(Math.max(limit, used + asked) / MOST_CELLS));
  const row: [string, number][] = [["u", used], ["me", within], ["", limit - used - within], ["tick", perCell], ["w", asked - within]];
  cells.setAttribute("aria-label", `${slot_type}: ${small.textContent}, of ${limit}`);
  cells.replaceChildren(
    ...row.flatMap(([name, count]) =>
      Array.from({ length: Math.ceil(Math.max(0, count) / perCell) }, () => {
        const cell = document.createElement(name === "tick" ? "b" : "i");
        if (name !== "tick") cell.className = name;
        return cell;
      }),
    ),
  );
}
