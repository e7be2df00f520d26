// The code files of the spec: each opens in an editor of its own, so that Python need not be written inside YAML.
import { button } from "../button";
import { icon } from "../icon";
import { toast } from "../toast";
import type { Plain } from "./editor";
import type { Write } from "./rows";
import type { Spec } from "./spec";
import { loadEditor } from "./spec-text";
import { texts } from "./texts";

type Code = { files?: Record<string, unknown>; upload?: string } | undefined;

export class Files {
  private readonly list: HTMLElement;
  private open: { name: string; editor: Plain } | null = null;
  private shown = "";

  constructor(
    form: HTMLElement,
    private readonly write: Write,
  ) {
    this.list = form.querySelector<HTMLElement>("[data-files]") as HTMLElement;
    form.querySelector("[data-add-file]")?.addEventListener("click", () => this.add());
  }

  show(spec: Spec): void {
    const code = spec.get(["code"]) as Code;
    const files = Object.entries(code?.files ?? {});
    if (this.open && !files.some(([name]) => name === this.open?.name)) this.close();
    const fresh = JSON.stringify([files.map(([name]) => name), this.open?.name, code?.upload]);
    if (fresh === this.shown) for (const [name, text] of files) this.sizeOf(name, String(text)); // no element is replaced while a person types
    else this.draw(files, code?.upload);
    this.shown = fresh;
    const text = files.find(([name]) => name === this.open?.name)?.[1];
    if (text !== undefined) this.open?.editor.show(String(text));
  }

  private draw(files: [string, unknown][], upload: string | undefined): void {
    const holder = this.open?.editor.dom.parentElement;
    this.list.replaceChildren(
      ...files.flatMap(([name, text]) => [this.row(name, String(text)), ...(this.open?.name === name && holder ? [holder] : [])]),
      ...(upload ? [this.archive(upload)] : []),
    );
  }

  private sizeOf(name: string, text: string): void {
    const row = [...this.list.querySelectorAll<HTMLElement>("[data-file]")].find((one) => one.dataset.file === name);
    const size = row?.querySelector(".num");
    if (size) size.textContent = bytes(text);
  }

  private row(name: string, text: string): HTMLElement {
    const row = line(icon("file-code-2"));
    row.dataset.file = name;
    const label = document.createElement("input");
    label.className = "file-name mono fine-print";
    label.value = name;
    label.setAttribute("aria-label", texts.fileName(name));
    label.spellcheck = false;
    label.addEventListener("change", () => this.rename(name, label.value.trim()));
    const isOpen = this.open?.name === name;
    const edit = button(isOpen ? "chevron-down" : "pencil", isOpen ? texts.close(name) : texts.edit(name));
    edit.setAttribute("aria-expanded", String(isOpen));
    edit.addEventListener("click", () => void this.toggle(name));
    const remove = button("x", texts.removeFile(name));
    remove.addEventListener("click", () => this.write((spec) => spec.set(["code", "files", name], undefined)));
    row.append(label, note(bytes(text)), edit, remove);
    return row;
  }

  private archive(upload: string): HTMLElement {
    const row = line(icon("archive-x"));
    const label = document.createElement("span");
    label.className = "mono fine-print";
    label.textContent = texts.upload(upload);
    const remove = button("x", texts.removeArchive);
    remove.addEventListener("click", () => this.write((spec) => spec.set(["code", "upload"], undefined)));
    row.append(label, note(texts.archive), remove);
    return row;
  }

  private async toggle(name: string): Promise<void> {
    const module = await loadEditor().catch(() => null);
    if (!module) return toast(texts.noEditor, "error");
    const wasOpen = this.open?.name === name;
    this.close();
    this.write((spec) => {
      if (wasOpen) return;
      const text = String(spec.get(["code", "files", name]) ?? "");
      const editor = module.plainEditor(text, texts.fileEditor(name), name.endsWith(".py"), (changed) =>
        this.write((now) => now.put(["code", "files", this.open?.name ?? name], changed)),
      );
      const holder = document.createElement("li");
      holder.className = "file-editor";
      holder.append(editor.dom);
      this.open = { name, editor };
    });
    if (this.open) this.open.editor.focus();
    else [...this.list.querySelectorAll<HTMLElement>("[data-file]")].find((one) => one.dataset.file === name)?.querySelector<HTMLElement>("[aria-expanded]")?.focus();
  }

  private close(): void {
    this.open?.editor.dom.parentElement?.remove();
    this.open?.editor.destroy();
    this.open = null;
  }

  private rename(from: string, to: string): void {
    this.write((spec) => {
      const files = (spec.get(["code"]) as Code)?.files ?? {};
      if (!to || to === from || to in files) return;
      spec.rename(["code", "files", from], to);
      if (this.open?.name === from) this.open.name = to;
    });
  }

  /** Add a file. An archive is removed: a spec has files or an archive. */
  private add(): void {
    let name = "";
    this.write((spec) => {
      const files = (spec.get(["code"]) as Code)?.files ?? {};
      for (let n = 1; !name; n += 1) {
        const free = n === 1 ? "new.py" : `new-${n}.py`;
        if (!(free in files)) name = free;
      }
      spec.set(["code", "upload"], undefined);
      spec.put(["code", "files", name], "");
    });
    if (name) void this.toggle(name);
  }
}

const bytes = (text: string): string => texts.bytes(new Blob([text]).size);

function line(...parts: Element[]): HTMLLIElement {
  const row = document.createElement("li");
  row.append(...parts);
  return row;
}

function note(text: string): HTMLElement {
  const made = document.createElement("span");
  made.className = "tertiary fine-print num";
  made.textContent = text;
  return made;
}
