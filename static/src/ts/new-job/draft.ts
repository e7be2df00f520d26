// The draft of a spec that this browser keeps, for each tenant one: without the values of env, which may be keys.
import { Spec } from "./spec";

export interface Draft {
  text: string;
  /** Milliseconds since 1970. */
  at: number;
}

export class DraftStore {
  private readonly key: string;

  constructor(tenant: string) {
    this.key = `luthier.draft.${tenant}`;
  }

  read(): Draft | null {
    try {
      return JSON.parse(localStorage.getItem(this.key) ?? "null") as Draft | null;
    } catch {
      return null; // written by an older version
    }
  }

  /** Keep it; of a text that cannot be read the last one that could stays. */
  write(written: string): void {
    const text = withoutValues(written);
    if (text === null) return;
    localStorage.setItem(this.key, JSON.stringify({ text, at: Date.now() } satisfies Draft));
  }

  remove(): void {
    localStorage.removeItem(this.key);
  }
}

/** The spec with names in env and without their values, which the check then asks for; null if it cannot be read. */
export function withoutValues(text: string): string | null {
  const spec = new Spec(text);
  if (!spec.readable) return null;
  const env = spec.get(["env"]);
  if (env === undefined || env === null) return text;
  const isMap = typeof env === "object" && !Array.isArray(env);
  const names = isMap ? Object.keys(env) : [];
  if (isMap && !names.length) return text;
  spec.set(["env"], names.length ? Object.fromEntries(names.map((name) => [name, null])) : undefined);
  return spec.toString();
}

/** Show that the page has a draft of this time, and offer to start over. */
export function offerStartOver(page: HTMLElement, draft: Draft, startOver: () => void): void {
  const note = page.querySelector<HTMLElement>("[data-draft]");
  const time = note?.querySelector("time");
  if (!note || !time) return;
  const at = new Date(draft.at);
  const isToday = at.toDateString() === new Date().toDateString();
  time.dateTime = at.toISOString();
  time.textContent = at.toLocaleString("en-GB", isToday ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" });
  note.hidden = false;
  note.querySelector("[data-start-over]")?.addEventListener("click", () => {
    startOver();
    note.hidden = true;
    page.querySelector<HTMLElement>("#f-name")?.focus();
  });
}
