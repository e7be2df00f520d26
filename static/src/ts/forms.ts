// Small additions to plain forms: copy buttons, selects that submit when changed, focus on the first error.
import { texts } from "./texts";
import { toast } from "./toast";

const COPIES = "[data-copy],[data-copy-from]";

async function copy(button: HTMLElement): Promise<void> {
  const { copy: own, copyFrom = "" } = button.dataset;
  const text = own ?? document.getElementById(copyFrom)?.textContent ?? "";
  try {
    await navigator.clipboard.writeText(text);
    toast(texts.forms.copied, "success");
  } catch {
    // No permission, or a page without TLS: select the text, so that one key copies it.
    const source = button.parentElement?.querySelector("pre,code");
    if (source) getSelection()?.selectAllChildren(source);
    toast(texts.forms.pressToCopy);
  }
  button.focus();
}

/** Show what works with scripts only, and focus the first error: once, and after each form that the server refused. */
export function prepare(): void {
  for (const button of document.querySelectorAll<HTMLElement>(COPIES)) button.hidden = false;
  for (const button of document.querySelectorAll<HTMLElement>("[data-reveal]")) button.hidden = false;
  // With scripts a changed select submits its form, so the button beside it is only for pages without.
  for (const button of document.querySelectorAll<HTMLElement>("[data-without-scripts]")) button.hidden = true;
  preparePasskeys(document);
  // The page may name another field than the first: of a name and a password, the password is typed again.
  const wrong = document.querySelector<HTMLElement>("[aria-invalid=true][autofocus]") ?? document.querySelector<HTMLElement>("[aria-invalid=true]");
  (wrong ?? document.querySelector<HTMLElement>("[data-focus]"))?.focus();
}

/** Show what takes passkeys where the browser has them, and elsewhere what says so. */
export function preparePasskeys(root: ParentNode): void {
  const has = "PublicKeyCredential" in window;
  for (const part of root.querySelectorAll<HTMLElement>("[data-passkey],[data-with-passkeys]")) part.hidden = !has;
  for (const part of root.querySelectorAll<HTMLElement>("[data-without-passkeys]")) part.hidden = has;
}

export function startForms(): void {
  prepare();
  document.addEventListener("click", (event) => {
    const button = (event.target as Element).closest<HTMLElement>(COPIES);
    if (button) void copy(button);
    const eye = (event.target as Element).closest<HTMLElement>("[data-reveal]");
    const secret = eye && (document.getElementById(eye.dataset.reveal ?? "") as HTMLInputElement | null);
    if (eye && secret) {
      secret.type = secret.type === "password" ? "text" : "password";
      eye.setAttribute("aria-pressed", String(secret.type === "text"));
    }
  });
  // The server's message about a field is about its old value.
  document.addEventListener("input", (event) => {
    const field = event.target as HTMLElement;
    const problem = field.id && document.getElementById(`problem-${field.id}`);
    if (!problem) return;
    problem.remove();
    field.removeAttribute("aria-invalid");
  });
  document.addEventListener("change", (event) => {
    const field = event.target as HTMLElement;
    if (field instanceof HTMLSelectElement && "submitOnChange" in field.dataset) field.form?.requestSubmit();
  });
}
