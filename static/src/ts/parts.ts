// The one way by which a part of a page is renewed: fetch what the server renders, and morph parts of this page into it,
// so that templates are the only source of markup.
import type { Idiomorph as Morphing } from "idiomorph";
import { csrfToken } from "./api";

const REFUSED = 422; // a form with errors, rendered with what is wrong

let Idiomorph: typeof Morphing; // loaded with the first page that is fetched; nothing is morphed before

export async function loadMorphing(): Promise<void> {
  ({ Idiomorph } = await import("idiomorph"));
}

/** What the server renders at an address of this site. null: it refuses, it cannot be reached, the fetch was aborted, or it
 * redirects, as to the login page once a session has ended, which must not become a part of another page. */
export async function fetchPage(address: string, { body, signal }: { body?: FormData; signal?: AbortSignal } = {}): Promise<DocumentFragment | null> {
  const post = body ? { method: "POST", body, headers: { "X-CSRFToken": csrfToken() } } : {};
  try {
    const answer = await fetch(address, { credentials: "same-origin", ...post, ...(signal ? { signal } : {}) });
    if (answer.redirected || !(answer.ok || answer.status === REFUSED)) return null;
    const template = document.createElement("template"); // it takes pages as well as rows of a table
    template.innerHTML = await answer.text();
    await loadMorphing();
    return template.content;
  } catch {
    return null;
  }
}

/** Morph an element into a fetched one. Kept as they are: charts and logs, regions that are marked as out of date, what a
 * person typed or chose, open dialogs and menus. */
export function morph(element: Element, fetched: Element): void {
  Idiomorph.morph(element, fetched, {
    morphStyle: "outerHTML",
    callbacks: {
      beforeNodeMorphed: (node, fresh) => !(node instanceof HTMLElement && isKept(node) && keep(node, fresh)),
      // focus.ts makes what has the focus focusable
      beforeAttributeUpdated: (name, node) => !(name === "open" && node instanceof HTMLDetailsElement) && !(name === "tabindex" && node === document.activeElement),
    },
  });
}

/** Morph the content of an element into all that was fetched. */
export function morphContent(element: Element, fetched: DocumentFragment): void {
  const holder = element.cloneNode(false) as Element;
  holder.append(fetched);
  morph(element, holder);
}

/** Morph every part (data-part) within `root` into the fetched one of the same id. With `additions`, a part that the page
 * does not have yet is inserted where the fetched page has it; without, it is left out. */
export function morphParts(root: Element, fetched: DocumentFragment, { additions = false } = {}): void {
  for (const part of root.querySelectorAll<HTMLElement>("[data-part]")) {
    const fresh = fetched.getElementById(part.id);
    if (!fresh) continue;
    if (part.dataset.part === "keep" && part.querySelector("x-chart")) addCharts(part, fresh);
    else morph(part, fresh);
  }
  if (!additions) return;
  for (const part of fetched.querySelectorAll<HTMLElement>("[data-part]")) if (!document.getElementById(part.id)) insert(root, part, fetched);
}

/** What was typed stays; what the server says about the field comes in. */
function keep(element: HTMLElement, fresh: Node): true {
  for (const name of ["aria-invalid", "aria-describedby", "autofocus"]) {
    const said = element instanceof HTMLInputElement && fresh instanceof HTMLInputElement ? fresh.getAttribute(name) : element.getAttribute(name);
    if (said === null) element.removeAttribute(name);
    else element.setAttribute(name, said);
  }
  return true;
}

function isKept(element: HTMLElement): boolean {
  if (element.localName.startsWith("x-chart") || element.localName === "x-log" || "stale" in element.dataset) return true;
  if (element instanceof HTMLDialogElement) return element.open;
  if (element === document.activeElement && element.matches("input,select,textarea")) return true;
  if (element instanceof HTMLTextAreaElement) return element.value !== element.defaultValue;
  return element instanceof HTMLInputElement && (element.checked !== element.defaultChecked || element.value !== element.defaultValue);
}

/** Charts keep what they have drawn; only those of new names come in. */
function addCharts(part: HTMLElement, fresh: HTMLElement): void {
  const known = new Set([...part.querySelectorAll<HTMLElement>("x-chart")].map((chart) => chart.dataset.name));
  for (const chart of fresh.querySelectorAll<HTMLElement>("x-chart")) {
    const card = chart.closest(".card");
    const grids = part.querySelectorAll(".chart-grid");
    if (!known.has(chart.dataset.name) && card) (grids[grids.length - 1] ?? part).append(document.importNode(card, true));
  }
}

/** After the element that precedes it in the fetched page, else first in what contains it. */
function insert(root: Element, part: HTMLElement, fetched: DocumentFragment): void {
  const before = part.previousElementSibling;
  const neighbor = before?.id ? document.getElementById(before.id) : null;
  if (neighbor) return neighbor.after(document.importNode(part, true));
  if (!part.parentElement?.classList.length) return;
  const like = `.${[...part.parentElement.classList].join(".")}`;
  const index = [...fetched.querySelectorAll(like)].indexOf(part.parentElement);
  root.querySelectorAll(like)[index]?.prepend(document.importNode(part, true));
}
