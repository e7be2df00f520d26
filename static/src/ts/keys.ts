// The keys that work in one part of a page, by what they do there: the part handles what is listed here, and the sheet
// (shortcuts.ts) shows it. As KeyboardEvent.key has them; "Control+f" is a key with a modifier.
export const KEYS = {
  log: {
    follow: ["f"],
    start: ["g", "Home"],
    end: ["G", "End"],
    up: ["ArrowUp"],
    down: ["ArrowDown"],
    pageUp: ["PageUp"],
    pageDown: ["PageDown"],
    find: ["/", "Control+f"],
    next: ["n"],
    previous: ["N"],
    error: ["e"],
    wrap: ["w"],
    times: ["m"],
    full: ["z"],
    copy: ["y"],
  },
  search: { next: ["Enter"], previous: ["Shift+Enter"], leave: ["Escape"] },
  chart: {
    back: ["ArrowLeft"],
    forward: ["ArrowRight"],
    back10: ["Shift+ArrowLeft"],
    forward10: ["Shift+ArrowRight"],
    zoomIn: ["+"],
    zoomOut: ["-"],
    reset: ["0"],
    table: ["a"],
    enlarge: ["v"],
    smaller: ["Escape"],
  },
  quota: { above: ["ArrowUp"], below: ["ArrowDown"], more: ["+"], less: ["-"], check: ["Enter"], undo: ["Escape"] },
} as const;

type Keys = Readonly<Record<string, readonly string[]>>;
export type KeyPress = Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "altKey" | "shiftKey">;

/** What a key does in this part, undefined if nothing. Shift counts where it does not make another character. */
export function actionIn<Part extends Keys>(part: Part, { key, ctrlKey, metaKey, altKey, shiftKey }: KeyPress): keyof Part | undefined {
  if (altKey) return undefined;
  const modifier = ctrlKey || metaKey ? "Control+" : shiftKey && key.length > 1 ? "Shift+" : "";
  return Object.keys(part).find((action) => part[action]?.includes(modifier + key));
}
