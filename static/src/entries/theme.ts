// Runs before the first paint (a plain script in <head>): the chosen theme, or the system's; and whether the page is laid
// out for its scripts, so that nothing moves when they start. If one cannot be loaded, it is laid out as without scripts.
const dark = matchMedia("(prefers-color-scheme: dark)");
const apply = (): void => {
  const chosen = /(?:^|; )theme=(light|dark)/.exec(document.cookie)?.[1]; // a choice since the page was loaded counts
  document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light");
};
apply();
dark.addEventListener("change", () => {
  apply();
  document.dispatchEvent(new CustomEvent("themechange")); // canvases are drawn again
});
document.documentElement.classList.add("scripted");
addEventListener("error", ({ target }) => target instanceof HTMLScriptElement && document.documentElement.classList.remove("scripted"), true);
