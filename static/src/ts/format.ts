// Numbers, times and durations as text, in the same form as portal/templatetags/ui.py. Pure.

export function duration(seconds: number): string {
  const left = Math.max(0, Math.floor(seconds));
  const days = Math.floor(left / 86400);
  const hours = Math.floor((left % 86400) / 3600);
  const minutes = Math.floor((left % 3600) / 60);
  const rest = left % 60;
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${String(minutes).padStart(2, "0")} min`;
  if (minutes) return minutes < 10 ? `${minutes} min ${String(rest).padStart(2, "0")} s` : `${minutes} min`;
  return `${rest} s`;
}

/** How long ago, in one unit: 38 s, 6 min, 3 h, 2 d. */
export function past(seconds: number): string {
  const left = Math.max(0, Math.floor(seconds));
  const [unit, word] = left >= 86400 ? [86400, "d"] : left >= 3600 ? [3600, "h"] : left >= 60 ? [60, "min"] : [1, "s"];
  return `${Math.floor(left / unit)} ${word} ago`;
}

/** A range of seconds to come: 25–40 min, 1.5–3 h, 8 min, under 1 min. */
export function span(low: number, high: number): string {
  if (high < 60) return "under 1 min";
  const [unit, word] = high < 5400 ? [60, "min"] : high < 129_600 ? [3600, "h"] : [86400, "d"];
  const short = (seconds: number): number => {
    const count = Math.max(0, seconds) / unit;
    const step = unit === 60 ? (count > 10 ? 5 : 1) : count >= 10 ? 1 : 0.5;
    return Math.round(count / step) * step;
  };
  const [first, last] = [short(low), short(high)];
  return first === last ? `${last} ${word}` : `${first}–${last} ${word}`;
}

/** Time of day, UTC; at: milliseconds since 1970. */
export const timeOfDay = (at: number): string => new Date(at).toISOString().slice(11, 19);

export const thousands = (value: number): string => value.toLocaleString("en-US");

/** 1 line, 2,000 lines. */
export const counted = (count: number, word: string): string => `${thousands(count)} ${word}${count === 1 ? "" : "s"}`;

/** GPU-hours with one decimal, below 1 with two, so that short jobs show too. */
export function hours(count: number): string {
  if (!count) return "—";
  if (count < 0.01) return "< 0.01";
  return Number(count.toFixed(2)) >= 1 ? count.toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 }) : count.toFixed(2);
}

export function metric(value: number | string | null | undefined): string {
  if (value === null || value === undefined) return "—";
  if (typeof value !== "number") return value;
  const rounded = Number(value.toPrecision(4));
  const size = Math.abs(rounded);
  if (size >= 1000 && size < 1e15) return thousands(Math.round(value));
  return size && Number.isFinite(size) && (size < 1e-4 || size >= 1e15) ? rounded.toExponential() : String(rounded);
}
