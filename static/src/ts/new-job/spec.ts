// The job spec as one YAML document: the form writes single values into it, so that comments and order stay. Pure.
import { type Document, isCollection, isMap, isNode, isScalar, isSeq, parseDocument, Scalar, visit } from "yaml";
import { texts } from "./texts";

export type Path = (string | number)[];

/** data[0].path and code.files["train.py"], as the server writes them. */
export const pathOf = (text: string): Path =>
  [...text.matchAll(/\["([^"]*)"\]|\[(\d+)\]|([^.[\]]+)/g)].map(([, quoted, index, plain]) => (index === undefined ? (quoted ?? plain ?? "") : Number(index)));

export class Spec {
  private document: Document;

  constructor(text: string) {
    this.document = parseDocument(text, { uniqueKeys: true });
  }

  /** Whether the text is a YAML map; the server checks the rest. */
  get readable(): boolean {
    return this.document.errors.length === 0 && isMap(this.document.contents);
  }

  /** Whether a value is written once and used elsewhere, which the server refuses. */
  get hasAliases(): boolean {
    let found = false;
    visit(this.document, {
      Alias() {
        found = true;
        return visit.BREAK;
      },
    });
    return found;
  }

  /** Why the text cannot be read, and where; null if it can. */
  get problem(): { line: number; column: number; message: string } | null {
    const error = this.document.errors[0];
    if (error) {
      const { line = 1, col = 1 } = error.linePos?.[0] ?? {};
      return { line, column: col, message: error.message.split(/ at line \d/)[0] ?? "" };
    }
    return this.readable ? null : { line: 1, column: 1, message: texts.notYaml };
  }

  get(path: Path): unknown {
    const node = this.document.getIn(path, true);
    return isScalar(node) ? node.value : this.plain(path);
  }

  /** Write one value, a text of several lines as a block; undefined or "" removes the key, and empty maps above it. */
  set(path: Path, value: unknown): void {
    if (value === undefined || value === "") {
      if (!this.document.hasIn(path)) return;
      this.document.deleteIn(path);
      for (let depth = path.length - 1; depth > 0; depth -= 1) {
        const parent = this.document.getIn(path.slice(0, depth), true);
        if (!isMap(parent) || parent.items.length) break;
        this.document.deleteIn(path.slice(0, depth));
      }
      return;
    }
    if (typeof value === "string" && value.includes("\n")) return this.put(path, value);
    const old = this.document.getIn(path, true);
    if (isScalar(old) && old.type === Scalar.BLOCK_LITERAL) delete old.type;
    if (isScalar(old) && typeof value !== "object") old.value = value;
    else this.write(path, typeof value === "object" ? this.document.createNode(value) : value);
  }

  /** Put a value at a path. What is on the way there and holds no values ("resources:" without any) becomes a map. */
  private write(path: Path, value: unknown): void {
    for (let depth = 1; depth < path.length; depth += 1) {
      const parent = this.document.getIn(path.slice(0, depth), true);
      if (parent === undefined) break;
      if (!isCollection(parent)) this.document.setIn(path.slice(0, depth), this.document.createNode({}));
    }
    this.document.setIn(path, value);
  }

  /** Write one text, also an empty one; a text of several lines becomes a block. */
  put(path: Path, text: string): void {
    const old = this.document.getIn(path, true);
    const node = isScalar(old) ? old : new Scalar(text);
    node.value = text;
    if (text.includes("\n")) node.type = Scalar.BLOCK_LITERAL;
    if (node !== old) this.write(path, node);
  }

  /** Give an entry of a map another name, in its place. */
  rename(path: Path, name: string): void {
    const parent = this.document.getIn(path.slice(0, -1), true);
    const last = String(path[path.length - 1]);
    const pair = isMap(parent) ? parent.items.find((one) => String(isScalar(one.key) ? one.key.value : one.key) === last) : undefined;
    if (pair) pair.key = new Scalar(name);
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

  /** Where the key that a path names is in the text, or the entry of a list; the nearest one above it if it is missing. */
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
      if (value === null || typeof value !== "object" || !Object.hasOwn(value, part)) return undefined;
      value = (value as Record<string | number, unknown>)[part];
    }
    return value;
  }
}
