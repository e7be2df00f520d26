// What the server's answer to a spec means, in words: whether the job could start now, on which nodes, or when. Pure.
import { span } from "../format";
import type { Estimate, Quota, Verdict } from "./check";
import { texts } from "./texts";

/** good: it could start; wait: it would have to wait; bad: it needs a change. */
export type Kind = "good" | "wait" | "bad";

export function kindOf({ problem, errors, now }: Verdict): Kind {
  if (problem || errors.length) return "bad";
  if (!now || now.starts) return "good";
  return now.actor === "fix" ? "bad" : "wait";
}

/** When it would start, or why there is no estimate; now: milliseconds since 1970. */
export function when({ from, to, message }: Estimate, now = Date.now()): string {
  if (!from || !to) return message && texts.noEstimate(message.replace(/^[A-Z](?![A-Z])/, (first) => first.toLowerCase()));
  const [low = 0, high = 0] = [from, to].map((at) => (Date.parse(at) - now) / 1000);
  return texts.startsIn(span(low, high));
}

const nodesOf = (nodes: string[]): string => [...new Set(nodes)].join(", ");

export function headline(verdict: Verdict, kind: Kind): string {
  const { problem, errors, now } = verdict;
  if (problem) return problem;
  if (errors.length) return texts.notChecked;
  if (!now) return texts.valid;
  if (now.starts) return texts.starts(nodesOf(now.nodes));
  if (kind === "bad") return texts.cannotStart;
  return now.estimate.from ? when(now.estimate).replace(/\.$/, "") : texts.waits;
}

/** What the box says below its headline. */
export function details({ now }: Verdict): string {
  if (!now) return "";
  return now.starts ? where(now.nodes) : `${now.message} ${now.estimate.from ? "" : when(now.estimate)}`.trim();
}

/** "2 learners, both on node-a", "3 learners: node-a 2, node-b 1". nodes: one name per learner. */
export function where(nodes: string[]): string {
  const each = new Map<string, number>();
  for (const node of nodes) each.set(node, (each.get(node) ?? 0) + 1);
  if (!nodes.length) return "";
  if (each.size === 1) return texts.allOn(nodes.length, nodes[0] ?? "");
  return texts.spread(nodes.length, [...each].map(([node, count]) => `${node} ${count}`).join(", "));
}

/** The line beside the submit button, where there are no errors to list. */
export function oneLine({ problem, now }: Verdict): string {
  if (problem) return problem;
  if (!now) return texts.valid;
  return now.starts ? texts.starts(nodesOf(now.nodes)) : `${now.message} ${when(now.estimate)}`.trim();
}

export type Cell = "used" | "own" | "free" | "limit" | "over";

/** Cells of the quota, each for the same number of devices: in use, this job's, free; then the limit; then what exceeds it. */
export function quotaCells({ limit, used, asked }: Quota, most: number): Cell[] {
  const perCell = Math.max(1, Math.ceil(Math.max(limit, used + asked) / most));
  const within = Math.max(0, Math.min(asked, limit - used));
  const counts: [Cell, number][] = [["used", used], ["own", within], ["free", limit - used - within], ["limit", perCell], ["over", asked - within]]; // prettier-ignore
  return counts.flatMap(([cell, count]) => Array<Cell>(Math.ceil(Math.max(0, count) / perCell)).fill(cell));
}
