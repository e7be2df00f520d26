// The scroller: draws only the visible rows, keeps the first of them in place, and follows the end on request.
// A native scroller cannot be as tall as a million lines, so beyond MAX_PX its scale is not 1: small moves are taken as
// they are, large ones (the scrollbar) in proportion.
import type { Rows } from "./rows";

export const ROW_PX = 20;
const MAX_PX = 8_000_000;
const OVERSCAN = 12;
const BLOCK = 500;

export interface PaneOptions {
  fill(row: HTMLElement, index: number): void;
  /** Rows of ROW_PX that a line takes when wrapped at this number of columns. */
  heightOf(index: number, columns: number): number;
  /** The user began or stopped following, or the place changed. */
  moved(): void;
}

export class Pane {
  readonly scroller: HTMLElement;
  following = true;
  wrap = false;
  private readonly space = document.createElement("div");
  private readonly drawn = new Map<number, HTMLElement>();
  private readonly spare: HTMLElement[] = [];
  private top = 0; // px above the first visible one, in the full height of all rows
  private reported = -1; // top when `moved` was last called
  private first = { key: "", index: 0 }; // the first visible row when last drawn
  private expected = 0; // the scrollTop that was set here; any other value comes from the user
  private columns = 120;
  private blockHeights: number[] = [];
  private frame = 0;
  private stale = true;

  constructor(
    public rows: Rows,
    private readonly options: PaneOptions,
  ) {
    this.scroller = document.createElement("div");
    this.scroller.className = "log-scroller";
    this.space.className = "space";
    this.scroller.append(this.space);
    this.scroller.addEventListener("scroll", () => this.onScroll(), { passive: true });
    this.scroller.addEventListener("wheel", (event) => event.deltaY < 0 && this.pause(), { passive: true });
    new ResizeObserver(() => this.relayout()).observe(this.scroller);
  }

  /** Rows were added: draw soon. Unless the end is followed, the first visible line stays in place. */
  refresh(): void {
    this.stale = true;
    this.schedule();
  }

  /** Show other rows; key: the line to keep in place. */
  swap(rows: Rows, key: string): void {
    const offset = this.top - this.topOf(this.firstIndex());
    this.rows = rows;
    this.first = { key: "", index: 0 };
    this.blockHeights = [];
    const index = key ? rows.indexOf(key) : -1;
    if (index >= 0) this.top = this.topOf(index) + offset;
    this.refresh();
  }

  relayout(): void {
    const index = this.firstIndex();
    const offset = this.top - this.topOf(index);
    this.columns = Math.max(20, Math.floor((this.scroller.clientWidth - this.gutter()) / this.charWidth()));
    this.blockHeights = [];
    this.top = this.topOf(index) + offset;
    this.refresh();
  }

  follow(): void {
    this.following = true;
    this.options.moved();
    this.refresh();
  }

  pause(): void {
    if (!this.following) return;
    this.following = false;
    this.options.moved();
  }

  /** Show this row in the middle and stop following. */
  show(index: number): void {
    this.pause();
    this.top = this.topOf(index) - this.scroller.clientHeight / 2 + ROW_PX;
    this.refresh();
  }

  scrollBy(px: number): void {
    this.top += px;
    this.refresh();
    this.afterUser(px);
  }

  toStart(): void {
    this.pause();
    this.top = 0;
    this.refresh();
  }

  firstIndex(): number {
    return this.indexAt(this.top);
  }

  /** Index of the last row that is fully visible. */
  lastIndex(): number {
    return Math.min(this.rows.length - 1, this.indexAt(this.top + this.scroller.clientHeight - ROW_PX));
  }

  /** Indices of the rows that are drawn: those in sight and a few beyond. */
  drawnRows(): Iterable<number> {
    return this.drawn.keys();
  }

  /** Fill again what is drawn: hits or timestamps changed. */
  refill(): void {
    for (const [index, row] of this.drawn) this.options.fill(row, index);
  }

