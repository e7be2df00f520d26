// How the page shows that it is live, or no longer is: the pill, the banner, and marks on regions that are out of date.
import { timeOfDay } from "./format";
import { live, type Status } from "./live";
import { texts } from "./texts";

const words = texts.connection;
const signInAgain = async (): Promise<void> => (await import("./session")).signInAgain();
const BUTTONS: Partial<Record<Status, [string, () => void]>> = {
  stale: [words.retryNow, () => live.retryNow()],
  ended: [words.signIn, () => void signInAgain()],
  refused: [words.reload, () => location.reload()],
};

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
    if (text && text.textContent !== words.status[status]) text.textContent = words.status[status];
  };
}

/** Mark every live region as out of date while nothing is received. */
function markRegions(): void {
  const stale = live.status in BUTTONS;
  for (const region of document.querySelectorAll<HTMLElement>("[data-live-region]")) {
    if (stale === "stale" in region.dataset) continue;
    if (stale) {
      region.dataset.stale = "";
      const note = document.createElement("span");
      note.className = "as-of";
      note.textContent = words.asOf(timeOfDay(live.receivedAt));
      (region.querySelector(":scope > header, :scope > .card-head") ?? region).append(note);
    } else {
      delete region.dataset.stale;
      for (const note of region.querySelectorAll(".as-of")) note.remove();
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
  const [text, button] = [banner.querySelector("span"), banner.querySelector("button")];
  if (text && text.textContent !== bannerText()) text.textContent = bannerText();
  if (button && button.textContent !== found[0]) button.textContent = found[0];
}

function bannerText(): string {
  if (live.status === "ended") return words.ended;
  if (live.status === "refused") return words.refused;
  const seconds = live.retryAt ? Math.max(0, Math.ceil((live.retryAt - Date.now()) / 1000)) : null;
  return words.paused(timeOfDay(live.receivedAt), seconds);
}

function newBanner(): HTMLElement {
  const banner = document.createElement("div");
  banner.className = "banner lost";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "button small";
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
    if (status) status.textContent = words.resumed;
  });
}
