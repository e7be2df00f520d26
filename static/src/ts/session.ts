// A session that ended is begun anew where the person stands: the login page's own form in a dialog, the page behind it kept.
import { api, csrfToken } from "./api";
import { live } from "./live";
import { toast } from "./toast";

const AGAIN_MS = 2_000; // a session that lives although the socket was refused: ask the socket again, without haste

let dialog: HTMLDialogElement | undefined;

/** Ask for the password, unless another tab has signed in meanwhile. */
export async function signInAgain(): Promise<void> {
  if (dialog?.open) return;
  const answer = await fetch("/login", { redirect: "manual" }).catch(() => null);
  if (!answer) return void setTimeout(goOn, AGAIN_MS);
  if (answer.type === "opaqueredirect") {
    const now = await someone();
    if (now !== undefined && now !== whose()) return location.reload();
    return void setTimeout(goOn, AGAIN_MS);
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
  made.innerHTML = '<h2 id="session-title">Your session has ended</h2><p>Sign in to go on. This page keeps what it shows and what you have typed.</p><div></div>';
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    void submit(event.target as HTMLFormElement);
  });
  document.body.append(made);
  return made;
}

/** The form as the server draws it, with its own words about what was wrong. */
async function show(answer: Response): Promise<void> {
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const form = page.querySelector('form[action="/login"]');
  const words = page.querySelector("[role=alert]") ?? (form ? null : page.querySelector("main p"));
  dialog?.querySelector("div")?.replaceChildren(...[words, form].filter((part) => part !== null).map((part) => document.importNode(part, true)));
  const name = dialog?.querySelector<HTMLInputElement>("[name=username]");
  if (name && !name.value) name.value = whose();
}

function focus(): void {
  const empty = [...(dialog?.querySelectorAll<HTMLInputElement>("input:not([type=hidden])") ?? [])].find((field) => !field.value);
  empty?.focus();
}

async function submit(form: HTMLFormElement): Promise<void> {
  const data = new FormData(form);
  const button = form.querySelector("button");
  button?.setAttribute("aria-busy", "true");
  const answer = await fetch("/login", { method: "POST", body: data, redirect: "manual" }).catch(() => null);
  button?.removeAttribute("aria-busy");
  if (!answer) return toast("The server does not answer; try again.", "error");
  if (answer.type !== "opaqueredirect") {
    await show(answer);
    return focus();
  }
  // What stands on the page is another person's: show none of it to this one.
  if (data.get("username") !== whose()) return location.reload();
  dialog?.close();
  goOn();
}

/** Who has signed in meanwhile; undefined when the server cannot say. */
async function someone(): Promise<string | undefined> {
  return (await api<{ username: string }>("GET", "/me").catch(() => undefined))?.username;
}

const whose = (): string => document.querySelector<HTMLElement>(".app")?.dataset.user ?? "";

/** The new session has a new token; forms that stand on the page still carry the old one. */
function goOn(): void {
  for (const field of document.querySelectorAll<HTMLInputElement>("[name=csrfmiddlewaretoken]")) field.value = csrfToken();
  live.again();
}
