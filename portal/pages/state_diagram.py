"""The drawing of the job states: docs/job_states.md lists the transitions, this module places each of them.

The text of the file is the truth. If a transition has no route here, the page shows the source, and a test fails.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from jobs.states import FINAL
from portal.pages.badges import phase_badge

WIDTH, HEIGHT = 1040, 366
BOX_W, BOX_H, STEP = 104, 34, 178
TOP, MIDDLE, BOTTOM = 46, 166, 276
"""Centers of the rows: the path of a job that is not stopped, its exit, and where the exit leads."""
LEFT = 90
ARROW = re.compile(r"^\s*(\[\*\]|[A-Z]+) --> (\[\*\]|[A-Z]+)(?:: (.*))?$", re.MULTILINE)
HEADER = "stateDiagram-v2"
MARK = mark_safe('marker-end="url(#arrow-end)"')
LINE = 12
"""Height of one line of a transition's label."""

Point = tuple[float, float]


def _column(n: float) -> float:
    return LEFT + n * STEP


@dataclass(frozen=True, slots=True)
class Box:
    """A state by its center."""

    x: float
    y: float
    width: float = BOX_W

    @property
    def left(self) -> float:
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        return self.x + self.width / 2

    @property
    def top(self) -> float:
        return self.y - BOX_H / 2

    @property
    def bottom(self) -> float:
        return self.y + BOX_H / 2


@dataclass(frozen=True, slots=True)
class Route:
    """The corners of a transition's line, and where its label is: on which side of that point."""

    points: tuple[Point, ...]
    label_at: Point | None = None
    anchor: str = "middle"


BOXES = {
    "QUEUED": Box(_column(0), TOP),
    "DEPLOYING": Box(_column(1), TOP),
    "DOWNLOADING": Box(_column(2), TOP),
    "PROCESSING": Box(_column(3), TOP),
    "STORING": Box(_column(4), TOP),
    "COMPLETED": Box(_column(5), TOP),
    "STOPPING": Box(_column(2.5), MIDDLE, 3 * STEP + BOX_W),
    "FAILED": Box(_column(5), MIDDLE),
    "HALTED": Box(_column(1), BOTTOM),
    "CANCELED": Box(_column(3), BOTTOM),
}


def _routes() -> dict[tuple[str, str], Route]:
    at = BOXES
    queued, storing, stopping, halted = at["QUEUED"], at["STORING"], at["STOPPING"], at["HALTED"]
    failed, canceled = at["FAILED"], at["CANCELED"]

    def ahead(source: str, target: str) -> Route:
        start, end = at[source], at[target]
        return Route(((start.right, TOP), (end.left, TOP)), ((start.right + end.left) / 2, TOP - 8))

    def down(source: str, target: str, x: float, label_x: float, anchor: str) -> Route:
        start, end = at[source], at[target]
        return Route(((x, start.bottom), (x, end.top)), (label_x, (start.bottom + end.top) / 2), anchor)

    def below(x: float, y: float) -> Point:
        return (queued.x + x, y)

    lane = failed.left - 24
    under = BOTTOM + 46
    return {
        ("QUEUED", "DEPLOYING"): ahead("QUEUED", "DEPLOYING"),
        ("DEPLOYING", "DOWNLOADING"): ahead("DEPLOYING", "DOWNLOADING"),
        ("DOWNLOADING", "PROCESSING"): ahead("DOWNLOADING", "PROCESSING"),
        ("PROCESSING", "STORING"): ahead("PROCESSING", "STORING"),
        ("STORING", "COMPLETED"): ahead("STORING", "COMPLETED"),
        ("DEPLOYING", "STOPPING"): down("DEPLOYING", "STOPPING", at["DEPLOYING"].x, 0, "start"),
        ("DOWNLOADING", "STOPPING"): down("DOWNLOADING", "STOPPING", at["DOWNLOADING"].x, 0, "start"),
        ("PROCESSING", "STOPPING"): down("PROCESSING", "STOPPING", at["PROCESSING"].x, 0, "start"),
        ("STORING", "STOPPING"): down("STORING", "STOPPING", storing.x - 14, storing.x - 20, "end"),
        ("STOPPING", "STORING"): Route(
            ((storing.x + 14, stopping.top), (storing.x + 14, storing.bottom)),
            (storing.x + 20, (storing.bottom + stopping.top) / 2),
            "start",
        ),
        ("STORING", "FAILED"): Route(
            ((storing.right, TOP + 10), (lane, TOP + 10), (lane, MIDDLE - 8), (failed.left, MIDDLE - 8)),
            (lane + 6, (TOP + MIDDLE) / 2 + 6),
            "start",
        ),
        ("STOPPING", "FAILED"): Route(((stopping.right, MIDDLE + 8), (failed.left, MIDDLE + 8))),
        ("STOPPING", "HALTED"): down("STOPPING", "HALTED", halted.x, 0, "start"),
        ("STOPPING", "CANCELED"): down("STOPPING", "CANCELED", canceled.x, 0, "start"),
        ("HALTED", "CANCELED"): Route(
            ((halted.right, BOTTOM), (canceled.left, BOTTOM)),
            ((halted.right + canceled.left) / 2, BOTTOM - 8),
        ),
        ("STOPPING", "QUEUED"): Route(
            ((stopping.left, MIDDLE), below(36, MIDDLE), below(36, queued.bottom)),
            (queued.x + 42, MIDDLE - 28),
            "start",
        ),
        ("QUEUED", "HALTED"): Route(
            (below(8, queued.bottom), below(8, BOTTOM - 8), (halted.left, BOTTOM - 8)),
            (halted.left - 8, BOTTOM - 16),
            "end",
        ),
        ("HALTED", "QUEUED"): Route(
            ((halted.left, BOTTOM + 8), below(-16, BOTTOM + 8), below(-16, queued.bottom)),
            (halted.left - 8, BOTTOM + 22),
            "end",
        ),
        ("QUEUED", "CANCELED"): Route(
            (
                below(-40, queued.bottom),
                below(-40, under),
                (canceled.x, under),
                (canceled.x, canceled.bottom),
            ),
            ((halted.x + canceled.x) / 2, under - 8),
        ),
        ("QUEUED", "FAILED"): Route(
            (
                below(-48, queued.bottom),
                below(-48, under + 24),
                (failed.x, under + 24),
                (failed.x, failed.bottom),
            ),
            ((canceled.x + failed.x) / 2, under + 16),
        ),
    }


