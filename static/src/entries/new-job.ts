// The new-job page: form and YAML in step, checked by the server while typing, drafts kept in this browser.
import { api, ApiError } from "../ts/api";
import { counted } from "../ts/format";
import { Checker, type Finding, type Verdict } from "../ts/new-job/check";
import { type Mark, SpecEditor } from "../ts/new-job/editor";
import { SpecForm } from "../ts/new-job/form";
import { showChanges } from "../ts/new-job/changes";
import { showChecks, showOutlook, when } from "../ts/new-job/outlook";
import { pathOf, Spec } from "../ts/new-job/spec";
import { toast } from "../ts/toast";

const page = document.querySelector<HTMLElement>("[data-new-job]");
const field = document.querySelector<HTMLTextAreaElement>("textarea[name=spec]");
if (page && field) start(page, field);

function start(page: HTMLElement, field: HTMLTextAreaElement): void {
  const tenant = page.dataset.newJob ?? "";
  const draftKey = `luthier.draft.${tenant}`;
  const fresh = page.dataset.source === "default";
  const given = field.value;
  const draft = fresh ? readDraft(draftKey) : null;
  if (draft) field.value = draft.text;
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
    if (first && !form.focus(first.path)) editor.focusLine(lineOf(first, editor.text), first.column);
  };
  const settled = (): void => {
    showChanges(page, editor.text);
    localStorage.setItem(draftKey, JSON.stringify({ text: editor.text, at: Date.now() } satisfies Draft));
    checker.soon(editor.text);
  };
  const read = (): void => {
    const spec = new Spec(editor.text);
    showUnreadable(page, spec);
    form.lock(!spec.readable);
    if (spec.readable) form.show(spec);
  };
  const editor = new SpecEditor(field, () => {
    read();
    settled();
  });
  const write = (change: (spec: Spec) => void): void => {
    const spec = new Spec(editor.text);
    if (!spec.readable) return; // the form is locked then
    change(spec);
    editor.show(spec.toString());
    form.show(new Spec(editor.text));
    settled();
  };
  const form = new SpecForm(page, write);

  read();
  showChanges(page, editor.text);
  void checker.now(editor.text);
  if (draft && draft.text !== given) {
    offerAnew(page, draft, () => {
      localStorage.removeItem(draftKey);
      editor.show(given);
      read();
      void checker.now(given);
    });
  }

  page.addEventListener("click", (event) => {
    const near = (event.target as Element).closest<HTMLElement>("[data-near]")?.dataset;
    if (near?.near) return write((spec) => replace(spec, near));
    const link = (event.target as Element).closest<HTMLElement>("[data-go-path]");
    if (!link) return;
    event.preventDefault();
    const { goPath = "", goLine = "1", goColumn = "1" } = link.dataset;
    if (!form.focus(goPath)) editor.focusLine(Number(goLine), Number(goColumn));
  });
  page.querySelector("[data-validate]")?.addEventListener("click", () => void checker.now(editor.text));
  page.querySelector("[data-copy-spec]")?.addEventListener("click", () => {
    void navigator.clipboard.writeText(editor.text).then(() => toast("Spec copied.", "success"));
  });
  page.querySelector("form")?.addEventListener("submit", (event) => {
    if (last.errors.length && judged === editor.text) {
      event.preventDefault();
      toast(`Not submitted: ${counted(last.errors.length, "error")} to mend first.`, "error");
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
    if (file) void sendArchive(tenant, file).then((id) => id && write((spec) => spec.set(["code"], { upload: id })));
  });
}

interface Draft {
  text: string;
  at: number;
}

function readDraft(key: string): Draft | null {
  try {
    return JSON.parse(localStorage.getItem(key) ?? "null") as Draft | null;
  } catch {
    return null; // kept by an older version
  }
}

