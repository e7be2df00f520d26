// The time beside each line: time of day, since the first line, or none. Pure.

export type Mode = "clock" | "relative" | "off";
const MODES: Mode[] = ["clock", "relative", "off"];

export const nextMode = (mode: Mode): Mode => MODES[(MODES.indexOf(mode) + 1) % MODES.length] ?? "clock";

/** t, start: ISO timestamps, "" where not known; start is that of the first line. */
export function timeText(mode: Mode, t: string, start: string): string {
  if (mode === "off" || !t) return "";
  if (mode === "clock" || !start) return t.slice(11, 23);
  const seconds = (Date.parse(t) - Date.parse(start)) / 1000;
  return `${seconds < 0 ? "-" : "+"}${Math.abs(seconds).toFixed(3)}`.padStart(12);
}
