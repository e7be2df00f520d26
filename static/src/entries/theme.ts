// Runs before the first paint (a plain script in <head>): the chosen theme, or the system's.
const chosen = /(?:^|; )theme=(light|dark)/.exec(document.cookie)?.[1];
const dark = matchMedia("(prefers-color-scheme: dark)");
const apply = (): void => {
  document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light");
};
apply();
if (!chosen) dark.addEventListener("change", apply);
