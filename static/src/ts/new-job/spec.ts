// The job spec as one YAML document: the form writes single values into it, so that comments and order stay.
import { type Document, isMap, isNode, isScalar, isSeq, parseDocument, stringify } from "yaml";

export type Path = (string | number)[];

export const pathOf = (text: string): Path =>
  text.split(".").map((part) => (/^\d+$/.test(part) ? Number(part) : part));

export class Spec {
  private document: Document;

  constructor(text: string) {
    this.document = parseDocument(text, { uniqueKeys: true });
  }

  /** Whether the text is YAML at all; the server says the rest. */
  get readable(): boolean {
    return this.document.errors.length === 0 && isMap(this.document.contents);
  }

  get(path: Path): unknown {
    const node = this.document.getIn(path, true);
    return isScalar(node) ? node.value : this.plain(path);
  }

  /** Write one value; undefined or "" removes the key, and empty maps above it. */
  set(path: Path, value: unknown): void {
    if (value === undefined || value === "") {
      this.document.deleteIn(path);
      for (let depth = path.length - 1; depth > 0; depth -= 1) {
        const parent = this.document.getIn(path.slice(0, depth), true);
        if (!isMap(parent) || parent.items.length) break;
        this.document.deleteIn(path.slice(0, depth));
      }
      return;
    }
    const old = this.document.getIn(path, true);
    if (isScalar(old) && typeof value !== "object") old.value = value;
    else this.document.setIn(path, typeof value === "object" ? this.document.createNode(value) : value);
  }

  toString(): string {
    return this.document.toString({ lineWidth: 110 });
  }

  toJSON(): unknown {
    return this.document.toJS();
  }

  /** Line (from 1) on which the value at a path begins, or 1. */
  lineOf(path: Path, text: string): number {
    for (let depth = path.length; depth > 0; depth -= 1) {
      const node = this.document.getIn(path.slice(0, depth), true) as { range?: [number, number, number] } | undefined;
      if (node?.range) return text.slice(0, node.range[0]).split("\n").length;
    }
    return 1;
  }

  /** Where the key stands that a path names, or the entry of a list; the nearest one above it where it is missing. */
  keyAt(path: Path): [from: number, to: number] | null {
    for (let depth = path.length; depth > 0; depth -= 1) {
      const last = path[depth - 1];
      const parent = depth > 1 ? this.document.getIn(path.slice(0, depth - 1), true) : this.document.contents;
      const pair = isMap(parent) ? parent.items.find((one) => isScalar(one.key) && String(one.key.value) === String(last)) : undefined;
      const node = pair ? pair.key : isSeq(parent) && typeof last === "number" ? parent.items[last] : undefined;
      if (isNode(node) && node.range) return [node.range[0], node.range[1]];
    }
    return null;
  }

  private plain(path: Path): unknown {
    let value: unknown = this.document.toJS();
    for (const part of path) {
      if (value === null || typeof value !== "object") return undefined;
      value = (value as Record<string | number, unknown>)[part];
    }
    return value;
  }
}

export const asYaml = (value: unknown): string => stringify(value, { lineWidth: 110 });
