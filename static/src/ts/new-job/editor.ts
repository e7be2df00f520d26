// The YAML editor: CodeMirror over the plain textarea, which stays the form's field and works alone without scripts.
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import { HighlightStyle, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { type Diagnostic, lintGutter, setDiagnostics } from "@codemirror/lint";
import { EditorState } from "@codemirror/state";
import { EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";

export interface Mark {
  line: number;
  column: number;
  /** What is underlined; without it the rest of the line. */
  range?: [from: number, to: number] | null;
  message: string;
  severity: "error" | "warning";
}

const colours = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--link)" },
  { tag: tags.string, color: "var(--green-fg)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--violet-fg)" },
  { tag: tags.comment, color: "var(--text-3)" },
]);

export class SpecEditor {
  private readonly view: EditorView;
  private quiet = false;

  constructor(
    field: HTMLTextAreaElement,
    private readonly changed: () => void,
  ) {
    this.view = new EditorView({
      state: EditorState.create({
        doc: field.value,
        extensions: [
          EditorView.cspNonce.of(document.querySelector<HTMLMetaElement>("meta[name=style-nonce]")?.content ?? ""),
          lineNumbers(),
          history(),
          highlightActiveLine(),
          lintGutter(),
          yaml(),
          indentUnit.of("  "),
          syntaxHighlighting(colours),
          EditorState.tabSize.of(2),
          // Tab indents; Escape, then Tab, leaves the editor.
          keymap.of([...defaultKeymap, ...historyKeymap, indentWithTab]),
          EditorView.contentAttributes.of({ "aria-label": "Job spec in YAML", "aria-multiline": "true", tabindex: "0" }),
          EditorView.updateListener.of((update) => {
            if (!update.docChanged) return;
            field.value = update.state.doc.toString();
            if (!this.quiet) this.changed();
          }),
        ],
      }),
    });
    field.hidden = true;
    field.after(this.view.dom);
  }

  get text(): string {
    return this.view.state.doc.toString();
  }

  /** Replace the text from outside, without calling back; the cursor stays where it can. */
  show(text: string): void {
    if (text === this.text) return;
    this.quiet = true;
    const head = Math.min(this.view.state.selection.main.head, text.length);
    this.view.dispatch({
      changes: { from: 0, to: this.view.state.doc.length, insert: text },
      selection: { anchor: head },
    });
    this.quiet = false;
  }

  mark(marks: Mark[]): void {
    const { doc } = this.view.state;
    const diagnostics: Diagnostic[] = marks.map((mark) => {
      if (mark.range && mark.range[1] <= doc.length) return { from: mark.range[0], to: mark.range[1], severity: mark.severity, message: mark.message };
      const line = doc.line(Math.min(Math.max(mark.line, 1), doc.lines));
      const from = Math.min(line.from + Math.max(mark.column - 1, 0), line.to);
      return { from, to: line.to, severity: mark.severity, message: mark.message };
    });
    this.view.dispatch(setDiagnostics(this.view.state, diagnostics));
  }

  focusLine(line: number): void {
    const { doc } = this.view.state;
    const at = doc.line(Math.min(Math.max(line, 1), doc.lines)).from;
    this.view.dispatch({ selection: { anchor: at }, effects: EditorView.scrollIntoView(at, { y: "center" }) });
    this.view.focus();
  }
}
