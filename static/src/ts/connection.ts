// How the page shows that it is live, or no longer is: the pill, the banner, and the data itself looks old.
import { live } from "./live";

const clock = (at: number): string => new Date(at).toISOString().slice(11, 19);

class Connection extends HTMLElement {
  connectedCallback(): void {
    live.addEventListener("change", this.show);
    live.start();
    this.show();
  }

  disconnectedCallback(): void {
    live.removeEventListener("change", this.show);
  }

  private readonly show = (): void => {
    const text = this.querySelector("[data-text]");
    const words = { connecting: "Connecting", live: "Live", stale: "Reconnecting…", ended: "Session ended" }[live.status];
    const lost = live.status === "live" && live.retryAt > 0;
    this.dataset.status = lost ? "stale" : live.status;
    if (text && text.textContent !== (lost ? "Reconnecting…" : words)) text.textContent = lost ? "Reconnecting…" : words;
  };
}

/** Mark every live region as old while nothing is heard. */
function markRegions(): void {
  const stale = live.status === "stale" || live.status === "ended";
  for (const region of document.querySelectorAll<HTMLElement>("[data-live]")) {
    if (stale === "stale" in region.dataset) continue;
    if (stale) {
      region.dataset.stale = "";
      const note = document.createElement("span");
      note.className = "asof";
      note.textContent = `as of ${clock(live.heardAt)}`;
      (region.querySelector(":scope > header, :scope > .hd") ?? region).append(note);
    } else {
      delete region.dataset.stale;
      for (const note of region.querySelectorAll(".asof")) note.remove();
    }
  }
}

function showBanner(): void {
  const holder = document.getElementById("banner");
  if (!holder) return;
  const old = holder.querySelector(".banner");
  if (live.status !== "stale" && live.status !== "ended") return old?.remove();
  const banner = old ?? holder.appendChild(newBanner());
  const wait = Math.max(0, Math.ceil((live.retryAt - Date.now()) / 1000));
  const text =
    live.status === "ended"
      ? "Your session has ended. Log in again to go on; this page keeps what it shows."
      : `Live updates paused since ${clock(live.heardAt)} UTC. ${live.retryAt ? `Next try in ${wait} s.` : "Trying again."}`;
  const words = banner.querySelector("span");
  if (words && words.textContent !== text) words.textContent = text;
}

function newBanner(): HTMLElement {
  const banner = document.createElement("div");
  banner.className = "banner lost";
  const button = document.createElement(live.status === "ended" ? "a" : "button");
  button.className = "btn s";
  if (button instanceof HTMLAnchorElement) {
    button.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
    button.textContent = "Log in";
  } else {
    button.textContent = "Retry now";
    button.addEventListener("click", () => live.retryNow());
  }
  banner.append(document.createElement("span"), button);
  return banner;
}

export function startConnection(): void {
  if (!customElements.get("x-connection")) customElements.define("x-connection", Connection);
  live.addEventListener("change", () => {
    markRegions();
    showBanner();
  });
  live.addEventListener("resumed", () => {
    const status = document.getElementById("live-status");
    if (status) status.textContent = "Live updates resumed";
  });
}
