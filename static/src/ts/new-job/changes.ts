// What a clone changes of the job that it comes from: one line for each value, the old one struck out.
import { Spec } from "./spec";

const SHOWN = 60; // characters of a value

type Flat = Map<string, string>;

export function showChanges(page: HTMLElement, text: string): void {
  const box = page.querySelector<HTMLElement>("[data-changes]");
  const parent = document.getElementById("parent")?.textContent;
  const spec = new Spec(text);
  if (!box || !parent || !spec.readable) return;
  const before = flat(new Spec(JSON.parse(parent) as string).toJSON());
  const after = flat(spec.toJSON());
  const paths = [...new Set([...before.keys(), ...after.keys()])].filter((path) => before.get(path) !== after.get(path));
  const from = box.dataset.step; // of the checkpoint that it begins with
  const [words, list] = [box.querySelector("p"), box.querySelector("ul")];
  if (words) words.textContent = paths.length ? `Changed against the job that it is cloned from: ${paths.length}` : `Nothing is changed yet: this is the same job again${from ? `, from step ${from}` : ""}.`;
  list?.replaceChildren(...paths.map((path) => row(path, before.get(path), after.get(path))));
}

/** Every value by its path, lists in one. */
function flat(value: unknown, path = "", found: Flat = new Map()): Flat {
  if (value !== null && typeof value === "object" && !Array.isArray(value)) {
    for (const [key, part] of Object.entries(value)) flat(part, path ? `${path}.${key}` : key, found);
  } else found.set(path, Array.isArray(value) ? value.join(", ") : String(value));
  return found;
}

function row(path: string, before: string | undefined, after: string | undefined): HTMLLIElement {
  const item = document.createElement("li");
  const name = document.createElement("b");
  name.className = "mono";
  name.textContent = path;
  item.append(name, " ");
  if (before !== undefined) item.append(part("del", before, after), " ");
  if (after !== undefined) item.append(part("ins", after, before));
  return item;
}

/** The beginning of a value, or of what is different in a long one. */
function part(tag: "del" | "ins", text: string, other = ""): HTMLElement {
  let same = 0;
  while (text.length > SHOWN && same < text.length && text[same] === other[same]) same += 1;
  const from = Math.max(0, same - 20);
  const made = document.createElement(tag);
  made.className = "mono";
  made.textContent = (from ? "…" : "") + text.slice(from, from + SHOWN) + (text.length > from + SHOWN ? "…" : "");
  return made;
}
