// Forms are submitted by fetch, so that nothing typed is lost: the page is left only for what the server leads to. Without
// scripts the same forms post and redirect.
//
// A form receives `submitted` before its page is left, and `refused` with the page that the server rendered instead; a form
// that prevents the default of `refused` shows what is wrong by itself.
import { csrfToken, withKey } from "./api";
import { rememberKey, startFormKeys } from "./form-key";
import { prepare } from "./forms";
import { icon } from "./icon";
import { loadMorphing, morph } from "./parts";
import { texts } from "./texts";

const words = texts.submit;
let running = new WeakSet<HTMLFormElement>();

type Outcome = { next: string } | { problem: string; page?: Document; signIn?: boolean };

export function startSubmit(): void {
  startFormKeys();
  document.addEventListener("submit", (event) => {
    const form = event.target as HTMLFormElement;
    if (event.defaultPrevented || form.getAttribute("method") !== "post") return;
    event.preventDefault();
    if (!running.has(form)) void submit(form, event.submitter as HTMLButtonElement | null);
  });
  addEventListener("pageshow", () => {
    running = new WeakSet(); // the browser went back to this page
    for (const button of document.querySelectorAll("button[aria-busy]")) button.removeAttribute("aria-busy");
  });
}

async function submit(form: HTMLFormElement, button: HTMLButtonElement | null): Promise<void> {
  running.add(form);
  button?.setAttribute("aria-busy", "true"); // not disabled: that would lose the focus
  const outcome = await send(form, button);
  if ("next" in outcome) {
    form.dispatchEvent(new Event("submitted"));
    return go(outcome.next);
  }
  running.delete(form);
  button?.removeAttribute("aria-busy");
  form.querySelector("[data-form-problem]")?.remove();
  const { page, problem } = outcome;
  if (!page) return showProblem(form, button, problem, outcome.signIn);
  if (form.dispatchEvent(new CustomEvent("refused", { detail: page, cancelable: true }))) await render(page);
  else if (problem) showProblem(form, button, problem);
}

async function send(form: HTMLFormElement, button: HTMLButtonElement | null): Promise<Outcome> {
  const body = new FormData(form, button);
  body.set("csrfmiddlewaretoken", csrfToken()); // the page's own is old after another login
  const user = document.querySelector<HTMLElement>("[data-user]")?.dataset.user ?? "";
  const headers = { "X-Luthier-Form": user };
  // The attribute: form.action may be a button of that name.
  const address = button?.getAttribute("formaction") ?? form.getAttribute("action") ?? location.href;
  try {
    const answer = await withKey(form, (key) => {
      body.set("form_key", key);
      return fetch(address, { method: "POST", body, headers, credentials: "same-origin", redirect: "manual" });
    });
    const next = answer.headers.get("Location");
    if (answer.status === 204 && next) {
      const isOver = user !== "" && new URL(next, location.href).pathname === "/login" && !address.endsWith("/logout");
      if (isOver) return { problem: words.ended, signIn: true };
      rememberKey(form, String(body.get("form_key")));
      return { next };
    }
    return await refusal(answer);
  } catch {
    return { problem: words.unreachable };
  }
}

/** A page with the form and what is wrong (200, 422), an error page, or lines of text. */
async function refusal(answer: Response): Promise<Outcome> {
  const text = await answer.text();
  if (!answer.headers.get("Content-Type")?.startsWith("text/html")) return { problem: text || words.unexpected };
  const page = new DOMParser().parseFromString(text, "text/html");
  const said = (selector: string): string => page.querySelector(selector)?.textContent?.trim().replace(/\s+/g, " ") ?? "";
  if (answer.ok || answer.status === 422) return { page, problem: said("main [role=alert]") };
  return { problem: `${said("main h1").replace(/\.?$/, ".")} ${said("main p")}`.trim() };
}

/** The page as the server rendered it, with what was typed; the rest of this page, and its scripts, stay. */
async function render(page: Document): Promise<void> {
  await loadMorphing();
  for (const open of document.querySelectorAll<HTMLElement>("[popover]:popover-open")) open.hidePopover();
  const [main, fresh] = [document.querySelector("main"), page.querySelector("main")];
  if (!main || !fresh) return;
  for (const style of page.querySelectorAll<HTMLLinkElement>("head link[rel=stylesheet]")) {
    if (!document.head.querySelector(`link[href="${style.getAttribute("href")}"]`)) document.head.append(document.importNode(style, true));
  }
  morph(main, document.importNode(fresh, true));
  document.title = page.title;
  scrollTo({ top: 0 });
  prepare();
}

/** Say in the form what is wrong, with a button that tries again; or where the form's own is as near, without. */
export function showProblem(form: HTMLFormElement, button: HTMLButtonElement | null, problem: string, signIn = false, again = true): void {
  const box = document.createElement("div");
  box.className = "call red form-problem";
  box.dataset.formProblem = "";
  box.setAttribute("role", "alert");
  const text = document.createElement("span");
  text.textContent = problem;
  box.append(icon("octagon-alert"), text);
  if (signIn) {
    const link = document.createElement("a");
    link.className = "button small";
    link.href = "/login";
    link.target = "_blank";
    link.textContent = words.signIn;
    box.append(link);
  }
  if (again) box.append(retry(form, button));
  const place = form.querySelector(".submit-bar, .dialog-body") ?? (form.checkVisibility() ? form : document.getElementById("banner"));
  place?.prepend(box);
  box.scrollIntoView({ block: "nearest" });
}

function retry(form: HTMLFormElement, button: HTMLButtonElement | null): HTMLButtonElement {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "button small";
  made.textContent = words.again;
  made.addEventListener("click", () => form.requestSubmit(button?.isConnected ? button : null));
  return made;
}

function go(next: string): void {
  const address = new URL(next, location.href);
  if (address.pathname + address.search !== location.pathname + location.search) return location.assign(address);
  history.replaceState(null, "", address); // the same page: its fragment alone would not load it again
  location.reload();
}
