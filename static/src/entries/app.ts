// What every page has: htmx for partial refreshes, the clock, the theme button, forms that cannot be sent twice.
import htmx from "htmx.org";
import { csrfToken } from "../ts/api";
import { startConnection } from "../ts/connection";
import { startFind } from "../ts/find";
import { startForms } from "../ts/forms";
import { startMenus } from "../ts/menus";
import { startShortcuts } from "../ts/shortcuts";
import { startThemeToggle } from "../ts/theme";
import { startClock } from "../ts/time";

document.body.addEventListener("htmx:configRequest", (event) => {
  (event as CustomEvent<{ headers: Record<string, string> }>).detail.headers["X-CSRFToken"] = csrfToken();
});
// A session that has ended answers with the login page, which belongs into no part of another one.
document.body.addEventListener("htmx:beforeSwap", (event) => {
  const { detail } = event as CustomEvent<{ xhr: XMLHttpRequest; shouldSwap: boolean }>;
  if (new URL(detail.xhr.responseURL).pathname === "/login") detail.shouldSwap = false;
});
document.addEventListener("submit", (event) => {
  const button = (event as SubmitEvent).submitter;
  if (!(button instanceof HTMLButtonElement) || event.defaultPrevented) return;
  // After the browser has gathered the form's data, or the button's own value would be missing.
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
Object.assign(window, { htmx });
