// The theme button: light, dark, or the system's. The choice is a cookie, so that the server renders it.
import { texts } from "./texts";
import { chosenTheme, themeCookie } from "./theme-cookie";

const next: Record<string, string> = { light: "dark", dark: "" };

export function startThemeToggle(): void {
  document.addEventListener("click", (event) => {
    const button = (event.target as Element).closest<HTMLElement>("[data-theme-toggle]");
    if (!button) return;
    const chosen = chosenTheme(document.cookie, location.protocol);
    const theme = chosen === undefined ? "light" : next[chosen];
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    document.cookie = themeCookie(theme ?? "", location.protocol);
    document.documentElement.dataset.theme = theme || system;
    button.setAttribute("aria-label", texts.forms.theme(theme ?? ""));
    document.dispatchEvent(new CustomEvent("themechange"));
  });
}
