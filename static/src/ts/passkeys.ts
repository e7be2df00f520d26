// Forms of passkeys (data-passkey): the challenge is fetched from that address with the form's fields, the browser and the
// device answer it, and the form is submitted with the answer, as any other form.
import { csrfToken } from "./api";
import { creationOptions, requestOptions, toJson } from "./passkey-json";
import { showProblem } from "./submit";
import { texts } from "./texts";

const words = texts.passkeys;

type Options = PublicKeyCredentialCreationOptionsJSON | PublicKeyCredentialRequestOptionsJSON;
type Refused = { problem: string } | { next: string };

/** Before startSubmit, and before a dialog that submits its forms: both see a form once its answer is there. */
export function startPasskeys(): void {
  document.addEventListener("submit", before, { capture: true });
}

function before(event: SubmitEvent): void {
  const form = event.target as HTMLFormElement;
  const field = form.querySelector<HTMLInputElement>("input[name=passkey]");
  if (form.dataset.passkey === undefined || !field || field.value) return;
  event.preventDefault();
  event.stopPropagation();
  const button = event.submitter as HTMLButtonElement | null;
  if (button?.getAttribute("aria-busy") !== "true") void fill(form, form.dataset.passkey, field, button);
}

async function fill(form: HTMLFormElement, address: string, field: HTMLInputElement, button: HTMLButtonElement | null): Promise<void> {
  button?.setAttribute("aria-busy", "true");
  form.querySelector("[data-form-problem]")?.remove();
  const answer = await answered(form, address).catch((error: unknown) => ({ problem: said(error) }));
  button?.removeAttribute("aria-busy");
  if ("next" in answer) return location.assign(answer.next);
  if ("problem" in answer) return showProblem(form, button, answer.problem, false, false);
  field.value = JSON.stringify(answer);
  form.requestSubmit(button);
}

async function answered(form: HTMLFormElement, address: string): Promise<Refused | object> {
  const options = await challenge(form, address);
  if ("problem" in options || "next" in options) return options;
  const made = "user" in options ? await navigator.credentials.create({ publicKey: creationOptions(options) }) : await navigator.credentials.get({ publicKey: requestOptions(options) });
  return made ? toJson(made as PublicKeyCredential) : { problem: words.canceled };
}

/** What the device has to answer; or what is wrong, or the page to go to, for the sign-in has ended. */
async function challenge(form: HTMLFormElement, address: string): Promise<Options | Refused> {
  const body = new FormData(form);
  body.set("csrfmiddlewaretoken", csrfToken()); // the page's own is old after another login
  const user = document.querySelector<HTMLElement>(".app")?.dataset.user ?? "";
  const answer = await fetch(address, { method: "POST", body, headers: { "X-Luthier-Form": user }, redirect: "manual" }).catch(() => null);
  if (!answer) return { problem: texts.session.unreachable };
  if (answer.status === 204) return user ? { problem: texts.submit.ended } : { next: answer.headers.get("Location") ?? "/login" };
  const isText = answer.headers.get("Content-Type")?.startsWith("text/plain");
  if (!answer.ok) return { problem: isText ? await answer.text() : texts.api.unexpected };
  return ((await answer.json()) as { publicKey: Options }).publicKey;
}

/** What browsers throw: https://www.w3.org/TR/webauthn-3/#sctn-create-request-exceptions */
function said(error: unknown): string {
  const name = error instanceof DOMException ? error.name : "";
  if (name === "NotAllowedError" || name === "AbortError") return words.canceled;
  if (name === "InvalidStateError") return words.known;
  return words.failed(error instanceof Error ? error.message : name);
}
