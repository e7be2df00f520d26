// Searching in the viewer: one search at a time, and which of its matches is the current one.
import { texts } from "../texts";
import type { Lines } from "./lines";
import { placeOf, type Place } from "./rows";
import { Search } from "./search";

export class Finder {
  private search: Search | undefined;
  private at = -1; // the current match

  constructor(private readonly changed: () => void) {}

  get text(): string {
    return this.search?.text ?? "";
  }

  get running(): boolean {
    return Boolean(this.search?.running);
  }

  /** Keys of the lines that match. */
  get matches(): readonly string[] {
    return this.search?.matches ?? [];
  }

  /** Key of the current match, "" if there is none. */
  get current(): string {
    return this.matches[this.at] ?? "";
  }

  /** The line up to which the search got before it stopped, 0 if it did not stop. */
  get stoppedAt(): number {
    return this.search?.stoppedAt ?? 0;
  }

  /** "2 of 7+" */
  get count(): string {
    if (!this.search) return "";
    return this.search.failed ? texts.log.searchFailed : texts.log.matches(this.at + 1, this.matches.length, this.search.running || this.search.stoppedAt > 0);
  }

  /** Search these logs, "" ends the search; true once the current match is the one nearest to `place`. */
  async find(text: string, sources: Lines[], place: () => Place): Promise<boolean> {
    this.end();
    const search = text ? new Search(text, sources, this.changed) : undefined;
    this.search = search;
    if (!search) {
      this.changed();
      return false;
    }
    await search.run();
    if (search !== this.search || search.failed || !search.matches.length) return false; // another search began meanwhile
    const { attempt, n } = place();
    const ahead = search.matches.map(placeOf).findIndex((match) => match.attempt > attempt || (match.attempt === attempt && match.n >= n));
    this.at = ahead < 0 ? search.matches.length - 1 : ahead;
    this.changed();
    return true;
  }

  /** Make another match the current one; false if there is none. */
  step(by: number): boolean {
    const count = this.matches.length;
    if (count) this.at = (this.at + by + count) % count;
    return count > 0;
  }

  update(): void {
    this.search?.update();
  }

  /** Stop searching; what was found stays. */
  stop(): void {
    this.search?.stop();
  }

  /** Search on from where it stopped. */
  resume(): void {
    void this.search?.run();
  }

  end(): void {
    this.stop();
    this.search = undefined;
    this.at = -1;
  }
}
