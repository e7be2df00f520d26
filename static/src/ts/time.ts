// One timer keeps every <time data-ago> ("6 min ago") and <time data-since> ("6 min") on the page fresh.
// A region that is out of date (data-stale) keeps its times, and nothing is counted on while nothing is received: what
// counts may have ended.
import { duration, past } from "./format";
import { live, type Status } from "./live";

const NOT_CURRENT = new Set<Status>(["stale", "ended", "refused"]);

function tick(): void {
  if (document.hidden) return;
  for (const element of document.querySelectorAll<HTMLTimeElement>("time[data-ago],time[data-since]")) {
    const counts = "since" in element.dataset;
    if (element.closest("[data-stale]") || (counts && NOT_CURRENT.has(live.status))) continue;
    const seconds = (Date.now() - Date.parse(element.dateTime)) / 1000;
    const text = counts ? duration(seconds) : past(seconds);
    if (element.textContent !== text) element.textContent = text;
  }
}

export function startClock(): void {
  setInterval(tick, 1000);
  document.addEventListener("visibilitychange", tick);
}
