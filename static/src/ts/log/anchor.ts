// The lines that an address names: #L20-24, and #a1-L20-24 for those of one attempt. Pure.

export function linkedLines(hash: string): { attempt: number; from: number; to: number } | null {
  const found = /^#(?:a(\d+)-)?L(\d+)(?:-(\d+))?$/.exec(hash);
  return found && { attempt: Number(found[1] ?? 0), from: Number(found[2]), to: Number(found[3] ?? found[2]) };
}

export const anchor = (attempt: number, from: number, to: number, whole: boolean): string =>
  `#${whole ? `a${attempt}-` : ""}L${from}${to > from ? `-${to}` : ""}`;
