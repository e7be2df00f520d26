// The lines that are picked: by a click on a number, or by the address, #L20-24, or #a1-L20-24 for those of one attempt.
// Pure.

export interface Picked {
  attempt: number;
  from: number;
  to: number;
}

/** Pick line n; extend: together with what is picked in the same attempt, up to it. */
export function pick(before: Picked | null, attempt: number, n: number, extend: boolean): Picked {
  const { from, to } = extend && before?.attempt === attempt ? before : { from: n, to: n };
  return { attempt, from: Math.min(n, from), to: Math.max(n, to) };
}

export const has = (picked: Picked | null, attempt: number, n: number): boolean =>
  picked !== null && picked.attempt === attempt && n >= picked.from && n <= picked.to;

/** whole: the address has to name the attempt, as several are shown. */
export const anchorOf = ({ attempt, from, to }: Picked, whole: boolean): string =>
  `#${whole ? `a${attempt}-` : ""}L${from}${to > from ? `-${to}` : ""}`;

/** The lines that an address names. Attempt 0: it names none. */
export function linkedLines(hash: string): Picked | null {
  const found = /^#(?:a(\d+)-)?L(\d+)(?:-(\d+))?$/.exec(hash);
  return found && { attempt: Number(found[1] ?? 0), from: Number(found[2]), to: Number(found[3] ?? found[2]) };
}
