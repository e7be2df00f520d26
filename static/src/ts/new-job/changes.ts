// What a clone changes of the job that it comes from: one line for each value, the old one struck out.
import { diff, excerpt, type Change } from "./diff";
import { Spec } from "./spec";
import { texts } from "./texts";

const SHOWN = 60; // characters of a value

export function showChanges(page: HTMLElement, text: string): void {
  const box = page.querySelector<HTMLElement>("[data-changes]");
  const parent = document.getElementById("parent")?.textContent;
  const spec = new Spec(text);
  if (!box || !parent || !spec.readable) return;
  const changes = diff(new Spec(JSON.parse(parent) as string).toJSON(), spec.toJSON());
  const [words, list] = [box.querySelector("p"), box.querySelector("ul")];
  // data-checkpoint-step: the step of the checkpoint that the clone begins with
  if (words) words.textContent = changes.length ? texts.changes(changes.length) : texts.unchanged(box.dataset.checkpointStep);
  list?.replaceChildren(...changes.map(row));
}

function row({ path, before, after }: Change): HTMLLIElement {
  const item = document.createElement("li");
  item.append(part("b", path), " ");
  if (before !== undefined) item.append(part("del", excerpt(before, after ?? "", SHOWN)), " ");
  if (after !== undefined) item.append(part("ins", excerpt(after, before ?? "", SHOWN)));
  return item;
}

function part(tag: "b" | "del" | "ins", text: string): HTMLElement {
  const made = document.createElement(tag);
  made.className = "mono";
  made.textContent = text;
  return made;
}
