// Marks beside the scroller: where in the whole log errors and matches are.
import { ROW_PX } from "./pane";

const SVG = "http://www.w3.org/2000/svg";
const PLACES = 1000;

export class Ticks {
  readonly element = document.createElementNS(SVG, "svg");
  private readonly errors = document.createElementNS(SVG, "path");
  private readonly matches = document.createElementNS(SVG, "path");
  private drawn = "";

  constructor() {
    this.element.setAttribute("class", "ticks");
    this.element.setAttribute("viewBox", `0 0 1 ${PLACES}`);
    this.element.setAttribute("preserveAspectRatio", "none");
    this.element.setAttribute("aria-hidden", "true");
    this.errors.setAttribute("class", "error-ticks");
    this.element.append(this.matches, this.errors);
  }

  /** The marked line numbers out of `total` lines; drawn again only if something changed. */
  draw(total: number, errors: readonly number[], matches: readonly number[]): void {
    const now = [total, errors.length, matches.length, matches[0]].join();
    if (now === this.drawn) return;
    this.drawn = now;
    // A log shorter than the pane has its marks beside its lines; the style sheet bounds a longer one.
    this.element.setAttribute("height", String(total * ROW_PX));
    this.errors.setAttribute("d", marks(total, errors));
    this.matches.setAttribute("d", marks(total, matches));
  }
}

function marks(total: number, lines: readonly number[]): string {
  const places = new Set(lines.map((n) => Math.round(((n - 0.5) / total) * PLACES)));
  return [...places].map((place) => `M0 ${place}h1`).join("");
}
