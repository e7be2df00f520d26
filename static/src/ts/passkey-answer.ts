// A passkey's answer, for the forms of passkeys.ts: the challenge is fetched from the form's address with its fields, and
// the browser and the device answer it.
import { csrfToken } from "./api";
import { creationOptions, requestOptions, toJson } from "./passkey-json";
import { texts } from "./texts";

const words = texts.passkeys;

type Options = PublicKeyCredentialCreationOptionsJSON | PublicKeyCredentialRequestOptionsJSON;
export type Refused = { problem: string } | { next: string };
export type Answer = { answer: object };

/** What the browser and the device answer; or what is wrong, or the page to go to. */
export function answered(form: HTMLFormElement, address: string): Promise<Refused | Answer> {
  return made(form, address).catch((error: unknown) => ({ problem: said(error) }));
}

async function made(form: HTMLFormElement, address: string): Promise<Refused | Answer> {
  const options = await challenge(form, address);
  if ("problem" in options || "next" in options) return options;
  const credential = "user" in options ? await navigator.credentials.create({ publicKey: creationOptions(options) }) : await navigator.credentials.get({ publicKey: requestOptions(options) });
  return credential ? { answer: toJson(credential as PublicKeyCredential) } : { problem: words.canceled };
}

/** What the device has to answer; or what is wrong, or the page to go to, for the sign-in has ended. */
async function challenge(form: HTMLFormElement, address: string): Promise<Options | Refused> {
  const body = new FormData(form);
  body.set("csrfmiddlewaretoken", csrfToken()); // the page's own is old after another login
  const user = document.querySelector<HTMLElement>("[data-user]")?.dataset.user ?? "";
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
