"""What does not fit on a page, measured in it: sideways scrolling, tables cut off, clipped buttons or labels."""

from __future__ import annotations

from playwright.sync_api import Page

MEASURE = r"""() => {
  const found = [];
  const SKIPPED = '.visually-hidden, .skip, svg, x-chart, .cm-editor, thead';
  const LABELS = 'button, .button, label, .badge, .chip, .tag, summary, h1, h2, h3, dt, legend';
  const shown = e => e.checkVisibility({visibilityProperty: true}) && !e.closest(SKIPPED);
  const words = e => (e.innerText || e.getAttribute('aria-label') || '').trim().slice(0, 50);
  const name = e => [e.tagName.toLowerCase(), ...e.classList].join('.') + ` "${words(e)}"`;
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth)
    found.push(`the page scrolls sideways: ${root.scrollWidth} > ${root.clientWidth}`);
  // What may scroll sideways holds what cannot be broken: a matrix that is edited. Tables of words fit.
  for (const table of document.querySelectorAll('.table-wrap:not(.may-scroll)'))
    if (shown(table) && table.scrollWidth > table.clientWidth + 1)
      found.push(`a table is cut off by ${table.scrollWidth - table.clientWidth}: ${table.ariaLabel}`);
  for (const e of document.querySelectorAll(LABELS)) {
    const box = e.getBoundingClientRect(), style = getComputedStyle(e);
    if (!shown(e) || box.width < 2 || box.height < 2 || style.display === 'inline') continue;
    const over = e.scrollWidth - e.clientWidth;
    const full = e.title || e.querySelector('[title]');  // cut on purpose, with the whole on hover
    if (over > 1 && !full) found.push(`clipped by ${over}: ${name(e)}`);
    for (let p = e.parentElement; p && p !== document.body; p = p.parentElement) {
      const cut = getComputedStyle(p).overflowX;
      if (cut === 'visible') continue;
      if (cut === 'hidden' && box.right > p.getBoundingClientRect().right + 1.5) found.push(`cut off: ${name(e)}`);
      break;
    }
  }
  return [...new Set(found)];
}"""


def misfits(page: Page) -> list[str]:
    """One line for everything that does not fit."""
    found: list[str] = page.evaluate(MEASURE)
    return found
