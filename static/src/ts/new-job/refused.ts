// Why code was not taken: next to where it was chosen, until other code is.
import { icon } from "../icon";
import { type Refused, visible } from "./names";
import { texts } from "./texts";

const SHOWN = 10;

export interface Refusal {
  text: string;
  names?: Refused[];
}

export function showRefused(place: HTMLElement | null, refusals: Refusal[]): void {
  place?.replaceChildren(
    ...refusals.flatMap(({ text, names = [] }) => {
      const line = document.createElement("p");
      line.className = "field-error";
      const words = document.createElement("span");
      words.textContent = text;
      line.append(icon("circle-alert"), words);
      return names.length ? [line, list(names)] : [line];
    }),
  );
}

function list(names: Refused[]): HTMLElement {
  const made = document.createElement("ul");
  made.append(
    ...names.slice(0, SHOWN).map(({ name, why, files }) => {
      const row = document.createElement("li");
      const code = document.createElement("code");
      code.textContent = visible(name);
      row.append(...(name ? [code, " "] : []), texts.refusedName(why, files));
      return row;
    }),
  );
  if (names.length > SHOWN) {
    const row = document.createElement("li");
    row.textContent = texts.moreNames(names.length - SHOWN);
    made.append(row);
  }
  return made;
}
