// What every page has: the connection, the clock, the theme button, menus, keys, forms that cannot be sent twice.
import { startConnection } from "../ts/connection";
import { startFind } from "../ts/find";
import { startForms } from "../ts/forms";
import { startMenus } from "../ts/menus";
import { startShortcuts } from "../ts/shortcuts";
import { startThemeToggle } from "../ts/theme";
import { startClock } from "../ts/time";

document.addEventListener("submit", (event) => {
  const button = (event as SubmitEvent).submitter;
  if (!(button instanceof HTMLButtonElement) || event.defaultPrevented) return;
  // After the browser has collected the form's data, or the button's own value would be missing.
  setTimeout(() => {
    button.disabled = true;
    button.setAttribute("aria-busy", "true");
  });
});
addEventListener("pageshow", () => {
  for (const button of document.querySelectorAll<HTMLButtonElement>("button[aria-busy]")) {
    button.disabled = false;
    button.removeAttribute("aria-busy");
  }
});
startThemeToggle();
startConnection();
startClock();
startForms();
startFind();
startMenus();
startShortcuts();
