// The palette, loaded when it is first opened (Ctrl+K): every page that the sidebar leads to, what can be done on this
// page, and the jobs of the tenant, by name or id. Links, buttons and the rows of jobs are the page's own: nothing is
// listed that the server did not offer to this person.
import { icon } from "./icon";
import { matching } from "./palette-match";
import { fetchPage } from "./parts";

/** Texts of the palette alone. */
const words = {
  label: "Search pages, jobs and actions",
  pages: "Pages",
  actions: "Actions",
  jobs: "Jobs",
  nothing: "No matches",
  searching: "Searching for jobs…",
  unanswered: "Jobs could not be searched.",
  hint: "↑ ↓ to choose, Enter to open, Esc to close",
  found: (count: number) => (count === 1 ? "1 match" : `${count} matches`),
};
const PAUSE_MS = 200; // after the last key; each search is a request

/** What of the page itself can be chosen: where its links lead, and what can be pressed. */
const PAGES = ".side li a, .top .tabs a";
const ACTIONS = ".head-row :is(a.button, button:not([data-copy])), a[href$='/jobs/new'], .side .foot button";
const CHOSEN = "[aria-selected=true]";
const FIELD = {
  role: "combobox",
  "aria-label": words.label,
  "aria-autocomplete": "list",
  "aria-controls": "palette-list",
  autocomplete: "off",
  spellcheck: "false",
  placeholder: words.label,
};

interface Choice {
  text: string;
  /** What the palette shows of it, beside the text. */
  also?: Node | undefined;
  choose: () => void;
}

let dialog: HTMLDialogElement | undefined;
let field: HTMLInputElement;
let list: HTMLElement;
let status: HTMLElement;
let search: AbortController | undefined;
let timer: ReturnType<typeof setTimeout> | undefined;
let chosen = new Map<HTMLElement, Choice>(); // what each option of the list does, in their order
let jobs: Choice[] = [];
let jobsOf = ""; // what they were searched by
let note = "";
let hasMoved = false; // a person chose another one than the first

export function togglePalette(): void {
  dialog ??= made();
  if (dialog.open) return dialog.close();
  field.value = "";
  jobs = [];
  dialog.showModal();
  sought();
}

/** Its styles, whose address the sidebar's button has. Without them it works, too. */
function addStyles(): void {
  const address = document.querySelector<HTMLElement>(".side [data-palette]")?.dataset.palette;
  if (!address) return;
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = address;
  document.head.append(link);
}

function made(): HTMLDialogElement {
  const box = document.createElement("dialog");
  box.className = "ask palette";
  box.setAttribute("aria-label", words.label);
  field = document.createElement("input");
  field.className = "input";
  for (const [name, value] of Object.entries(FIELD)) field.setAttribute(name, value);
  list = document.createElement("div");
  list.id = "palette-list";
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", words.label);
  status = text("p", "");
  status.className = "hint";
  status.setAttribute("role", "status");
  const hint = text("p", words.hint);
  hint.className = "hint";
  box.append(field, list, status, hint);
  field.addEventListener("input", sought);
  field.addEventListener("keydown", pressed);
  list.addEventListener("click", (event) => take((event.target as Element).closest<HTMLElement>("[role=option]")));
  box.addEventListener("click", (event) => event.target === box && box.close());
  box.addEventListener("close", stop);
  addStyles();
  document.body.append(box);
  return box;
}

function pressed(event: KeyboardEvent): void {
  if (event.isComposing) return; // the key is for what writes with several keys
  const options = [...chosen.keys()];
  const at = options.findIndex((option) => option.matches(CHOSEN));
  if (event.key === "Enter") take(options[at]);
  else if (event.key === "ArrowDown") mark(options[(at + 1) % options.length]);
  else if (event.key === "ArrowUp") mark(options[(at + options.length - 1) % options.length]);
  else return;
  hasMoved = event.key !== "Enter";
  event.preventDefault();
}

function mark(option: HTMLElement | undefined): void {
  for (const other of chosen.keys()) other.setAttribute("aria-selected", String(other === option));
  field.setAttribute("aria-activedescendant", option?.id ?? "");
  option?.scrollIntoView({ block: "nearest" });
}

function take(option: HTMLElement | null | undefined): void {
  const choice = option && chosen.get(option);
  if (!choice) return;
  dialog?.close();
  choice.choose();
}

function stop(): void {
  clearTimeout(timer);
  search?.abort();
}