  private schedule(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  private draw(): void {
    const view = this.scroller.clientHeight;
    if (this.wrap && this.stale) this.measure();
    else if (this.stale && this.rows.shifts && !this.following) this.keep();
    const full = this.fullHeight();
    const most = Math.max(0, full - view);
    if (this.following) this.top = most;
    this.top = Math.max(0, Math.min(this.top, most));
    const real = Math.min(full, MAX_PX);
    const height = `${real}px`;
    if (this.space.style.height !== height) this.space.style.height = height;
    const realMost = Math.max(1, real - view);
    const scaled = full > MAX_PX ? (this.top / Math.max(1, most)) * realMost : this.top;
    if (Math.abs(this.scroller.scrollTop - scaled) > 0.5) this.scroller.scrollTop = scaled;
    this.expected = this.scroller.scrollTop;
    const from = Math.max(0, this.indexAt(this.top) - OVERSCAN);
    const to = Math.min(this.rows.length - 1, this.indexAt(this.top + view) + OVERSCAN);
    this.rows.need(from, to);
    for (const [index, row] of this.drawn) {
      if (index < from || index > to) {
        this.drawn.delete(index);
        this.spare.push(row);
      }
    }
    const shift = this.expected - this.top;
    let below: HTMLElement | null = null;
    // From the last to the first, so that the document has the rows in the order in which they are read and copied.
    for (let index = to; index >= from; index -= 1) {
      let row = this.drawn.get(index);
      const isNew = !row;
      if (!row) {
        row = this.spare.pop() ?? document.createElement("div");
        this.drawn.set(index, row);
        this.space.insertBefore(row, below);
      }
      below = row;
      if (isNew || this.stale) this.options.fill(row, index);
      const place = `translateY(${this.topOf(index) + shift}px)`;
      if (row.style.transform !== place) row.style.transform = place;
    }
    for (const row of this.spare) row.remove();
    this.spare.length = 0;
    this.stale = false;
    if (this.rows.shifts) this.first = { key: this.rows.keyAt(this.firstIndex()), index: this.firstIndex() };
    if (this.top !== this.reported) {
      this.reported = this.top;
      this.options.moved();
    }
  }

  /** Rows may have come above those in sight. */
  private keep(): void {
    const index = this.first.key ? this.rows.indexOf(this.first.key) : -1;
    if (index >= 0) this.top += (index - this.first.index) * ROW_PX;
  }

  private onScroll(): void {
    const moved = this.scroller.scrollTop - this.expected;
    if (Math.abs(moved) < 1) return;
    const full = this.fullHeight();
    const view = this.scroller.clientHeight;
    if (full <= MAX_PX || Math.abs(moved) < view * 2) this.top += moved;
    else this.top = (this.scroller.scrollTop / Math.max(1, MAX_PX - view)) * (full - view);
    this.expected = this.scroller.scrollTop;
    this.schedule();
    this.afterUser(moved);
  }

  /** The user has scrolled by so many px: down to the very end, follow again. A smooth scroll up begins there, too. */
  private afterUser(px: number): void {
    if (px < 0) this.pause();
    else if (this.top >= this.fullHeight() - this.scroller.clientHeight - 2) this.follow();
    this.options.moved();
  }

  // --- where rows are ---

  private fullHeight(): number {
    return (this.wrap ? this.blockHeights.reduce((sum, rows) => sum + rows, 0) : this.rows.length) * ROW_PX + 8;
  }

  private topOf(index: number): number {
    if (!this.wrap) return index * ROW_PX;
    const block = Math.floor(index / BLOCK);
    let rows = 0;
    for (let one = 0; one < block; one += 1) rows += this.heightOfBlock(one);
    for (let one = block * BLOCK; one < index; one += 1) rows += this.options.heightOf(one, this.columns);
    return rows * ROW_PX;
  }

  private indexAt(px: number): number {
    if (!this.wrap) return Math.max(0, Math.floor(px / ROW_PX));
    let left = px / ROW_PX;
    let block = 0;
    while (block * BLOCK < this.rows.length && left >= this.heightOfBlock(block)) {
      left -= this.heightOfBlock(block);
      block += 1;
    }
    let index = block * BLOCK;
    while (index < this.rows.length && left >= this.options.heightOf(index, this.columns)) {
      left -= this.options.heightOf(index, this.columns);
      index += 1;
    }
    return Math.min(index, Math.max(0, this.rows.length - 1));
  }

  /** Heights of blocks may have changed with what came: the first visible row keeps its place. */
  private measure(): void {
    const index = this.firstIndex();
    const offset = this.top - this.topOf(index);
    this.blockHeights = [];
    for (let block = 0; block * BLOCK < this.rows.length; block += 1) this.heightOfBlock(block);
    this.top = this.topOf(index) + offset;
  }

  private heightOfBlock(block: number): number {
    const known = this.blockHeights[block];
    if (known !== undefined) return known;
    let rows = 0;
    const end = Math.min((block + 1) * BLOCK, this.rows.length);
    for (let index = block * BLOCK; index < end; index += 1) rows += this.options.heightOf(index, this.columns);
    return (this.blockHeights[block] = rows);
  }

  private gutter(): number {
    const text = this.scroller.querySelector<HTMLElement>(".log-row .message");
    return text ? text.offsetLeft + 28 : 190;
  }

  private charWidth(): number {
    const probe = document.createElement("span");
    probe.textContent = "0".repeat(100);
    this.scroller.append(probe);
    const width = probe.getBoundingClientRect().width / 100;
    probe.remove();
    return width || 7.2;
  }
}
