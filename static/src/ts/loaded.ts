/** What is loaded only where it is needed, before <x-log> and <x-chart> are (entries/job.ts): bar: what the log's own tab has
 * around its lines; delta: what only charts of compared jobs need. */
export const loaded: { bar?: typeof import("./log/bar"); delta?: typeof import("./chart/delta") } = {};
