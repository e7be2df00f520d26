// How numbers, times and durations read; the same words as portal/templatetags/ui.py.

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

export const thousands = (value: number): string => value.toLocaleString("en-US");

export function metric(value: number | string | null | undefined): string {
  if (value === null || value === undefined) return "—";
  return typeof value === "number" ? String(Number(value.toPrecision(4))) : value;
}
