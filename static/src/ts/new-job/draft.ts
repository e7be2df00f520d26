// The draft of a spec that this browser keeps, for each tenant one.

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

  write(text: string): void {
    localStorage.setItem(this.key, JSON.stringify({ text, at: Date.now() } satisfies Draft));
  }

  remove(): void {
    localStorage.removeItem(this.key);
  }
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
