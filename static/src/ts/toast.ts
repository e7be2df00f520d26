// A short message that goes by itself; said to screen readers through the polite live region.

export function toast(text: string, kind: "info" | "error" = "info"): void {
  const holder = document.getElementById("toasts");
  if (!holder) return;
  const element = document.createElement("p");
  element.className = `toast ${kind}`;
  element.textContent = text;
  holder.append(element);
  setTimeout(() => element.remove(), kind === "error" ? 12_000 : 6_000);
}
