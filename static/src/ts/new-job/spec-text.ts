// The text of the spec: the plain field at once, and the YAML editor over it once that is loaded.
import type { Mark, SpecEditor } from "./editor";

export const loadEditor = (): Promise<typeof import("./editor")> => import("./editor");

export class SpecText {
  private editor: SpecEditor | undefined;
  private marks: Mark[] = [];

  constructor(
    private readonly field: HTMLTextAreaElement,
    private readonly changed: () => void,
  ) {
    field.addEventListener("input", changed);
    const load = (): void => void this.load();
    if (document.readyState === "complete") load();
    else addEventListener("load", load, { once: true }); // it is large: the page is usable before
  }

  get text(): string {
    return this.field.value;
  }

  /** Replace the text from outside, without calling back; the cursor stays where it can. */
  show(text: string): void {
    if (text === this.text) return;
    if (this.editor) return this.editor.show(text);
    const at = this.field.selectionStart;
    this.field.value = text;
    if (document.activeElement === this.field) this.field.setSelectionRange(at, at);
  }

  mark(marks: Mark[]): void {
    this.marks = marks;
    this.editor?.mark(marks);
  }

  focusLine(line: number, column = 1): void {
    if (this.editor) return this.editor.focusLine(line, column);
    const lines = this.text.split("\n");
    const at = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0) + column - 1;
    this.field.focus();
    this.field.setSelectionRange(at, at);
  }

  /** Without the editor, as while the server is down, the plain field does it. */
  private async load(): Promise<void> {
    const module = await loadEditor().catch(() => null);
    if (!module) return;
    const wasFocused = document.activeElement === this.field;
    const at = this.field.selectionStart;
    this.editor = new module.SpecEditor(this.field, this.changed);
    this.editor.mark(this.marks);
    if (wasFocused) this.editor.focusAt(at);
  }
}
