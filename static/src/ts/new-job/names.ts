// Which names the server takes in code. The rules are its own and come with the page (jobs/spec/paths.py).
import { texts } from "./texts";

export interface Rules {
  rules: [pattern: string, fault: string, inBytes: boolean][];
  folds: Record<string, string>;
}

/** A file or folder whose name must change, and how many files are refused for it. */
export interface Refused {
  name: string;
  why: string;
  files: number;
}

/** The names of one archive, in its order: one is refused for itself, or for one before it. */
export class Names {
  private readonly rules: { pattern: RegExp; why: string; inBytes: boolean }[];
  private readonly folds: Record<string, string>;
  private readonly taken = new Map<string, string>(); // folded; a folder's ends with /
  private readonly files = new Set<string>();

  constructor({ rules, folds }: Rules) {
    this.rules = rules.map(([pattern, why, inBytes]) => ({ pattern: new RegExp(pattern, "u"), why, inBytes }));
    this.folds = folds;
  }

  /** What of this path must change, and why; null if the server takes it. */
  problem(path: string): Omit<Refused, "files"> | null {
    const parts = path.split("/");
    const places = parts.map((_, n) => parts.slice(0, n + 1).join("/") + (n + 1 < parts.length ? "/" : ""));
    const why = this.fault(path);
    if (why) return { name: places.find((place) => this.fault(bare(place)) === why) ?? path, why };
    for (const place of places) {
      const key = this.folded(bare(place));
      const known = this.taken.get(key) ?? place;
      this.taken.set(key, known);
      if (known !== place || this.files.has(place)) return { name: place, why: texts.clash(known) };
    }
    this.files.add(path);
    return null;
  }

  private fault(path: string): string | undefined {
    const bytes = String.fromCharCode(...new TextEncoder().encode(path));
    return this.rules.find(({ pattern, inBytes }) => pattern.test(inBytes ? bytes : path))?.why;
  }

  /** As Python's casefold: lower case, one character at a time, but for those where it differs. */
  folded(path: string): string {
    return [...path.normalize("NFC")].map((one) => this.folds[one] ?? one.toLowerCase()).join("");
  }
}

const bare = (place: string): string => place.replace(/\/$/, "");

/** Everything that must be renamed before the server takes these paths; a folder once, with all that is in it. */
export function refused(paths: string[], rules: Rules): Refused[] {
  const names = new Names(rules);
  const found = new Map<string, Refused>();
  for (const path of paths) {
    const problem = names.problem(path);
    if (!problem) continue;
    const key = `${problem.name}\0${problem.why}`;
    const one = found.get(key) ?? { ...problem, files: 0 };
    one.files += 1;
    found.set(key, one);
  }
  return [...found.values()];
}

/** A name as text in which each character can be seen. */
export const visible = (name: string): string => `"${name.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (one) => `\\u{${one.codePointAt(0)?.toString(16)}}`)}"`;
