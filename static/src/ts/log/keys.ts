// The keys of the log viewer. Pure.

export interface KeyActions {
  follow(): void;
  end(): void;
  start(): void;
  pages(by: number): void;
  lines(by: number): void;
  find(): void;
  step(by: number): void;
  wrap(): void;
  times(): void;
  error(): void;
  full(): void;
  copy(): void;
}

type Key = Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "altKey">;

/** What a key does, undefined if nothing. In the search field Ctrl+F is left to the browser's own search. */
export function actionOf({ key, ctrlKey, metaKey, altKey }: Key, isFinding: boolean, act: KeyActions): (() => void) | undefined {
  if ((ctrlKey || metaKey) && key === "f") return isFinding ? undefined : act.find;
  if (ctrlKey || metaKey || altKey) return undefined;
  const keys: Record<string, () => void> = {
    f: act.follow,
    G: act.end,
    End: act.end,
    g: act.start,
    Home: act.start,
    PageUp: () => act.pages(-1),
    PageDown: () => act.pages(1),
    ArrowUp: () => act.lines(-1),
    ArrowDown: () => act.lines(1),
    "/": act.find,
    n: () => act.step(1),
    N: () => act.step(-1),
    w: act.wrap,
    m: act.times,
    e: act.error,
    z: act.full,
    y: act.copy,
  };
  return Object.hasOwn(keys, key) ? keys[key] : undefined;
}
