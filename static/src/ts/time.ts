// One timer keeps every <time data-ago> ("6 min ago") and <time data-since> ("6 min") on the page fresh.
// A region that is out of date (data-stale) keeps its times.
import { duration, past } from "./format";

function tick(): void {
  if (document.hidden) return;
  for (const element of document.querySelectorAll<HTMLTimeElement>("time[data-ago],time[data-since]")) {
    if (element.closest("[data-stale]")) continue;
    const seconds = (Date.now() - Date.parse(element.dateTime)) / 1000;
    const text = "ago" in element.dataset ? past(seconds) : duration(seconds);
    if (element.textContent !== text) element.textContent = text;
  }
}

export function startClock(): void {
  setInterval(tick, 1000);
  document.addEventListener("visibilitychange", tick);
}
