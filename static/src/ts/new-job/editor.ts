// The YAML editor: CodeMirror over the plain textarea, which stays the form's field and works without scripts.
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import { yaml } from "@codemirror/lang-yaml";
import { HighlightStyle, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { type Diagnostic, lintGutter, setDiagnostics } from "@codemirror/lint";
import { EditorState, type Extension } from "@codemirror/state";
import { EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { texts } from "./texts";

export interface Mark {
  line: number;
  column: number;
  /** What is underlined; without it the rest of the line. */
  range?: [from: number, to: number] | null;
  message: string;
  severity: "error" | "warning";
}

const colors = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--link)" },
  { tag: tags.string, color: "var(--green-fg)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--violet-fg)" },
  { tag: tags.comment, color: "var(--text-3)" },
]);

function submit(view: EditorView): boolean {
  view.dom.closest("form")?.requestSubmit();
  return true;
}

/** After Escape Tab leaves the editor, however slowly it is pressed, until something is typed or the focus comes back. */
function escape(view: EditorView): boolean {
  view.setTabFocusMode(true);
  return false;
}

const leaving: Extension = [
  EditorView.domEventHandlers({ blur: (_event, view) => view.setTabFocusMode(false) }),
  EditorView.updateListener.of(({ docChanged, view }) => docChanged && view.setTabFocusMode(false)),
];

/** What every editor of the page has; its keys are in the hint that #editor-keys shows. */
const common = (label: string): Extension[] => [
  EditorView.cspNonce.of(document.querySelector<HTMLMetaElement>("meta[name=style-nonce]")?.content ?? ""),
  lineNumbers(),
  history(),
  highlightActiveLine(),
  syntaxHighlighting(colors),
  // Before the default keys, of which one takes Ctrl+Enter for a blank line.
  keymap.of([{ key: "Mod-Enter", run: submit }, { key: "Escape", run: escape }, ...defaultKeymap, ...historyKeymap, indentWithTab]),
  leaving,
  EditorView.contentAttributes.of({ "aria-label": label, "aria-describedby": "editor-keys", "aria-multiline": "true", tabindex: "0" }),
];

/** An editor of one code file. */
export interface Plain {
  dom: HTMLElement;
  show(text: string): void;
  focus(): void;
  destroy(): void;
}

export function plainEditor(text: string, label: string, isPython: boolean, changed: (text: string) => void): Plain {
  let quiet = false;
  const listener = EditorView.updateListener.of((update) => {
    if (update.docChanged && !quiet) changed(update.state.doc.toString());
  });
  const extensions = [...common(label), ...(isPython ? [python(), indentUnit.of("    ")] : []), listener];
  const view = new EditorView({ state: EditorState.create({ doc: text, extensions }) });
  return {
    dom: view.dom,
    focus: () => view.focus(),
    destroy: () => view.destroy(),
    show(fresh) {
      if (fresh === view.state.doc.toString()) return;
      quiet = true;
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: fresh } });
      quiet = false;
    },
  };
}

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
          ...common(texts.editor),
          lintGutter(),
          yaml(),
          indentUnit.of("  "),
          EditorState.tabSize.of(2),
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

  /** Replace the text from outside, without calling back; the cursor stays where it can. */
  show(text: string): void {
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

  focusAt(at: number): void {
    this.view.dispatch({ selection: { anchor: at } });
    this.view.focus();
  }

  focusLine(line: number, column = 1): void {
    const { doc } = this.view.state;
    const { from, to } = doc.line(Math.min(Math.max(line, 1), doc.lines));
    const at = Math.min(from + Math.max(column - 1, 0), to);
    this.view.dispatch({ selection: { anchor: at }, effects: EditorView.scrollIntoView(at, { y: "center" }) });
    this.view.focus();
    this.view.dom.scrollIntoView({ block: "nearest" });
  }
}
