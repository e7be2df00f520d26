// How all charts of a page are drawn; the address carries it, so that a view can be shared.

export interface Settings {
  x: "step" | "time" | "relative";
  smooth: number;
  log: boolean;
  find: string;
  zoom: [number, number] | null;
}

const query = new URLSearchParams(location.search);
const number = (text: string | null): number => (text && Number.isFinite(Number(text)) ? Number(text) : 0);
const zoomed = /^(-?[\d.]+)-(-?[\d.]+)$/.exec(query.get("zoom") ?? "");

export const settings: Settings = {
  x: (["step", "time", "relative"] as const).find((x) => x === query.get("x")) ?? "step",
  smooth: Math.min(0.999, Math.max(0, number(query.get("smooth")))),
  log: query.get("log") === "1",
  find: query.get("m") ?? "",
  zoom: zoomed ? [Number(zoomed[1]), Number(zoomed[2])] : null,
};

export function change(changes: Partial<Settings>): void {
  const axisChanged = changes.x !== undefined && changes.x !== settings.x;
  Object.assign(settings, changes, axisChanged ? { zoom: null } : {});
  const address = new URLSearchParams(location.search);
  const put = (name: string, value: string): void => (value ? address.set(name, value) : address.delete(name));
  put("x", settings.x === "step" ? "" : settings.x);
  put("smooth", settings.smooth ? String(settings.smooth) : "");
  put("log", settings.log ? "1" : "");
  put("m", settings.find);
  put("zoom", settings.zoom ? `${Number(settings.zoom[0].toPrecision(8))}-${Number(settings.zoom[1].toPrecision(8))}` : "");
  const text = address.toString();
  history.replaceState(null, "", location.pathname + (text ? `?${text}` : "") + location.hash);
  document.dispatchEvent(new CustomEvent("chartsettings", { detail: Object.keys(changes) }));
}
