// What the server found in a spec: the list above the editor, the marks in it, and the ways to each place.
import { toast } from "../toast";
import type { Finding, Verdict } from "./check";
import type { Mark } from "./editor";
import { pathOf, Spec } from "./spec";
import { texts } from "./texts";

const LINKED = 3;

export function showFindings(list: HTMLElement, { errors, warnings }: Verdict): void {
  list.replaceChildren(...errors.map((finding) => row(finding, "no")), ...warnings.map((finding) => row(finding, "warn")));
  list.hidden = list.childElementCount === 0;
}

export const lineOf = (finding: Finding, text: string): number => finding.line ?? new Spec(text).lineOf(pathOf(finding.path), text);

/** What the editor marks: the key that a finding names, as it is the key that has to be found, not its value. */
export function marksOf(verdict: Verdict, text: string): Mark[] {
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

/** ": path path path and 2 more": links to the places of the first findings, as many as a phone's bar has room for. */
export function waysTo(findings: Finding[]): Node[] {
  const links = findings.slice(0, LINKED).map((finding) => {
    const link = wayTo(finding);
    link.className = "underlined";
    link.textContent = finding.path || (finding.line ? texts.line(finding.line) : texts.spec);
    return link;
  });
  const more = findings.length - links.length;
  const nodes: Node[] = [document.createTextNode(": "), ...links.flatMap((link, n) => (n ? [document.createTextNode(" "), link] : [link]))];
  return more ? [...nodes, document.createTextNode(texts.more(more))] : nodes;
}

function wayTo(finding: Finding): HTMLAnchorElement {
  const link = document.createElement("a");
  link.href = "#";
  Object.assign(link.dataset, { goPath: finding.path, goLine: String(finding.line ?? 1), goColumn: String(finding.column ?? 1) });
  return link;
}

function row(finding: Finding, kind: string): HTMLLIElement {
  const item = document.createElement("li");
  item.className = kind;
  const link = wayTo(finding);
  link.textContent = finding.path || texts.spec;
  const text = document.createElement("span");
  text.textContent = finding.message;
  if (finding.line) {
    const place = document.createElement("small");
    place.textContent = texts.place(finding.line, finding.column ?? 1);
    text.append(" ", place);
  }
  if (finding.near) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "button small";
    button.textContent = texts.replace;
    button.setAttribute("aria-label", texts.replaceWith(finding.path, finding.near));
    Object.assign(button.dataset, { near: finding.near, wrong: finding.path, code: finding.code });
    text.append(" ", button);
  }
  item.append(link, text);
  return item;
}

/** Write what was meant: another name for the same value, in its place, or another value. */
export function replace(spec: Spec, { near = "", wrong = "", code = "" }: DOMStringMap): void {
  const path = pathOf(wrong);
  if (code !== "unknown_field") return spec.set(path, near);
  const meant = [...path.slice(0, -1), ...pathOf(near)];
  if (spec.get(meant) !== undefined) return toast(texts.bothSet(near, wrong), "error");
  if (meant.length === path.length) return spec.rename(path, near);
  const value = spec.get(path);
  spec.set(path, undefined);
  spec.set(meant, value);
}