ROUTES = _routes()


def drawing(source: str) -> SafeString | None:
    """The SVG of a mermaid diagram, and its transitions as text; None if it is not one that this page can draw."""
    transitions = ARROW.findall(source)
    between = [(start, end, label) for start, end, label in transitions if "[*]" not in (start, end)]
    if not source.startswith(HEADER) or {(start, end) for start, end, _ in between} != set(ROUTES):
        return None
    begin = next(BOXES[end] for start, end, _ in transitions if start == "[*]")
    into = format_html('<path class="change" d="M{} {}H{}" {}/>', begin.left - 20, TOP, begin.left, MARK)
    lines = [(_line(ROUTES[start, end]), MARK) for start, end, _ in between]
    labels = [(_label(ROUTES[start, end], label),) for start, end, label in between if label]
    described = [(start, end, f": {label}" if label else "") for start, end, label in between]
    return format_html(
        '<div class="table-wrap states" tabindex="0" role="region" aria-label="Drawing of the states">'
        '<svg viewBox="0 0 {} {}" role="img" '
        'aria-label="The states of a job and its transitions, listed as text below">'
        '<defs><marker id="arrow-end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0L8 4L0 8Z"/></marker></defs><circle cx="{}" cy="{}" r="6"/>{}{}{}{}</svg></div>'
        "<details><summary>The transitions as text</summary><ul>{}</ul></details>\n",
        *(WIDTH, HEIGHT, begin.left - 26, TOP, into),
        format_html_join("", '<path class="change" d="{}" {}/>', lines),
        format_html_join("", "{}", ((_box(name),) for name in BOXES)),
        format_html_join("", "{}", labels),
        format_html_join("", "<li>{} → {}{}</li>", described),
    )


def _line(route: Route) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in route.points)


def _box(name: str) -> SafeString:
    """An end has a second border; a stop is amber, as in a job's header."""
    box, color = BOXES[name], phase_badge(name.title()).family
    rect = '<rect x="{}" y="{}" width="{}" height="{}" rx="6"/>'
    outer = format_html(rect, box.left, box.top, box.width, BOX_H)
    inner = format_html(rect, box.left + 3, box.top + 3, box.width - 6, BOX_H - 6) if name in FINAL else ""
    text = format_html('<text x="{}" y="{}">{}</text>', box.x, box.y + 4, name)
    return format_html('<g class="{}">{}{}{}</g>', color, outer, inner, text)


def _label(route: Route, text: str) -> SafeString:
    """A long label over two lines, the last of which is where a single line would be."""
    assert route.label_at is not None
    x, y = route.label_at
    middle = min(
        (at for at, sign in enumerate(text) if sign == " "), key=lambda at: abs(at - len(text) / 2), default=0
    )
    lines = [text[:middle], text[middle + 1 :]] if middle and len(text) > 10 else [text]
    spans = format_html_join(
        "",
        '<tspan x="{}" y="{}">{}</tspan>',
        ((x, y - LINE * (len(lines) - 1 - n), line) for n, line in enumerate(lines)),
    )
    return format_html('<text class="transition-label" text-anchor="{}">{}</text>', route.anchor, spans)
