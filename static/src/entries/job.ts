// The job page: live header and cards, actions without a reload; log viewer and charts where the page has them.
import { loadElements } from "../ts/elements";
import "../ts/job-page";

loadElements({
  "x-log": () => import("../ts/log/x-log"),
  "x-chart": () => import("../ts/chart/x-chart"),
  "x-chart-tools": () => import("../ts/chart/x-chart-tools"),
});
