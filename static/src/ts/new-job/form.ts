// The form beside the editor: each control names its value in the spec (data-path) and how to read it (data-kind).
import type { Finding } from "./check";
import { Files } from "./files";
import { Rows, type Write } from "./rows";
import { pathOf, type Spec } from "./spec";
import { texts } from "./texts";

type Control = HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement;

export class SpecForm {
  private readonly controls: Control[];
  private readonly rows: Rows[];
  private readonly files: Files;

  constructor(
    private readonly form: HTMLElement,
    write: Write,
  ) {
    this.controls = [...form.querySelectorAll<Control>("[data-path]")];
    this.rows = [...form.querySelectorAll<HTMLElement>("[data-rows]")].map((holder) => new Rows(holder, write));
    this.files = new Files(form, write);
    form.addEventListener("input", (event) => {
      const control = event.target as Control;
      if (!this.controls.includes(control)) return;
      const { path = "" } = control.dataset;
      write((spec) => {
        if (control.name === "gpu_type") return setDevice(spec, control.value);
        spec.set(pathOf(path), read(control));
        const other = INSTEAD[path]; // a spec has one of the two
        if (other && control.value) spec.set([other], undefined);
      });
    });
    form.addEventListener("click", (event) => {
      const stepper = (event.target as Element).closest<HTMLButtonElement>("[data-change]");
      const input = stepper?.parentElement?.querySelector("input");
      if (!stepper || !input) return;
      const [range, from, to] = RANGE.exec(input.value.trim()) ?? [];
      const low = Number((range && from) || input.dataset.min) || 0;
      const next = Math.max(low, (Number(range ? to : input.value) || 0) + Number(stepper.dataset.change));
      input.value = range && next > low ? `${from}–${next}` : String(next);
      input.dispatchEvent(new Event("input", { bubbles: true }));
    });
  }

  /** Show the values of the spec, except in the focused control. */
  show(spec: Spec): void {
    for (const control of this.controls) {
      if (control === document.activeElement && !isChoice(control)) continue;
      const value = control.name === "gpu_type" ? deviceOf(spec) : spec.get(pathOf(control.dataset.path ?? ""));
      if (isChoice(control)) {
        control.checked = control.type === "radio" ? String(value ?? "") === control.value : value === true;
      } else {
        const text = isPair(control) ? pairText(value) : isSize(control) ? sizeText(value) : Array.isArray(value) ? value.join(isLines(control) ? "\n" : ", ") : value == null ? "" : String(value);
        const fits = !isLines(control) || value == null || (Array.isArray(value) && value.every((one) => !/\n|^$/.test(String(one))));
        control.value = fits ? text || (control.dataset.default ?? "") : "";
        if (isLines(control)) [control.disabled, control.placeholder] = [!fits, fits ? (control.dataset.example ?? "") : texts.inYaml];
      }
    }
    for (const rows of this.rows) rows.show(spec);
    this.files.show(spec);
  }

  /** Nothing can be written into a text that cannot be read: the form is disabled until it can. */
  lock(locked: boolean): void {
    for (const set of this.form.querySelectorAll<HTMLFieldSetElement>("fieldset")) set.disabled = locked;
    for (const editor of this.form.querySelectorAll<HTMLElement>(".file-editor")) editor.inert = locked;
  }

  /** Mark the controls whose values the server refused, with what is wrong below their row. */
  markErrors(errors: Finding[]): void {
    const shown = new Map<HTMLElement, Map<string, HTMLElement>>();
    for (const place of this.form.querySelectorAll<HTMLElement>("[data-errors]")) shown.set(place, new Map());
    for (const control of this.controls) {
      const mine = errors.find((error) => isAbout(error.path, control));
      const lines = shown.get(control.closest(".card-body")?.querySelector("[data-errors]") as HTMLElement);
      if (mine && lines) {
        const line = lines.get(mine.path) ?? sentence(control, mine);
        lines.set(mine.path, line);
        control.setAttribute("aria-invalid", "true");
        describe(control, line.id);
      } else {
        control.removeAttribute("aria-invalid");
        describe(control, "");
      }
    }
    for (const [place, lines] of shown) place.replaceChildren(...lines.values());
    for (const input of this.form.querySelectorAll<HTMLInputElement>("[data-rows] input[data-path]")) {
      const mine = errors.find((error) => error.path === input.dataset.path);
      if (mine) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
      const text = input.closest("li")?.querySelector<HTMLElement>(".field-error");
      if (text && mine) text.textContent = mine.message;
      else if (text && !input.closest("li")?.querySelector("[aria-invalid]")) text.textContent = "";
    }
  }

