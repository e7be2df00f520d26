// The cookie of the chosen theme. Of a name with this prefix, browsers take no cookie from another host of the domain, and
// only https may set one; a cookie without it, from a time before https, has nothing to say there.
const YEAR_S = 365 * 24 * 3600;

const nameOf = (protocol: string): string => (protocol === "https:" ? "__Host-theme" : "theme");

/** light, dark, or undefined for the system's; cookies: as in document.cookie. */
export function chosenTheme(cookies: string, protocol: string): string | undefined {
  return new RegExp(`(?:^|; )${nameOf(protocol)}=(light|dark)`).exec(cookies)?.[1];
}

/** What to set document.cookie to; an empty theme is the system's. */
export function themeCookie(theme: string, protocol: string): string {
  const secure = protocol === "https:" ? "; Secure" : "";
  return `${nameOf(protocol)}=${theme}; path=/; SameSite=Lax; max-age=${theme ? YEAR_S : 0}${secure}`;
}
