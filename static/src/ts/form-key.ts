// After Back, a form that was sent from this page has the key of then again: the entry in the browser's history remembers it.
import { keyField } from "./api";

interface Sent {
  action: string;
  key: string;
}

/** The page is left for where this form, sent with this key, leads to. */
export function rememberKey(form: HTMLFormElement, key: string): void {
  const sent: Sent = { action: actionOf(form), key };
  history.replaceState({ ...(history.state as object | null), sent }, "");
}

/** A page that is loaded in any other way than by Back is a new one. */
export function startFormKeys(): void {
  const { sent, ...others } = (history.state ?? {}) as { sent?: Sent };
  if (!sent) return;
  const [navigation] = performance.getEntriesByType("navigation") as PerformanceNavigationTiming[];
  if (navigation?.type !== "back_forward") return history.replaceState(others, "");
  for (const form of document.forms) {
    const input = keyField(form);
    if (input && actionOf(form) === sent.action) input.value = sent.key;
  }
}

const actionOf = (form: HTMLFormElement): string => form.getAttribute("action") ?? "";
