// The new-job page: form and YAML in step, checked by the server while typing, drafts kept in this browser.
import { api, ApiError } from "../ts/api";
import { span } from "../ts/format";
import { Checker, type Estimate, type Finding, type Verdict } from "../ts/new-job/check";
import { type Mark, SpecEditor } from "../ts/new-job/editor";
import { SpecForm } from "../ts/new-job/form";
import { showChanges } from "../ts/new-job/changes";
import { pathOf, Spec } from "../ts/new-job/spec";
import { toast } from "../ts/toast";

const page = document.querySelector<HTMLElement>("[data-new-job]");
const field = document.querySelector<HTMLTextAreaElement>("textarea[name=spec]");
if (page && field) start(page, field);

function start(page: HTMLElement, field: HTMLTextAreaElement): void {
  const tenant = page.dataset.newJob ?? "";
  const draftKey = `luthier.draft.${tenant}`;
  const fresh = page.dataset.source === "default";
  const draft = fresh ? localStorage.getItem(draftKey) : null;
  if (draft) field.value = draft;
  document.documentElement.classList.add("scripted");

  let last: Verdict = { errors: [], warnings: [] };
  let refused = page.dataset.source === "refused"; // the server sent this text back: begin at what is wrong
  let judged = ""; // the text that `last` is about; findings on an older text hold nobody back
  const checker = new Checker(tenant, (verdict, text) => {
    last = verdict;
    judged = text;
    editor.mark(marks(verdict, editor.text));
    form.markErrors(verdict.errors);
    showVerdict(page, verdict);
    if (refused) toFirst();
    refused = false;
  });
  const toFirst = (): void => {
    const first = last.errors[0];
    if (first && !form.focus(first.path)) editor.focusLine(lineOf(first, editor.text));
  };
  const settled = (): void => {
    showChanges(page, editor.text);
    localStorage.setItem(draftKey, editor.text);
    checker.soon(editor.text);
  };
  const editor = new SpecEditor(field, () => {
    const spec = new Spec(editor.text);
    if (spec.readable) form.show(spec);
    settled();
  });
  const form = new SpecForm(page, (path, value) => {
    const spec = new Spec(editor.text);
    if (!spec.readable) return toast("Mend the YAML first; the form cannot write into it.", "error");
    spec.set(pathOf(path), value);
    editor.show(spec.toString());
    form.show(new Spec(editor.text));
    settled();
  });

  form.show(new Spec(editor.text));
  showChanges(page, editor.text);
  void checker.now(editor.text);

  page.addEventListener("click", (event) => {
    const link = (event.target as Element).closest<HTMLElement>("[data-go-path]");
    if (!link) return;
    event.preventDefault();
    const { goPath = "", goLine = "1" } = link.dataset;
    if (!form.focus(goPath)) editor.focusLine(Number(goLine));
  });
  page.querySelector("[data-validate]")?.addEventListener("click", () => void checker.now(editor.text));
  page.querySelector("[data-copy-spec]")?.addEventListener("click", () => {
    void navigator.clipboard.writeText(editor.text).then(() => toast("Spec copied.", "success"));
  });
  page.querySelector("form")?.addEventListener("submit", (event) => {
    if (last.errors.length && judged === editor.text) {
      event.preventDefault();
      return toFirst();
    }
    localStorage.removeItem(draftKey);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) page.querySelector("form")?.requestSubmit();
  });
  const upload = page.querySelector<HTMLInputElement>("[data-upload]");
  upload?.addEventListener("change", () => {
    const file = upload.files?.[0];
    if (file) void sendArchive(tenant, file).then((id) => id && put("code", { upload: id }));
  });

  function put(path: string, value: unknown): void {
    const spec = new Spec(editor.text);
    spec.set(pathOf(path), value);
    editor.show(spec.toString());
    form.show(new Spec(editor.text));
    settled();
  }
}

async function sendArchive(tenant: string, file: File): Promise<string | null> {
  const body = new FormData();
  body.append("archive", file);
  try {
    const answer = await api<{ id: string; files: number }>("POST", `/tenants/${tenant}/uploads`, body);
    toast(`${file.name}: ${answer.files} files taken, kept for 24 h.`, "success");
    return answer.id;
  } catch (error) {
    toast(error instanceof ApiError ? error.message : "The upload did not arrive.", "error");
    return null;
  }
}

const lineOf = (finding: Finding, text: string): number =>
  finding.line ?? new Spec(text).lineOf(pathOf(finding.path), text);

/** The key that a finding names is underlined, not what stands behind it: that is what has to be looked for. */
function marks(verdict: Verdict, text: string): Mark[] {
  const spec = new Spec(text);
  const mark = (finding: Finding, severity: Mark["severity"]): Mark => ({
    line: lineOf(finding, text),
    column: finding.column ?? 1,
    range: spec.readable ? spec.keyAt(pathOf(finding.path)) : null,
    message: finding.message,
    severity,
  });
  return [...verdict.errors.map((e) => mark(e, "error")), ...verdict.warnings.map((w) => mark(w, "warning"))];
}

/** When it would start, or why nobody can say. */
function when({ from, to, message }: Estimate): string {
  if (!from || !to) return message && `No estimate: ${message.charAt(0).toLowerCase()}${message.slice(1)}`;
  const [low = 0, high = 0] = [from, to].map((at) => (Date.parse(at) - Date.now()) / 1000);
  return `Starts in ${span(low, high)}.`;
}

function showVerdict(page: HTMLElement, verdict: Verdict): void {
  const list = page.querySelector<HTMLUListElement>("[data-findings]");
  const line = page.querySelector<HTMLElement>("[data-verdict]");
  if (!list || !line) return;
  list.replaceChildren(
    ...verdict.errors.map((finding) => row(finding, "no")),
    ...verdict.warnings.map((finding) => row(finding, "warn")),
  );
  list.hidden = list.childElementCount === 0;
  const quiet = page.querySelector<HTMLElement>("[data-quiet]");
  if (quiet) quiet.hidden = !list.hidden || verdict.problem !== undefined;
  const count = verdict.errors.length;
  const { now } = verdict;
  line.dataset.kind = verdict.problem || count ? "bad" : "good";
  if (verdict.problem) line.textContent = verdict.problem;
  else if (count) line.textContent = count === 1 ? "1 error" : `${count} errors`;
  else if (!now) line.textContent = "Valid";
  else line.textContent = now.starts ? `Fits: starts now on ${[...new Set(now.nodes)].join(", ")}` : `${now.message} ${when(now.estimate)}`;
}

function row(finding: Finding, kind: string): HTMLLIElement {
  const item = document.createElement("li");
  item.className = kind;
  const link = document.createElement("a");
  link.href = "#";
  link.dataset.goPath = finding.path;
  link.dataset.goLine = String(finding.line ?? 1);
  link.textContent = finding.path || "spec";
  const text = document.createElement("span");
  text.textContent = finding.message;
  item.append(link, text);
  return item;
}
