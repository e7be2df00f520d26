// The keys of the log viewer. Pure.
import { KEYS, actionIn, type KeyPress } from "../keys";

export type KeyActions = Record<keyof typeof KEYS.log, () => void>;

/** What a key does, undefined if nothing. In the search field Ctrl+F is left to the browser's own search. */
export function actionOf(press: KeyPress, isFinding: boolean, act: KeyActions): (() => void) | undefined {
  const action = actionIn(KEYS.log, press);
  return action && !(isFinding && action === "find" && press.key !== "/") ? act[action] : undefined;
}
