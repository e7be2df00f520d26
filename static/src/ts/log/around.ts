/** What a page has around its log: bar.ts, loaded before <x-log> is; undefined around the last lines on the overview. */
export const around: { bar?: typeof import("./bar") } = {};
