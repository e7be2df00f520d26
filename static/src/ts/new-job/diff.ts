// What differs between two job specs, value by value. Pure.

type Values = Map<string, string>;

/** One value that differs; undefined: the spec does not have it. */
export interface Change {
  path: string;
  before: string | undefined;
  after: string | undefined;
}

export function diff(before: unknown, after: unknown): Change[] {
  const [old, fresh] = [values(before), values(after)];
  const paths = [...new Set([...old.keys(), ...fresh.keys()])].filter((path) => old.get(path) !== fresh.get(path));
  return paths.map((path) => ({ path, before: old.get(path), after: fresh.get(path) }));
}

/** Every value by its path; a list of plain values is one value. */
function values(value: unknown, path = "", found: Values = new Map()): Values {
  if (Array.isArray(value) && value.some((part) => part !== null && typeof part === "object")) {
    value.forEach((part, at) => values(part, `${path}[${at}]`, found));
  } else if (value !== null && typeof value === "object" && !Array.isArray(value)) {
    for (const [key, part] of Object.entries(value)) values(part, path ? `${path}.${key}` : key, found);
  } else found.set(path, Array.isArray(value) ? value.join(", ") : String(value));
  return found;
}

/** The beginning of a value, or of what is different in a long one, at most this number of characters. */
export function excerpt(text: string, other: string, most: number): string {
  let same = 0;
  while (text.length > most && same < text.length && text[same] === other[same]) same += 1;
  const from = Math.max(0, same - 20);
  return (from ? "…" : "") + text.slice(from, from + most) + (text.length > from + most ? "…" : "");
}
