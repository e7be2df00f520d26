// Parts of the spec that are lists or maps (environment, data, metric rules): a row for each entry, one to add. A row
// without a name yet is in the form only, so that it is no error in the YAML.
import { icon } from "../icon";
import type { Path, Spec } from "./spec";
import { texts } from "./texts";

export type Write = (change: (spec: Spec) => void) => void;

interface Column {
  key: string; // "=" is the name of a map's entry, "" its value
  title: string;
}

export class Rows {
  private readonly path: string;
  private readonly columns: Column[];
  private readonly isMap: boolean;
  private readonly list: HTMLElement;

  /** holder: data-rows is the path in the spec, data-columns "key:title, …". */
  constructor(
    private readonly holder: HTMLElement,
    private readonly write: Write,
  ) {
    this.path = holder.dataset.rows ?? "";
    this.columns = (holder.dataset.columns ?? "").split(",").map((text) => {
      const [key = "", title = ""] = text.trim().split(":");
      return { key, title };
    });
    this.isMap = this.columns[0]?.key === "=";
    this.list = holder.querySelector<HTMLElement>("ul") as HTMLElement;
    holder.querySelector("[data-add]")?.addEventListener("click", () => this.add());
    holder.addEventListener("input", (event) => this.typed(event.target as HTMLInputElement));
  }

  show(spec: Spec): void {
    const keys = this.keys(spec);
    const rows = [...this.list.children] as HTMLElement[];
    const waiting = rows.filter((row) => !row.dataset.at);
    const known = rows.filter((row) => row.dataset.at);
    keys.forEach((key, at) => {
      const row = known[at] ?? this.row();
      if (!row.isConnected) this.list.insertBefore(row, waiting[0] ?? null);
      this.fill(row, spec, key);
    });
    for (const row of known.slice(keys.length)) row.remove();
  }

  private keys(spec: Spec): (string | number)[] {
    const value = spec.get([this.path]);
    if (value === null || typeof value !== "object") return [];
    return this.isMap ? Object.keys(value) : [...(value as unknown[]).keys()];
  }

  private fill(row: HTMLElement, spec: Spec, key: string | number): void {
    row.dataset.at = String(key);
    for (const input of row.querySelectorAll("input")) {
      if (input.dataset.key !== "=") input.dataset.path = this.pathText(key, input.dataset.key ?? "");
      if (input === document.activeElement) continue;
      const value = input.dataset.key === "=" ? key : spec.get(this.place(key, input.dataset.key ?? ""));
      input.value = value === null || value === undefined ? "" : String(value);
    }
  }

  private place(key: string | number, column: string): Path {
    return column && column !== "=" ? [this.path, key, column] : [this.path, key];
  }

  /** As the server names it in its findings. */
  private pathText(key: string | number, column: string): string {
    if (this.isMap) return `${this.path}.${key}`;
    return `${this.path}[${key}].${column}`;
  }

  private add(): void {
    const row = this.row();
    this.list.append(row);
    row.querySelector("input")?.focus();
  }

  private row(): HTMLElement {
    const row = document.createElement("li");
    for (const column of this.columns) {
      const input = document.createElement("input");
      input.className = "input block mono";
      input.dataset.key = column.key;
      input.placeholder = column.title;
      input.setAttribute("aria-label", texts.field(this.holder.dataset.title ?? "", column.title));
      input.autocomplete = "off";
      input.spellcheck = false;
      row.append(input);
    }
    const remove = document.createElement("button");
    remove.type = "button";
    remove.className = "button ghost small icon-only";
    remove.setAttribute("aria-label", texts.remove(this.holder.dataset.one ?? ""));
    remove.append(icon("x"));
    remove.addEventListener("click", () => this.remove(row));
    const problem = document.createElement("span");
    problem.className = "field-error";
    row.append(remove, problem);
    return row;
  }

  private remove(row: HTMLElement): void {
    const next = (row.nextElementSibling ?? row.previousElementSibling)?.querySelector("input");
    const { at } = row.dataset;
    row.remove();
    if (at !== undefined) this.write((spec) => spec.set(this.place(this.isMap ? at : Number(at), ""), undefined));
    (next ?? this.holder.querySelector<HTMLElement>("[data-add]"))?.focus();
  }

  private typed(input: HTMLInputElement): void {
    const row = input.closest<HTMLElement>("li");
    if (!row || !input.dataset.key && !this.isMap) return;
    if (this.isMap) return this.typedInMap(row, input);
    const { at } = row.dataset;
    const text = input.value;
    this.write((spec) => {
      const index = at === undefined ? this.keys(spec).length : Number(at);
      row.dataset.at = String(index);
      spec.put([this.path, index, input.dataset.key ?? ""], text);
    });
  }

  private typedInMap(row: HTMLElement, input: HTMLInputElement): void {
    const [name, value] = [...row.querySelectorAll("input")].map((one) => one.value) as [string, string];
    const { at } = row.dataset;
    const problem = row.querySelector(".field-error") as HTMLElement;
    if (!name.trim() && at === undefined) return; // a value that has no name yet
    this.write((spec) => {
      const taken = name !== at && this.keys(spec).includes(name);
      problem.textContent = taken ? texts.nameTaken : name.trim() ? "" : texts.nameRequired;
      if (taken || !name.trim()) return;
      row.dataset.at = name;
      if (at !== undefined && at !== name) spec.rename([this.path, at], name);
      if (at === undefined || input.dataset.key === "") spec.put([this.path, name], value);
    });
  }
}
