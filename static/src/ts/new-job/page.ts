// The new-job page: form and YAML synced, checked by the server while a person types, drafts kept in this browser.
import { toast } from "../toast";
import { showChanges } from "./changes";
import { Checker, type Verdict } from "./check";
import { DraftStore, offerStartOver } from "./draft";
import { lineOf, marksOf, replace, showFindings, waysTo } from "./findings";
import { SpecForm } from "./form";
import { showChecks, showOutlook } from "./outlook";
import { Spec } from "./spec";
import { SpecText } from "./spec-text";
import { texts } from "./texts";
import { takeUploads } from "./uploads";
import { kindOf, oneLine } from "./verdict";

export function startNewJob(): void {
  const page = document.querySelector<HTMLElement>("[data-new-job]");
  const field = document.querySelector<HTMLTextAreaElement>("textarea[name=spec]");
  if (page && field) start(page, field);
}

function start(page: HTMLElement, field: HTMLTextAreaElement): void {
  const tenant = page.dataset.newJob ?? "";
  const fresh = page.dataset.source === "default";
  const given = field.value;
  const drafts = new DraftStore(tenant, fresh ? given : "");
  const draft = fresh ? drafts.read() : null;
  if (draft) field.value = draft.text;

  let last: Verdict = { errors: [], warnings: [] };
  let refused = page.dataset.source === "refused"; // the server sent this text back: begin at the first error
  let checked = ""; // the text that `last` is about; errors in an older text do not prevent submitting
  const checker = new Checker(tenant, (verdict, text) => {
    last = verdict;
    checked = text;
    editor.mark(marksOf(verdict, editor.text));
    form.markErrors(verdict.errors);
    showVerdict(page, verdict);
    if (refused) toFirst();
    refused = false;
  });
  const toFirst = (): void => {
    const first = last.errors[0];
    if (first && !form.focus(first.path)) editor.focusLine(lineOf(first, editor.text), first.column);
  };
  const settled = (): void => {
    showChanges(page, editor.text);
    drafts.write(editor.text);
    checker.soon(editor.text);
  };
  const read = (): void => {
    const spec = new Spec(editor.text);
    showUnreadable(page, spec);
    form.lock(!spec.readable);
    if (spec.readable) form.show(spec);
  };
  const editor = new SpecText(field, () => {
    read();
    settled();
  });
  const write = (change: (spec: Spec) => void): boolean => {
    const spec = new Spec(editor.text);
    if (!spec.readable) return false; // the form is locked then
    change(spec);
    editor.show(spec.toString());
    form.show(new Spec(editor.text));
    settled();
    return true;
  };
  const form = new SpecForm(page, write);

  read();
  page.dataset.ready = "";
  showChanges(page, editor.text);
  void checker.now(editor.text);
  if (draft && draft.text !== given) {
    offerStartOver(page, draft, () => {
      drafts.remove();
      editor.show(given);
      read();
      void checker.now(given);
    });
  }

  page.addEventListener("click", (event) => {
    const near = (event.target as Element).closest<HTMLElement>("[data-near]")?.dataset;
    if (near?.near) return void write((spec) => replace(spec, near));
    const link = (event.target as Element).closest<HTMLElement>("[data-go-path]");
    if (!link) return;
    event.preventDefault();
    const { goPath = "", goLine = "1", goColumn = "1" } = link.dataset;
    if (!form.focus(goPath)) editor.focusLine(Number(goLine), Number(goColumn));
  });
  page.querySelector("[data-validate]")?.addEventListener("click", () => void checker.now(editor.text));
  page.querySelector("[data-copy-spec]")?.addEventListener("click", () => {
    void navigator.clipboard.writeText(editor.text).then(() => toast(texts.copied, "success"));
  });
  const uploading = takeUploads(page, tenant, (id) => write((spec) => spec.set(["code"], { upload: id })));
  const sent = page.querySelector("form");
  sent?.addEventListener("submit", (event) => {
    if (uploading()) {
      event.preventDefault(); // the spec still has the code of before
      return toast(texts.uploadFirst, "error");
    }
    if (!last.errors.length || checked !== editor.text) return;
    event.preventDefault();
    toast(texts.fixFirst(last.errors.length), "error");
    toFirst();
  });
  sent?.addEventListener("submitted", () => drafts.remove());
  sent?.addEventListener("refused", (event) => {
    event.preventDefault(); // the page keeps its text; what is wrong comes from the check
    document.title = (event as CustomEvent<Document>).detail.title;
    refused = true;
    void checker.now(editor.text);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.defaultPrevented) sent?.requestSubmit();
  });
}

/** Show why and where the text is not YAML. */
function showUnreadable(page: HTMLElement, spec: Spec): void {
  const note = page.querySelector<HTMLElement>("[data-unreadable]");
  const { problem } = spec;
  if (!note) return;
  note.hidden = !problem;
  const link = note.querySelector("a");
  if (!problem || !link) return;
  link.textContent = texts.place(problem.line, problem.column);
  Object.assign(link.dataset, { goLine: String(problem.line), goColumn: String(problem.column) });
  const why = note.querySelector("[data-why]");
  if (why) why.textContent = problem.message;
}

function showVerdict(page: HTMLElement, verdict: Verdict): void {
  const list = page.querySelector<HTMLUListElement>("[data-findings]");
  const line = page.querySelector<HTMLElement>("[data-verdict]");
  if (!list || !line) return;
  const { errors } = verdict;
  const kind = kindOf(verdict);
  showFindings(list, verdict);
  showChecks(page, verdict);
  showOutlook(page, verdict, kind);
  const badge = page.querySelector<HTMLElement>("[data-count]");
  if (badge) [badge.textContent, badge.hidden] = [String(errors.length), !errors.length];
  line.dataset.kind = kind;
  if (errors.length && !verdict.problem) line.replaceChildren(texts.errors(errors.length), ...waysTo(errors));
  else line.textContent = oneLine(verdict);
}
