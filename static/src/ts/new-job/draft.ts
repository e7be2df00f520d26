// The draft of a spec, for each tenant one. The tab keeps all of it until it is closed, so a reload loses nothing. The browser keeps
// it for later without values of env that were typed, which may be keys.
import { Spec } from "./spec";

export interface Draft {
  text: string;
  /** Milliseconds since 1970. */
  at: number;
}

export class DraftStore {
  private readonly key: string;

  constructor(
    tenant: string,
    private readonly given: string,
  ) {
    this.key = `luthier.draft.${tenant}`;
  }

  /** That of this tab, if it has one. */
  read(): Draft | null {
    return this.readFrom(sessionStorage) ?? this.readFrom(localStorage);
  }

  /** What cannot be read as YAML the tab alone keeps: its values cannot be found. */
  write(written: string): void {
    const at = Date.now();
    this.writeTo(sessionStorage, { text: written, at });
    const text = withoutValues(written, this.given);
    if (text !== null) this.writeTo(localStorage, { text, at });
  }

  remove(): void {
    for (const storage of [sessionStorage, localStorage]) storage.removeItem(this.key);
  }

  private readFrom(storage: Storage): Draft | null {
    try {
      return JSON.parse(storage.getItem(this.key) ?? "null") as Draft | null;
    } catch {
      return null; // written by an older version
    }
  }

  private writeTo(storage: Storage, draft: Draft): void {
    storage.setItem(this.key, JSON.stringify(draft));
  }
}

/** The spec with names in env and without their values, which the check then asks for; null if it cannot be read.
    given: what the page came with, whose values stay. */
export function withoutValues(text: string, given = ""): string | null {
  const spec = new Spec(text);
  if (!spec.readable || spec.hasAliases) return null; // a value of env may be written in another place
  const env = spec.get(["env"]);
  if (env === undefined || env === null) return text;
  const known = entries(new Spec(given).get(["env"]));
  const kept = [...entries(env)].map(([name, value]) => [name, known.get(name) === value ? value : null] as const);
  if (isMap(env) && kept.every(([, value]) => value !== null)) return text;
  spec.set(["env"], kept.length ? Object.fromEntries(kept) : undefined);
  return spec.toString();
}

const isMap = (env: unknown): env is object => typeof env === "object" && env !== null && !Array.isArray(env);
const entries = (env: unknown): Map<string, unknown> => new Map(isMap(env) ? Object.entries(env) : []);

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
