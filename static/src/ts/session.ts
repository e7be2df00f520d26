// When a session ends, a dialog with the login page's own form starts a new one; the page behind it is kept.
import { api, csrfToken } from "./api";
import { preparePasskeys } from "./forms";
import { live } from "./live";
import { texts } from "./texts";
import { toast } from "./toast";

// What may be due after the password: a passkey or a code, or where none is set up yet, its setup.
const CODE = "/login/code";
const SET_UP = "/login/two-factor";
const RETRY_MS = 2_000; // the session is valid although the socket was refused: try the socket again

let dialog: HTMLDialogElement | undefined;

/** Ask for the password, and the code where one is due, unless another tab has signed in meanwhile. */
export async function signInAgain(): Promise<void> {
  if (dialog?.open) return;
  const answer = await fetch("/login", { redirect: "manual" }).catch(() => null);
  if (!answer) return void setTimeout(resume, RETRY_MS);
  if (answer.type === "opaqueredirect") {
    const now = await signedIn();
    if (now !== undefined && now !== owner()) return location.reload();
    return void setTimeout(resume, RETRY_MS);
  }
  dialog ??= newDialog();
  await show(answer);
  if (!dialog.open) dialog.showModal();
  focus();
}

function newDialog(): HTMLDialogElement {
  const made = document.createElement("dialog");
  made.className = "ask";
  made.setAttribute("aria-labelledby", "session-title");
  const title = document.createElement("h2");
  title.id = "session-title";
  title.textContent = texts.session.title;
  const text = document.createElement("p");
  text.textContent = texts.session.text;
  made.append(title, text, document.createElement("div"));
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    void submit(event.target as HTMLFormElement);
  });
  document.body.append(made);
  window.addEventListener("focus", () => void returned());
  return made;
}

/** Back from another tab: go on if the same person has signed in there. */
async function returned(): Promise<void> {
  if (!dialog?.open || (await signedIn()) !== owner()) return;
  dialog.close();
  resume();
}

/** Show the forms as the server renders them, with its message about what was wrong. */
async function show(answer: Response): Promise<void> {
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const forms = [...page.querySelectorAll('form[action="/login"], form[action="/login/code"], [data-with-passkeys], [data-without-passkeys]')];
  const provider = page.querySelector<HTMLAnchorElement>('a[href^="/login/sso"]');
  if (provider) provider.target = "_blank"; // what is typed on the page behind the dialog stays
  const words = page.querySelector("[role=alert]") ?? (forms.length ? null : page.querySelector("main p"));
  dialog?.querySelector("div")?.replaceChildren(...[words, provider, ...forms].filter((part) => part !== null).map((part) => document.importNode(part, true)));
  if (dialog) preparePasskeys(dialog);
  const name = dialog?.querySelector<HTMLInputElement>("[name=username]");
  if (name && !name.value) name.value = owner();
}

function focus(): void {
  const empty = [...(dialog?.querySelectorAll<HTMLInputElement>("input:not([type=hidden])") ?? [])].find((field) => !field.value);
  (dialog?.querySelector<HTMLElement>("[data-passkey]:not([hidden]) button") ?? empty)?.focus();
}

async function submit(form: HTMLFormElement): Promise<void> {
  const data = new FormData(form);
  const button = form.querySelector("button");
  button?.setAttribute("aria-busy", "true");
  const answer = await fetch(form.action, { method: "POST", body: data, redirect: "manual" }).catch(() => null);
  button?.removeAttribute("aria-busy");
  if (!answer) return toast(texts.session.unreachable, "error");
  if (answer.type !== "opaqueredirect") {
    await show(answer);
    return focus();
  }
  const now = await signedIn();
  const code = now === undefined ? await due(CODE) : null;
  if (code) {
    await show(code);
    return focus();
  }
  if (now === undefined && (await due(SET_UP))) return location.assign(SET_UP);
  // Another person signed in: they must not see this page.
  if (now !== owner()) return location.reload();
  dialog?.close();
  resume();
}

/** The page at this path, unless the server sends on to another one because it is not due. */
async function due(path: string): Promise<Response | null> {
  const answer = await fetch(path, { redirect: "manual" }).catch(() => null);
  return answer?.ok ? answer : null;
}

/** Who is signed in now; undefined if the server does not respond. */
async function signedIn(): Promise<string | undefined> {
  return (await api<{ username: string }>("GET", "/me").catch(() => undefined))?.username;
}

const owner = (): string => document.querySelector<HTMLElement>(".app")?.dataset.user ?? "";

/** Forms on the page still have the CSRF token of the old session: give them the new one, and reconnect. */
function resume(): void {
  for (const field of document.querySelectorAll<HTMLInputElement>("[name=csrfmiddlewaretoken]")) field.value = csrfToken();
  live.reconnect();
}
