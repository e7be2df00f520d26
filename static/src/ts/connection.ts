// How the page shows that it is live, or no longer is: the pill, the banner, and the data itself looks old.
import { live, type Status } from "./live";
import { signInAgain } from "./session";

const WORDS: Record<Status, string> = {
  connecting: "Connecting",
  live: "Live",
  stale: "Reconnecting…",
  ended: "Session ended",
  refused: "Not live",
};
const BUTTONS: Partial<Record<Status, [string, () => void]>> = {
  stale: ["Retry now", () => live.retryNow()],
  ended: ["Sign in", () => void signInAgain()],
  refused: ["Reload", () => location.reload()],
};

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
    const status = live.status === "live" && live.retryAt > 0 ? "stale" : live.status;
    this.dataset.status = status;
    if (text && text.textContent !== WORDS[status]) text.textContent = WORDS[status];
  };
}

/** Mark every live region as old while nothing is heard. */
function markRegions(): void {
  const stale = live.status in BUTTONS;
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
  const old = holder.querySelector<HTMLElement>(".banner");
  const found = BUTTONS[live.status];
  if (!found) return old?.remove();
  const banner = old ?? holder.appendChild(newBanner());
  const [words, button] = [banner.querySelector("span"), banner.querySelector("button")];
  const text = bannerText();
  if (words && words.textContent !== text) words.textContent = text;
  if (button && button.textContent !== found[0]) button.textContent = found[0];
}

function bannerText(): string {
  if (live.status === "ended") return "Your session has ended. Sign in to go on; this page keeps what it shows.";
  if (live.status === "refused") return "The server refuses live updates to this page. Reload it to see what is new.";
  const wait = Math.max(0, Math.ceil((live.retryAt - Date.now()) / 1000));
  return `Live updates paused since ${clock(live.heardAt)} UTC. ${live.retryAt ? `Next try in ${wait} s.` : "Trying again."}`;
}

function newBanner(): HTMLElement {
  const banner = document.createElement("div");
  banner.className = "banner lost";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "btn s";
  button.addEventListener("click", () => BUTTONS[live.status]?.[1]());
  banner.append(document.createElement("span"), button);
  return banner;
}

export function startConnection(): void {
  if (!customElements.get("x-connection")) customElements.define("x-connection", Connection);
  let before: Status = live.status;
  live.addEventListener("change", () => {
    markRegions();
    showBanner();
    if (live.status === "ended" && before !== "ended") void signInAgain();
    before = live.status;
  });
  live.addEventListener("resumed", () => {
    const status = document.getElementById("live-status");
    if (status) status.textContent = "Live updates resumed";
  });
}
