// Forms of passkeys (data-passkey): before one is submitted, its answer is asked for. What does that is loaded then.
import { showProblem } from "./submit";
import { texts } from "./texts";

const filled = new WeakSet<HTMLFormElement>();

/** Before startSubmit, and before a dialog that submits its forms: both see a form once its answer is there. */
export function startPasskeys(): void {
  document.addEventListener("submit", before, { capture: true });
}

function before(event: SubmitEvent): void {
  const form = event.target as HTMLFormElement;
  if (form.dataset.passkey === undefined || filled.delete(form)) return; // an answer counts once
  const field = form.querySelector<HTMLInputElement>("input[name=passkey]");
  if (!field) return;
  event.preventDefault();
  event.stopPropagation();
  const button = event.submitter as HTMLButtonElement | null;
  if (button?.getAttribute("aria-busy") !== "true") void fill(form, form.dataset.passkey, field, button);
}

async function fill(form: HTMLFormElement, address: string, field: HTMLInputElement, button: HTMLButtonElement | null): Promise<void> {
  button?.setAttribute("aria-busy", "true");
  form.querySelector("[data-form-problem]")?.remove();
  const loaded = await import("./passkey-answer").catch(() => null);
  const found = loaded ? await loaded.answered(form, address) : { problem: texts.session.unreachable };
  button?.removeAttribute("aria-busy");
  if ("next" in found) return location.assign(found.next);
  if ("problem" in found) return showProblem(form, button, found.problem, false, false);
  field.value = JSON.stringify(found.answer);
  filled.add(form);
  form.requestSubmit(button);
}
