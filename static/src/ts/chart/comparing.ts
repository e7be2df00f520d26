// What only charts of compared jobs need; loaded with them (entries/job.ts).
export const comparing: { delta?: typeof import("./delta") } = {};
