// What stands in place of the lines when there are none.
import { button } from "./toolbar";

export function problemNote(problem: string, icons: string, retry: () => void): HTMLElement[] {
  const why = document.createElement("p");
  why.textContent = problem;
  const again = button(icons, "refresh-cw", "Try again", "Try again");
  again.addEventListener("click", retry);
  return [title("The log could not be loaded"), why, again];
}

export function emptyNote(of: { answered: boolean; level: string; ended: boolean; attempt: number }): HTMLElement {
  if (!of.answered) return title("Loading…");
  if (of.level !== "all") return title(`No ${of.level} in what is loaded`);
  if (of.ended) return title("This learner printed nothing");
  return title(of.attempt > 1 ? `Attempt ${of.attempt} has printed nothing yet` : "Nothing printed yet");
}

function title(words: string): HTMLElement {
  const made = document.createElement("b");
  made.textContent = words;
  return made;
}
