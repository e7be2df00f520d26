// What "Clip outliers" leaves out of the scale: values far from the middle half of those shown. Pure. Nothing is hidden:
// each point beyond an edge is marked there, and the table has its value.
import type { Settings } from "./settings";
import type { Table } from "./table";

export interface Clipping {
  /** The lowest and highest value within the fences, with a margin. */
  scale: [number, number];
  /** Where a line leaves the scale, and at which edge. */
  outside: [x: number, edge: "top" | "bottom"][];
}

const FENCE = 3; // times the spread of the middle half: a normal curve has two in a million beyond it
const MARGIN = 0.05;

/** null: outliers are not clipped, or there is none. */
export function clipping(table: Table, settings: Settings): Clipping | null {
  if (!settings.clip) return null;
  const sorted = table.lines.flatMap((line) => line.raw.filter((value) => value !== null)).sort((a, b) => a - b);
  const at = (share: number): number => sorted[Math.round(share * (sorted.length - 1))] ?? 0;
  const reach = FENCE * (at(0.75) - at(0.25));
  const [low, high] = [at(0.25) - reach, at(0.75) + reach];
  const outside: Clipping["outside"] = [];
  table.x.forEach((x, place) => {
    if (table.lines.some((line) => (line.high[place] ?? -Infinity) > high)) outside.push([x, "top"]);
    if (table.lines.some((line) => (line.low[place] ?? Infinity) < low)) outside.push([x, "bottom"]);
  });
  if (!outside.length) return null;
  const inside = table.lines.flatMap((line) => [...line.low, ...line.high]).filter((value) => value !== null && value >= low && value <= high);
  return { scale: widened(Math.min(...(inside as number[])), Math.max(...(inside as number[])), settings.log), outside };
}

/** A scale is never a single value, and a logarithmic one stays above 0. */
function widened(low: number, high: number, log: boolean): [number, number] {
  if (log) return low < high ? [low, high] : [low / 2, high * 2];
  const margin = low < high ? (high - low) * MARGIN : Math.abs(high) * MARGIN || 1;
  return [low - margin, high + margin];
}
