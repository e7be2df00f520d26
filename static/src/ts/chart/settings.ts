// How all charts of a page are drawn, and how the address says it. Pure; page-settings.ts holds the settings of this page.

export interface Settings {
  x: "step" | "time" | "relative";
  /** Weight of the moving average, 0 (none) to 0.999. */
  smooth: number;
  log: boolean;
  /** Scale the y axis without outliers. */
  clip: boolean;
  /** Of compared jobs, draw by how much they differ from the baseline; never with log. */
  delta: boolean;
  find: string;
  /** In the unit of the x axis: steps or seconds. */
  zoom: [number, number] | null;
}

const number = (text: string | null): number => (text && Number.isFinite(Number(text)) ? Number(text) : 0);
const finite = (text: string | undefined): number | null => (text !== undefined && Number.isFinite(Number(text)) ? Number(text) : null);

/** The settings that the query of an address carries; what cannot be read is the default. */
export function settingsOf(search: string): Settings {
  const query = new URLSearchParams(search);
  const zoomed = /^(-?[\d.]+(?:e[+-]?\d+)?)-(-?[\d.]+(?:e[+-]?\d+)?)$/.exec(query.get("zoom") ?? "");
  const [from, to] = [finite(zoomed?.[1]), finite(zoomed?.[2])];
  return {
    x: (["step", "time", "relative"] as const).find((x) => x === query.get("x")) ?? "step",
    smooth: Math.min(0.999, Math.max(0, number(query.get("smooth")))),
    log: query.get("log") === "1" && query.get("delta") !== "1",
    clip: query.get("clip") === "1",
    delta: query.get("delta") === "1",
    find: query.get("m") ?? "",
    zoom: from !== null && to !== null ? [from, to] : null,
  };
}

/** The query with these settings in it; defaults and what belongs to others stay as they are. */
export function searchOf(settings: Settings, search: string): string {
  const query = new URLSearchParams(search);
  const put = (name: string, value: string): void => (value ? query.set(name, value) : query.delete(name));
  put("x", settings.x === "step" ? "" : settings.x);
  put("smooth", settings.smooth ? String(settings.smooth) : "");
  put("log", settings.log ? "1" : "");
  put("clip", settings.clip ? "1" : "");
  put("delta", settings.delta ? "1" : "");
  put("m", settings.find);
  put("zoom", settings.zoom ? zoomText(settings.zoom) : "");
  const text = query.toString();
  return text ? `?${text}` : "";
}

/** Rounded to a thousandth of its width, so that seconds since 1970 stay apart. */
function zoomText([from, to]: [number, number]): string {
  const unit = 10 ** Math.floor(Math.log10((to - from) / 1000 || 1));
  return [from, to].map((at) => Number((Math.round(at / unit) * unit).toPrecision(14))).join("-");
}

/** Another x axis has other units, so a zoom does not outlive it. A difference may be 0 or less, which has no logarithm. */
export const changed = (settings: Settings, changes: Partial<Settings>): Settings => ({
  ...settings,
  ...(changes.log ? { delta: false } : {}),
  ...(changes.delta ? { log: false } : {}),
  ...changes,
  ...(changes.x !== undefined && changes.x !== settings.x ? { zoom: null } : {}),
});
