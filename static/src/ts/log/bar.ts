// What the log has on its own tab, around its lines: toolbar, ticks, status line. The last
// lines on the overview do without, and so do their scripts: job.ts loads this where it is needed.
export { statusNodes } from "./status";
export { Ticks } from "./ticks";
export { connect, controls, linkRaw, showCounts, showFollow, showSearch, showTimes, showWhole } from "./toolbar";
