// The job page: live header and cards, actions without a reload; log viewer and charts where the page has them.
import { loadElements } from "../ts/elements";
import { loaded } from "../ts/loaded";
import "../ts/job-page";

loadElements({
  "x-log": async () => {
    if (document.querySelector("x-log[data-full]")) loaded.bar = await import("../ts/log/bar");
    return import("../ts/log/x-log");
  },
  "x-chart": async () => {
    if (document.querySelector("x-chart[data-jobs]")) loaded.delta = await import("../ts/chart/delta");
    return import("../ts/chart/x-chart");
  },
  "x-chart-tools": () => import("../ts/chart/x-chart-tools"),
});
