// The theme button: light, dark, or the system's. The choice is a cookie, so that the server renders it.
import { texts } from "./texts";

const YEAR_S = 365 * 24 * 3600;
const next: Record<string, string> = { light: "dark", dark: "" };

export function startThemeToggle(): void {
  document.addEventListener("click", (event) => {
    const button = (event.target as Element).closest<HTMLElement>("[data-theme-toggle]");
    if (!button) return;
    const https = location.protocol === "https:";
    const chosen = chosenTheme(document.cookie, https);
    const theme = chosen === undefined ? "light" : (next[chosen] ?? "");
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    document.cookie = themeCookie(theme, https);
    document.documentElement.dataset.theme = theme || system;
    button.setAttribute("aria-label", texts.forms.theme(theme));
    document.dispatchEvent(new CustomEvent("themechange"));
  });
}

/** The theme that these cookies choose; undefined: the system's. Over https one without the prefix may be another host's. */
export function chosenTheme(cookies: string, https: boolean): string | undefined {
  const pattern = https ? /(?:^|; )__Host-theme=(light|dark)/ : /(?:^|; )theme=(light|dark)/;
  return pattern.exec(cookies)?.[1];
}

/** As portal.pages.theme sets it. "" removes it. */
export function themeCookie(theme: string, https: boolean): string {
  const [prefix, secure] = https ? ["__Host-", "; Secure"] : ["", ""];
  return `${prefix}theme=${theme}; path=/; SameSite=Lax; max-age=${theme ? YEAR_S : 0}${secure}`;
}
