// The key by which the server acts on a form once (portal/pages/form_once.py). A repeat is sent with the key of the first
// time: after a lost response, even if the page, and the key in it, was refreshed in between; and after Back, for which the
// entry in the browser's history remembers the key.
const FIELD = "form_key";
const unanswered = new WeakMap<HTMLFormElement, string>();

interface Sent {
  action: string;
  key: string;
}

/** Send with the form's key, which is kept where send rejects: there was no response. */
export async function withKey<Answer>(form: HTMLFormElement, send: (key: string) => Promise<Answer>): Promise<Answer> {
  const key = unanswered.get(form) ?? field(form)?.value ?? crypto.randomUUID();
  unanswered.set(form, key);
  const answer = await send(key);
  unanswered.delete(form);
  return answer;
}

/** The next press of a form whose page stays is another action. */
export function renewKey(form: HTMLFormElement): void {
  const input = field(form);
  if (input) input.value = crypto.randomUUID();
}

/** The page is left for where this form, sent with this key, leads to. */
export function rememberKey(form: HTMLFormElement, key: string): void {
  const sent: Sent = { action: actionOf(form), key };
  history.replaceState({ ...(history.state as object | null), sent }, "");
}

/** Give the form that was sent from this entry of the history its key again. A page that is loaded in any other way is a new one. */
export function startFormKeys(): void {
  const { sent, ...others } = (history.state ?? {}) as { sent?: Sent };
  if (!sent) return;
  const [navigation] = performance.getEntriesByType("navigation") as PerformanceNavigationTiming[];
  if (navigation?.type !== "back_forward") return history.replaceState(others, "");
  for (const form of document.forms) {
    const input = field(form);
    if (input && actionOf(form) === sent.action) input.value = sent.key;
  }
}

const field = (form: HTMLFormElement): HTMLInputElement | null => form.querySelector(`[name=${FIELD}]`);
const actionOf = (form: HTMLFormElement): string => form.getAttribute("action") ?? "";
