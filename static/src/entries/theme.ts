// Runs before the first paint (a plain script in <head>): the chosen theme, or the system's.
const dark = matchMedia("(prefers-color-scheme: dark)");
const apply = (): void => {
  const chosen = /(?:^|; )theme=(light|dark)/.exec(document.cookie)?.[1]; // a choice since the page was loaded counts
  document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light");
};
apply();
dark.addEventListener("change", apply);
