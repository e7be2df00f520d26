// The theme button: light, dark, or the system's. The choice is a cookie, so that the server renders it.
import { texts } from "./texts";

const YEAR_S = 365 * 24 * 3600;

export function startThemeToggle(): void {
  document.addEventListener("click", (event) => {
    const button = (event.target as Element).closest<HTMLElement>("[data-theme-toggle]");
    if (!button) return;
    const prefix = location.protocol === "https:" ? "__Host-" : "";
    const theme = nextTheme(document.cookie, prefix);
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    document.cookie = themeCookie(theme, prefix);
    document.documentElement.dataset.theme = theme || system;
    button.setAttribute("aria-label", texts.forms.theme(theme));
    document.dispatchEvent(new CustomEvent("themechange"));
  });
}

/** Light, then dark, then "", the system's. Over https a cookie without the prefix may be another host's. */
export function nextTheme(cookies: string, prefix: string): string {
  const chosen = `; ${cookies}`.split(`; ${prefix}theme=`)[1];
  return !chosen ? "light" : chosen[0] === "l" ? "dark" : "";
}

/** As portal.pages.theme sets it. "" removes it. */
export function themeCookie(theme: string, prefix: string): string {
  return `${prefix}theme=${theme}; path=/; SameSite=Lax; max-age=${theme ? YEAR_S : 0}${prefix && "; Secure"}`;
}
