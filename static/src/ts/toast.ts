// A short message that disappears by itself; screen readers get it through the polite live region.
import { icon } from "./icon";

export type Kind = "info" | "success" | "error";
const ICONS: Record<Kind, string> = { info: "info", success: "circle-check", error: "octagon-alert" };

export function toast(text: string, kind: Kind = "info"): void {
  const holder = document.getElementById("toasts");
  if (!holder) return;
  const element = document.createElement("p");
  element.className = `toast ${kind}`;
  const words = document.createElement("span");
  words.textContent = text;
  element.append(icon(ICONS[kind]), words);
  holder.append(element);
  setTimeout(() => element.remove(), kind === "error" ? 12_000 : 6_000);
}