  /** Focus the control of a path; false when the form has none. */
  focus(path: string): boolean {
    const all = [...this.controls, ...this.form.querySelectorAll<HTMLInputElement>("[data-rows] input[data-path]")];
    const control = all.find((candidate) => isAbout(path, candidate));
    if (!control || control.matches(":disabled")) return false;
    control.focus({ preventScroll: true });
    control.scrollIntoView({ block: "center" }); // clear of the bars above and below
    return true;
  }
}

/** "Memory each is required", or "Memory each: Unknown unit …" for a message that is a sentence; a radio group gives its name. */
function sentence(control: Control, { path, message }: Finding): HTMLElement {
  const line = document.createElement("span");
  const name = control.type === "radio" ? control.closest("[role=radiogroup]")?.ariaLabel : control.labels?.[0]?.textContent;
  line.id = `wrong-${path}`;
  line.textContent = texts.problem(name ?? path, message);
  return line;
}

/** By what is wrong with it, and by what it means where the page says so. */
function describe(control: Control, error: string): void {
  const ids = [error, control.dataset.hint].filter(Boolean).join(" ");
  if (ids) control.setAttribute("aria-describedby", ids);
  else control.removeAttribute("aria-describedby");
}

/** Whether a path is this control's value or, of a list with an entry a line, one of its entries. */
const isAbout = (path: string, control: Control): boolean =>
  path === control.dataset.path ||
  (isLines(control) && path.startsWith(`${control.dataset.path}[`)) ||
  ((isPair(control) || isSize(control)) && path.startsWith(`${control.dataset.path}.`));

const isChoice = (control: Control): control is HTMLInputElement => control.type === "radio" || control.type === "checkbox";

const isLines = (control: Control): control is HTMLTextAreaElement => control.dataset.kind === "lines";

/** A spec names a framework or a plain Python. */
const INSTEAD: Record<string, string> = { framework: "python", python: "framework" };

const GPUS = ["resources", "gpus"];
const GPU_TYPE = ["resources", "gpu_type"];

/** The tile of a spec: its GPU type, "" for any GPU, cpu for a job without GPUs. */
const deviceOf = (spec: Spec): unknown => spec.get(GPU_TYPE) ?? (Number(spec.get(GPUS) ?? 0) ? "" : "cpu");

function setDevice(spec: Spec, device: string): void {
  const count = Number(spec.get(GPUS) ?? 0);
  spec.set(GPUS, device === "cpu" ? 0 : count || 1);
  spec.set(GPU_TYPE, device === "cpu" ? undefined : device);
}

const isPair = (control: Control): boolean => control.dataset.kind === "pair";

/** A mapping of one entry as its choice is named: {required: rack} is "required rack". */
const pairText = (value: unknown): string => Object.entries((value ?? {}) as Record<string, unknown>).flat().join(" ");

const isSize = (control: Control): boolean => control.dataset.kind === "size";

/** A range as people write it: 1-4. */
const RANGE = /^(\d+)\s*[-–]\s*(\d+)$/;

/** A number, or the range of an elastic job: {min: 1, max: 4} is "1–4". */
function sizeText(value: unknown): string {
  const { min, max } = (value ?? {}) as Record<string, unknown>;
  return min == null && max == null ? String(value ?? "") : `${min ?? ""}–${max ?? ""}`;
}

function read(control: Control): unknown {
  const text = control.value.trim();
  switch (control.dataset.kind) {
    case "number":
      return /^\d+$/.test(text) ? Number(text) : text;
    case "size": {
      const [range, min, max] = RANGE.exec(text) ?? [];
      return range ? { min: Number(min), max: Number(max) } : /^\d+$/.test(text) ? Number(text) : text;
    }
    case "list":
      return text ? text.split(",").map((part) => part.trim()).filter(Boolean) : undefined;
    case "lines":
      return text ? text.split("\n").map((line) => line.trim()).filter(Boolean) : undefined;
    case "pair":
      return text ? Object.fromEntries([text.split(" ")]) : undefined;
    case "switch":
      return (control as HTMLInputElement).checked || undefined; // off is what a spec means that does not say it
    case "flag":
      return text ? text === "true" : undefined;
    default:
      return text;
  }
}