/** What was typed has changed: show what this page knows at once, and ask for jobs once the typing pauses. */
function sought(): void {
  stop();
  hasMoved = false;
  const tenant = searchedTenant();
  const wanted = field.value.trim();
  if (!wanted) jobs = [];
  note = tenant && wanted ? words.searching : "";
  draw();
  if (tenant && wanted) timer = setTimeout(() => void searchJobs(tenant, wanted), PAUSE_MS);
}

/** Where jobs are searched: in the person's own tenant, or in the one whose page this is. An admin's read of another is
 * recorded, so it must be meant. */
function searchedTenant(): string | undefined {
  const { tenant, member } = document.querySelector<HTMLElement>(".app")?.dataset ?? {};
  return tenant && (member !== undefined || location.pathname.startsWith(`/t/${tenant}/`)) ? tenant : undefined;
}

async function searchJobs(tenant: string, wanted: string): Promise<void> {
  const { signal } = (search = new AbortController());
  const page = await fetchPage(`/t/${tenant}/jobs?find=${encodeURIComponent(wanted)}`, { signal });
  if (signal.aborted) return;
  note = page ? "" : words.unanswered;
  jobsOf = field.value;
  jobs = [...(page?.querySelectorAll<HTMLElement>("tr[data-job]") ?? [])].map((row) => {
    const link = row.querySelector<HTMLAnchorElement>("a.name");
    const badge = row.querySelector(".phone-corner > *");
    return { text: `${link?.textContent ?? ""} ${row.querySelector(".sub")?.textContent ?? ""}`, also: badge?.cloneNode(true), choose: () => location.assign(link?.href ?? "") };
  });
  draw();
}

function draw(): void {
  const before = hasMoved ? [...chosen.keys()].find((option) => option.matches(CHOSEN))?.textContent : undefined;
  chosen = new Map();
  const wanted = field.value;
  const ofJobs = wanted === jobsOf ? jobs : matching(wanted, jobs); // the server knows owners and tags, too
  const parts: [string, Choice[]][] = [[words.actions, matching(wanted, actions())], [words.pages, matching(wanted, pages())], [words.jobs, ofJobs]];
  if (wanted) parts.reverse(); // jobs first where something was typed: a name is what most people look for
  list.replaceChildren(...parts.filter(([, choices]) => choices.length).map(([title, choices]) => group(title, choices)));
  const options = [...chosen.keys()];
  mark(options.find((option) => option.textContent === before) ?? options[0]);
  field.setAttribute("aria-expanded", String(options.length > 0));
  status.textContent = note || (options.length ? words.found(options.length) : words.nothing);
}

/** A part of the list, whose options are numbered on from those before. */
function group(title: string, choices: readonly Choice[]): HTMLElement {
  const part = document.createElement("div");
  const heading = text("div", title);
  heading.className = "group";
  heading.setAttribute("aria-hidden", "true"); // the group is named by it
  heading.id = `palette-of-${title}`;
  part.setAttribute("role", "group");
  part.setAttribute("aria-labelledby", heading.id);
  part.append(
    heading,
    ...choices.map((choice) => {
      const option = text("div", "");
      option.setAttribute("role", "option");
      option.id = `palette-${chosen.size}`;
      option.append(text("span", choice.text), ...(choice.also ? [choice.also] : []));
      chosen.set(option, choice);
      return option;
    }),
  );
  return part;
}

function pages(): Choice[] {
  return [...document.querySelectorAll<HTMLAnchorElement>(PAGES)].map((link) => ({
    text: named(link),
    also: link.querySelector("svg")?.cloneNode(true) ?? icon("building-2"),
    choose: () => location.assign(link.href),
  }));
}

/** Each once, by its name: a button may be on the page twice, for a phone and for a desk. The sidebar's count on a phone, too. */
function actions(): Choice[] {
  const canBeUsed = (one: HTMLElement): boolean => !one.matches(":disabled") && (one.getClientRects().length > 0 || one.closest(".side") !== null);
  const found = [...document.querySelectorAll<HTMLElement>(ACTIONS)].filter(canBeUsed);
  const once = new Map(found.reverse().map((one) => [named(one), one]));
  return [...once].reverse().filter(([name]) => name).map(([name, one]) => ({ text: name, choose: () => one.click() }));
}

/** As a screen reader names it, without counts. */
function named(element: HTMLElement): string {
  const parts = [...element.childNodes].filter((node) => !(node instanceof Element && node.matches(".nav-count, .count, svg")));
  return (element.getAttribute("aria-label") ?? parts.map((node) => node.textContent).join(" ")).replace(/\s+/g, " ").trim();
}

function text(tag: string, content: string): HTMLElement {
  const element = document.createElement(tag);
  element.textContent = content;
  return element;
}