/** Say that this is what somebody typed before, and how to be rid of it. */
function offerAnew(page: HTMLElement, draft: Draft, anew: () => void): void {
  const note = page.querySelector<HTMLElement>("[data-draft]");
  const time = note?.querySelector("time");
  if (!note || !time) return;
  const at = new Date(draft.at);
  const today = at.toDateString() === new Date().toDateString();
  time.dateTime = at.toISOString();
  time.textContent = at.toLocaleString("en-GB", today ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" });
  note.hidden = false;
  note.querySelector("[data-anew]")?.addEventListener("click", () => {
    anew();
    note.hidden = true;
    page.querySelector<HTMLElement>("#f-name")?.focus();
  });
}

/** Say that the text is no YAML, where, and what the form shows meanwhile. */
function showUnreadable(page: HTMLElement, spec: Spec): void {
  const note = page.querySelector<HTMLElement>("[data-unreadable]");
  const { problem } = spec;
  if (!note) return;
  note.hidden = !problem;
  const link = note.querySelector("a");
  if (!problem || !link) return;
  link.textContent = `Line ${problem.line}, column ${problem.column}`;
  Object.assign(link.dataset, { goLine: String(problem.line), goColumn: String(problem.column) });
  const why = note.querySelector("[data-why]");
  if (why) why.textContent = problem.message;
}

async function sendArchive(tenant: string, file: File): Promise<string | null> {
  const body = new FormData();
  body.append("archive", file);
  try {
    const answer = await api<{ id: string; files: number }>("POST", `/tenants/${tenant}/uploads`, body);
    toast(`${file.name}: ${counted(answer.files, "file")} taken, kept for 24 h.`, "success");
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

function showVerdict(page: HTMLElement, verdict: Verdict): void {
  const list = page.querySelector<HTMLUListElement>("[data-findings]");
  const line = page.querySelector<HTMLElement>("[data-verdict]");
  if (!list || !line) return;
  list.replaceChildren(
    ...verdict.errors.map((finding) => row(finding, "no")),
    ...verdict.warnings.map((finding) => row(finding, "warn")),
  );
  list.hidden = list.childElementCount === 0;
  const count = verdict.errors.length;
  const { now } = verdict;
  const kind = verdict.problem || count ? "bad" : !now || now.starts ? "good" : (page.dataset.fix ?? "").split(" ").includes(now.code) ? "bad" : "wait";
  showChecks(page, verdict);
  showOutlook(page, verdict, kind);
  const badge = page.querySelector<HTMLElement>("[data-count]");
  if (badge) [badge.textContent, badge.hidden] = [String(count), !count];
  line.dataset.kind = kind;
  if (verdict.problem) line.textContent = verdict.problem;
  else if (count) line.replaceChildren(counted(count, "error"), ...firstOf(verdict.errors));
  else if (!now) line.textContent = "Valid";
  else line.textContent = now.starts ? `Fits: starts now on ${[...new Set(now.nodes)].join(", ")}` : `${now.message} ${when(now.estimate)}`;
}


/** The way to the first of them. */
function firstOf([first]: Finding[]): Node[] {
  if (!first) return [];
  const link = go(document.createElement("a"), first);
  link.className = "ul";
  link.textContent = first.path || (first.line ? `line ${first.line}` : "spec");
  return [document.createTextNode(": "), link];
}

function go(link: HTMLAnchorElement, finding: Finding): HTMLAnchorElement {
  link.href = "#";
  Object.assign(link.dataset, { goPath: finding.path, goLine: String(finding.line ?? 1), goColumn: String(finding.column ?? 1) });
  return link;
}

function row(finding: Finding, kind: string): HTMLLIElement {
  const item = document.createElement("li");
  item.className = kind;
  const link = go(document.createElement("a"), finding);
  link.textContent = finding.path || "spec";
  const text = document.createElement("span");
  text.textContent = finding.message;
  if (finding.line) {
    const place = document.createElement("small");
    place.textContent = `Line ${finding.line}, column ${finding.column ?? 1}`;
    text.append(" ", place);
  }
  if (finding.near) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "btn s";
    button.textContent = "Replace";
    button.setAttribute("aria-label", `Replace ${finding.path} by ${finding.near}`);
    Object.assign(button.dataset, { near: finding.near, wrong: finding.path, code: finding.code });
    text.append(" ", button);
  }
  item.append(link, text);
  return item;
}

/** Write what was meant: another name for the same value, where it belongs, or another value. */
function replace(spec: Spec, { near = "", wrong = "", code = "" }: DOMStringMap): void {
  const path = pathOf(wrong);
  if (code !== "unknown_field") return spec.set(path, near);
  const meant = [...path.slice(0, -1), ...pathOf(near)];
  if (spec.get(meant) !== undefined) return toast(`${near} is there already: remove ${wrong}, or that.`, "error");
  if (meant.length === path.length) return spec.rename(path, near);
  const value = spec.get(path);
  spec.set(path, undefined);
  spec.set(meant, value);
}
