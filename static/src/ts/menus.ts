// Menus are <details>, so that they open without scripts; with scripts, Escape and a click elsewhere close them.

const OPEN = "details:is(.more, .tenant-switch, .menu)[open]";

function close(leave: (menu: HTMLDetailsElement) => boolean): void {
  for (const menu of document.querySelectorAll<HTMLDetailsElement>(OPEN)) if (leave(menu)) menu.open = false;
}

export function startMenus(): void {
  document.addEventListener("click", (event) => close((menu) => !menu.contains(event.target as Node)));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    close((menu) => {
      if (menu.contains(document.activeElement)) menu.querySelector("summary")?.focus();
      return true;
    });
  });
}
