// Buttons with an icon.
import { icon } from "./icon";

/** label: what it does, for screen readers and as its title; text: the words beside the icon, if any. */
export function button(name: string, label: string, text = ""): HTMLButtonElement {
  const made = document.createElement("button");
  made.type = "button";
  return dressed(made, name, label, text);
}

function dressed<Made extends HTMLElement>(made: Made, name: string, label: string, text: string): Made {
  made.className = text ? "button small" : "button ghost small icon-only";
  made.append(icon(name));
  if (text) {
    const words = document.createElement("span");
    words.className = "label";
    words.textContent = text;
    made.append(words);
  }
  made.setAttribute("aria-label", label);
  made.title = label;
  return made;
}

/** A link that looks like a button and downloads what it leads to. */
export function downloadLink(href: string, label: string, text = ""): HTMLAnchorElement {
  const made = document.createElement("a");
  made.href = href;
  made.download = "";
  return dressed(made, "download", label, text);
}

/** The word that a phone shows under an icon. */
export function named<Made extends HTMLElement>(made: Made, word: string): Made {
  const shown = document.createElement("span");
  shown.className = "icon-name";
  shown.setAttribute("aria-hidden", "true");
  shown.textContent = word;
  made.append(shown);
  return made;
}
