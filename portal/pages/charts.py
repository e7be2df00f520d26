"""Geometry of the charts that the server draws: stacked bars by day, sparklines, a line of steps. Pure.

tenant/_bars.html draws the bars, overview.html the sparklines, console/quota_history.html and
jobs/detail/learners.html the steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from portal.pages.meters import REST, SERIES, series

HEADROOM = 4
"""The scale grows to include the capacity while that is at most this many times the highest bar."""
LABEL_EVERY = 5
"""Days from one label of the day axis to the next; the first one in a month names it."""

SPARK_WIDTH, SPARK_HEIGHT, SPARK_EDGE, SPARK_LEAST = 96.0, 26.0, 3.0, 3


@dataclass(frozen=True, slots=True)
class Block:
    """One part of a day's bar; all in percent of the plot, as text for the attributes."""

    kind: str
    x: str
    y: str
    width: str
    height: str


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of the legend with its total over the shown days."""

    name: str
    kind: str
    total: float


@dataclass(frozen=True, slots=True)
class DayRow:
    """One day for the table beside the chart: a number per key, then their sum."""

    day: date
    values: tuple[float, ...]
    total: float


@dataclass(frozen=True, slots=True)
class Bars:
    blocks: tuple[Block, ...]
    keys: tuple[Key, ...]
    ticks: tuple[str, ...]
    """Labels of the value axis from the top down, in five steps."""
    days: tuple[tuple[str, str], ...]
    """Labels of the day axis: percent and text."""
    rows: tuple[DayRow, ...]
    future: str
    """Percent at which days that are still to come begin; empty if none."""
    future_width: str
    limit: str
    """Percent from the top of the line that is possible a day; empty if it is above the plot."""
    possible: float
    """What is possible a day; 0 if that is not known."""


def stacked_days(
    values: Mapping[tuple[date, str], float],
    *,
    first: date,
    days: int,
    today: date,
    possible: float = 0.0,
    rest: str = "",
) -> Bars:
    """values: by day and name. Names are ordered by their total; those after the sixth share one color. rest: the name
    that stands for many, which comes last.

    What is possible a day is drawn as long as that leaves the highest bar a quarter of the plot.
    """
    totals: dict[str, float] = {}
    for (_, name), value in values.items():
        totals[name] = totals.get(name, 0.0) + value
    named = (name for name, total in totals.items() if total > 0)
    names = sorted(named, key=lambda name: (name == rest, -totals[name]))
    shown = [first + timedelta(days=n) for n in range(days)]
    rows = tuple(_row(day, names, values) for day in shown)
    highest = max([row.total for row in rows], default=0.0)
    top = round_up(possible if highest < possible <= HEADROOM * highest else highest)
    width = 100 / days
    ended = (today - first).days + 1
    return Bars(
        blocks=tuple(block for n, row in enumerate(rows) for block in _stack(row, n * width, width, top)),
        keys=tuple(Key(name, series(index), totals[name]) for index, name in enumerate(names)),
        ticks=tuple(axis_text(top * step / 4) for step in (4, 3, 2, 1, 0)),
        days=day_labels(first, days),
        rows=tuple(row for row in rows if row.day <= today),
        future=f"{ended * width:.2f}" if today < shown[-1] else "",
        future_width=f"{100 - ended * width:.2f}",
        limit=f"{100 - 100 * possible / top:.2f}" if 0 < possible <= top else "",
        possible=possible,
    )


def day_labels(first: date, days: int) -> tuple[tuple[str, str], ...]:
    """Of an axis of so many days: percent, in the middle of the day, and text."""
    named = [(n, first + timedelta(days=n)) for n in range(0, days, LABEL_EVERY)]
    return tuple(
        (
            f"{100 * (n + 0.5) / days:.2f}",
            f"{day.day} {day:%b}" if day.day <= LABEL_EVERY or not n else str(day.day),
        )
        for n, day in named
    )


def _row(day: date, names: Sequence[str], values: Mapping[tuple[date, str], float]) -> DayRow:
    each = tuple(values.get((day, name), 0.0) for name in names)
    return DayRow(day, each, sum(each))


def _stack(row: DayRow, x: float, width: float, top: float) -> list[Block]:
    blocks, below = [], 0.0
    for index, value in enumerate(row.values):
        if value <= 0:
            continue
        height = 100 * value / top
        kind = SERIES[index] if index < len(SERIES) else REST
        blocks.append(
            Block(
                kind,
                f"{x + 0.16 * width:.2f}",
                f"{100 - below - height:.2f}",
                f"{0.68 * width:.2f}",
                f"{height:.2f}",
            )
        )
        below += height
    return blocks


def round_up(value: float, ends: Sequence[int] = (1, 2, 4, 8, 10)) -> float:
    """The next number that is one of these times a power of ten; of the usual ones, quarters read well."""
    if value <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(value))
    return float(next(step * power for step in ends if step * power >= value))


def axis_text(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Spark:
    """line and area: path data; x and y: where the newest point is."""

    line: str
    area: str
    x: str
    y: str


def sparkline(points: Sequence[tuple[int, float]]) -> Spark | None:
    """A line of 96 × 26 without axes; None where there are too few points for a shape."""
    if len(points) < SPARK_LEAST:
        return None
    first, last = points[0][0], points[-1][0]
    low, high = min(value for _, value in points), max(value for _, value in points)
    spread = high - low

    def place(step: int, value: float) -> str:
        x = SPARK_EDGE + (SPARK_WIDTH - 2 * SPARK_EDGE) * (step - first) / (last - first)
        share = (high - value) / spread if spread else 0.5
        return f"{x:.1f} {SPARK_EDGE + (SPARK_HEIGHT - 2 * SPARK_EDGE) * share:.1f}"

    places = [place(step, value) for step, value in points]
    line = "M" + "L".join(places)
    x, y = places[-1].split()
    return Spark(line, f"{line}L{x} {SPARK_HEIGHT:.0f}L{SPARK_EDGE} {SPARK_HEIGHT:.0f}Z", x, y)


@dataclass(frozen=True, slots=True)
class Steps:
    """line: path data in a box of 100 × 100; capacity: the height of its line there."""

    line: str
    capacity: str
    first: datetime
    last: datetime


def steps(
    moves: Sequence[tuple[datetime, int]], *, total: int, capacity: int, first: datetime, last: datetime
) -> Steps:
    """How a number has moved, such as the sum of all limits of a type, as a line of steps.

    moves: when it changed and by how much, oldest first; total: what it is in the end.
    """
    value = total - sum(by for _, by in moves)
    heights = [value]
    for _, by in moves:
        heights.append(heights[-1] + by)
    top = 1.1 * max(1, capacity, *heights)
    span = (last - first).total_seconds() or 1

    def y(count: int) -> str:
        return f"{100 - 100 * count / top:.2f}"

    line = f"M0 {y(value)}"
    for (at, _), height in zip(moves, heights[1:], strict=True):
        line += f"H{100 * (at - first).total_seconds() / span:.2f}V{y(height)}"
    return Steps(f"{line}H100", y(capacity), first, last)
