// What a draft of the quota matrix posts: each field beside what its sender saw there.
const SEEN: Record<string, string> = { limit: "if", term: "was" };

/** Leave out every field that still has what its sender saw: a draft is as large as its changes, not as the matrix. */
export function leaveOutUnchanged(form: FormData): void {
  for (const [name, value] of [...form]) {
    const [what = "", ...of] = name.split(":");
    const seen = [SEEN[what], ...of].join(":");
    if (!SEEN[what] || form.get(seen) !== value) continue;
    form.delete(name);
    form.delete(seen);
  }
}
