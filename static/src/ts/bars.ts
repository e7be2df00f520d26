// What gets the focus scrolls clear of the bars that stay: a page's head, and the one below a form or on a phone.

const BARS: [selector: string, side: "Top" | "Bottom"][] = [
  [".top", "Top"],
  [".submit-bar", "Bottom"],
  [".bottom-bar", "Bottom"],
];
const AIR = 8; // px

function measure(): void {
  const sums = { Top: AIR, Bottom: AIR };
  for (const [selector, side] of BARS) {
    const bar = document.querySelector<HTMLElement>(selector);
    if (bar && ["sticky", "fixed"].includes(getComputedStyle(bar).position)) sums[side] += bar.offsetHeight;
  }
  const { style } = document.documentElement;
  style.scrollPaddingTop = `${sums.Top}px`;
  style.scrollPaddingBottom = `${sums.Bottom}px`;
}

export function startBars(): void {
  const sizes = new ResizeObserver(measure);
  for (const [selector] of BARS) for (const bar of document.querySelectorAll(selector)) sizes.observe(bar);
  addEventListener("resize", measure);
  measure();
}
