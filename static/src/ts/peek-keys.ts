// The keys of the drawer beside a list of jobs, as in keys.ts; of their own, so that other pages do not load them.
export const PEEK_KEYS = { open: [" "], next: ["j", "ArrowDown"], previous: ["k", "ArrowUp"], close: ["Escape"] } as const;
