// Keys inside the quota matrix: arrows move between tenants, + and - change by one, Esc undoes the cell.
// What a change would do comes from the server: the draft is posted for review, and the page's parts are morphed.
import { icon } from "./icon";
import { KEYS, actionIn } from "./keys";
import { fetchPage, morphParts } from "./parts";
import { leaveOutUnchanged } from "./quota-draft";
import { texts } from "./texts";

const REVIEW_MS = 250; // after the last change

function mark(field: HTMLInputElement): void {
  field.closest("td")?.classList.toggle("changed", field.value !== field.dataset.before);
}

function set(field: HTMLInputElement, value: number): void {
  field.value = String(Math.max(0, value));
  mark(field);
  field.dispatchEvent(new Event("change", { bubbles: true }));
}

function neighbor(field: HTMLInputElement, step: number): HTMLInputElement | null {
  const cell = field.closest("td");
  const row = cell?.parentElement as HTMLTableRowElement | null;
  const beside = (from: Element | null | undefined): Element | null => (step > 0 ? from?.nextElementSibling : from?.previousElementSibling) ?? null;
  let other = beside(row) as HTMLTableRowElement | null;
  while (other?.hidden) other = beside(other) as HTMLTableRowElement | null; // filtered out
  if (!cell || !other) return null;
  return other.cells[cell.cellIndex]?.querySelector<HTMLInputElement>("input[data-before]") ?? null;
}

function press(event: KeyboardEvent, field: HTMLInputElement): boolean {
  const action = actionIn(KEYS.quota, event);
  if (!action) return false;
  const now = Number(field.value) || 0;
  const move = (step: number): void => {
    const next = neighbor(field, step);
    next?.focus();
    next?.select();
  };
  const actions: Record<keyof typeof KEYS.quota, () => void> = {
    above: () => move(-1),
    below: () => move(1),
    more: () => set(field, now + 1),
    less: () => set(field, now - 1),
    check: () => void field.dispatchEvent(new Event("change", { bubbles: true })),
    undo: () => set(field, Number(field.dataset.before)),
  };
  actions[action]();
  return true;
}

let running: AbortController | undefined;

/** Show what the draft would do; the fields themselves are no parts, so nothing that a person types is replaced. */
async function review(table: HTMLElement): Promise<void> {
  const form = table.closest("form");
  if (!form) return;
  running?.abort();
  const { signal } = (running = new AbortController());
  const body = new FormData(form);
  body.set("action", "review");
  const page = await fetchPage("/admin-console/quotas", { body, signal });
  if (signal.aborted) return;
  if (!page) return withoutReview(form);
  morphParts(form, page);
  for (const field of table.querySelectorAll<HTMLInputElement>("input[data-before], .term input[id]")) {
    const about = document.getElementById(field.getAttribute("aria-describedby") ?? "");
    if (about?.querySelector(".bad")) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
  }
}

/** In place of the review of an older draft, until the next one comes. */
function withoutReview(form: HTMLFormElement): void {
  const box = document.createElement("div");
  box.className = "call red";
  box.setAttribute("role", "alert");
  const text = document.createElement("span");
  text.textContent = texts.quotas.notReviewed;
  box.append(icon("octagon-alert"), text);
  const section = document.createElement("section");
  section.append(box);
  form.querySelector("#review")?.replaceChildren(section);
}

export function startMatrix(): void {
  const table = document.getElementById("matrix");
  if (!table) return;
  table.closest("form")?.addEventListener("formdata", ({ formData }) => leaveOutUnchanged(formData));
  table.addEventListener("keydown", (event) => {
    const field = event.target;
    if (!(field instanceof HTMLInputElement) || field.dataset.before === undefined) return;
    if (press(event, field)) event.preventDefault();
  });
  table.addEventListener("input", (event) => {
    if (event.target instanceof HTMLInputElement) mark(event.target);
  });
  let timer = 0;
  table.addEventListener("change", () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => void review(table), REVIEW_MS);
  });
}
