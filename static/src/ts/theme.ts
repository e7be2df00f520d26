// The theme button: light, dark, or the system's. The choice is a cookie, so that the server renders it.
import { texts } from "./texts";

const YEAR_S = 365 * 24 * 3600;
const next: Record<string, string> = { light: "dark", dark: "" };

export function startThemeToggle(): void {
  document.addEventListener("click", (event) => {
    const button = (event.target as Element).closest<HTMLElement>("[data-theme-toggle]");
    if (!button) return;
    const chosen = /(?:^|; )theme=(light|dark)/.exec(document.cookie)?.[1];
    const theme = chosen === undefined ? "light" : next[chosen];
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    document.cookie = `theme=${theme}; path=/; SameSite=Lax; max-age=${theme ? YEAR_S : 0}`;
    document.documentElement.dataset.theme = theme || system;
    button.setAttribute("aria-label", texts.forms.theme(theme ?? ""));
    document.dispatchEvent(new CustomEvent("themechange"));
  });
}
