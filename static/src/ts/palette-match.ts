// What of a list matches what was typed: every word must occur, in any order. A word's start counts more than its middle.

export function matching<One extends { text: string }>(typed: string, all: readonly One[]): One[] {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const scored = all.map((one) => ({ one, score: score(one.text.toLowerCase(), words) })).filter(({ score }) => score >= 0);
  return scored.sort((a, b) => b.score - a.score).map(({ one }) => one); // a sort keeps the order of equals
}

/** How many of the words start a word of the text; -1 if one does not occur. */
function score(text: string, words: readonly string[]): number {
  let starts = 0;
  for (const word of words) {
    if (!text.includes(word)) return -1;
    if (` ${text}`.includes(` ${word}`)) starts += 1;
  }
  return starts;
}
