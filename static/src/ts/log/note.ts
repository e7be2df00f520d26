// What the viewer shows when there are no lines.
import { button } from "../button";
import { texts } from "../texts";

export function problemNote(problem: string, retry: () => void): HTMLElement[] {
  const why = document.createElement("p");
  why.textContent = problem;
  const again = button("refresh-cw", texts.log.tryAgain, texts.log.tryAgain);
  again.addEventListener("click", retry);
  return [title(texts.log.failedTitle), why, again];
}

export function emptyNote(of: { answered: boolean; level: string; ended: boolean; attempt: number }): HTMLElement {
  if (!of.answered) return title(texts.log.loading);
  if (of.level !== "all") return title(texts.log.noneOfLevel(of.level));
  if (of.ended) return title(texts.log.printedNothing);
  return title(texts.log.nothingYet(of.attempt));
}

function title(words: string): HTMLElement {
  const made = document.createElement("b");
  made.textContent = words;
  return made;
}
