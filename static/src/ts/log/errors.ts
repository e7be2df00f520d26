// The first error of a log, loaded or not, from the server's index.
import { api } from "../api";
import type { Lines } from "./lines";
import type { LogLevels } from "./survey";

const ASKS = 60; // each indexes a part of a log that was not indexed before

/** Its number; 0 if there is none. */
export async function firstError({ levelsPath }: Pick<Lines, "levelsPath">): Promise<number> {
  for (let ask = 0; ask < ASKS; ask += 1) {
    const found = await api<LogLevels>("GET", levelsPath);
    if (found.first_error || found.complete) return found.first_error ?? 0;
  }
  return 0;
}
