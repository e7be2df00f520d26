// The form beside the editor: each control names the spec value it stands for (data-path) and how to read it (data-kind).
import { icon } from "../icon";
import type { Finding } from "./check";
import { pathOf, type Spec } from "./spec";

type Control = HTMLInputElement | HTMLSelectElement;

export class SpecForm {
  private readonly controls: Control[];

  constructor(
    private readonly form: HTMLElement,
    changed: (path: string, value: unknown) => void,
  ) {
    this.controls = [...form.querySelectorAll<Control>("[data-path]")];
    form.addEventListener("input", (event) => {
      const control = event.target as Control;
      if (control.dataset.path) changed(control.dataset.path, read(control));
    });
    form.addEventListener("click", (event) => {
      const step = (event.target as Element).closest<HTMLButtonElement>("[data-step]");
      const input = step?.parentElement?.querySelector("input");
      if (!step || !input) return;
      const low = Number(input.dataset.min ?? 0);
      input.value = String(Math.max(low, (Number(input.value) || 0) + Number(step.dataset.step)));
      input.dispatchEvent(new Event("input", { bubbles: true }));
    });
  }

  /** Show what the spec says; the control in which somebody types is left alone. */
  show(spec: Spec): void {
    for (const control of this.controls) {
      if (control === document.activeElement && control.type !== "radio") continue;
      const value = spec.get(pathOf(control.dataset.path ?? ""));
      if (control.type === "radio") {
        (control as HTMLInputElement).checked = String(value ?? "") === control.value;
      } else {
        const text = Array.isArray(value) ? value.join(", ") : value == null ? "" : String(value);
        control.value = text || (control.dataset.default ?? "");
      }
    }
    this.showFiles(spec);
  }

  /** Mark the controls whose value the server refused, each with its sentence beside it. */
  markErrors(errors: Finding[]): void {
    for (const control of this.controls) {
      const mine = errors.find((error) => error.path === control.dataset.path);
      const text = control.closest(".fl2, .ct")?.querySelector<HTMLElement>(`[data-error="${control.dataset.path}"]`);
      if (mine) control.setAttribute("aria-invalid", "true");
      else control.removeAttribute("aria-invalid");
      if (text) text.textContent = mine?.message ?? "";
    }
  }

  /** Focus the control of a path; false when the form has none. */
  focus(path: string): boolean {
    const control = this.controls.find((candidate) => candidate.dataset.path === path);
    control?.focus();
    return control !== undefined;
  }

  private showFiles(spec: Spec): void {
    const list = this.form.querySelector<HTMLUListElement>("[data-files]");
    if (!list) return;
    const code = spec.get(["code"]) as { files?: Record<string, string>; upload?: string } | undefined;
    const files = Object.entries(code?.files ?? {});
    list.replaceChildren(
      ...files.map(([name, text]) => fileRow(name, `${new Blob([String(text)]).size.toLocaleString("en-US")} B`)),
      ...(code?.upload ? [fileRow(`Upload ${code.upload}`, "archive")] : []),
    );
  }
}

function fileRow(name: string, note: string): HTMLLIElement {
  const row = document.createElement("li");
  row.append(icon("file-code-2"));
  const label = document.createElement("span");
  label.className = "mono f12";
  label.textContent = name;
  const size = document.createElement("span");
  size.className = "t3 f12 num";
  size.textContent = note;
  row.append(label, size);
  return row;
}

function read(control: Control): unknown {
  const text = control.value.trim();
  switch (control.dataset.kind) {
    case "number":
      return /^\d+$/.test(text) ? Number(text) : text;
    case "list":
      return text ? text.split(",").map((part) => part.trim()).filter(Boolean) : undefined;
    default:
      return text;
  }
}
