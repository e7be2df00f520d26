"""Geometry of what tenants were entitled to and received over a period: one small plot per tenant. Pure.

The parts are those of a bar of the table (portal.pages.meters.entitlement), upright: received as entitled, above it the
shortfall, above both what was received beyond the entitlement; a line is at the entitlement. Unknown time is hatched,
and has no parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from typing import Any

from jobs.selectors.fairness import Figures
from jobs.selectors.fairness_history import Course, History, Interval
from portal.pages.charts import axis_text, round_up

HOUR_S = 3600
HALVES = (1, 2, 3, 4, 6, 8, 10)
"""Ends of a scale whose half reads well, times a power of ten."""


@dataclass(frozen=True, slots=True)
class Band:
    """kind: the class of meters with the same meaning. path: in a box of 100 × 100."""

    kind: str
    path: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A tenant, or the sum of those that are not named. line: path data of its entitlement. Numbers in hours.

    ticks: from the top down, in devices.
    """

    name: str
    tenant: str
    label: str
    ticks: tuple[str, ...]
    bands: tuple[Band, ...]
    line: str
    entitled: float
    received: float
    shortfall: float


@dataclass(frozen=True, slots=True)
class Chart:
    """The plots of one slot type: on one scale, but for the sum of many tenants, beside which each would look small.

    unknown: begin and width, in percent. times: begin and end. rows: the table: each interval, and received and
    entitled of each plot in hours, None: unknown.
    """

    slot_type: str
    plots: tuple[Plot, ...]
    unknown: tuple[tuple[str, str], ...]
    rows: tuple[dict[str, Any], ...]
    times: tuple[datetime, datetime]
    width: timedelta

    @property
    def interval(self) -> str:
        hours = self.width // timedelta(hours=1)
        return {1: "hour", 24: "day", 168: "week"}.get(hours, f"{hours} hours")

    @property
    def by_day(self) -> bool:
        """Whether an interval is named by its day alone."""
        return self.width >= timedelta(days=1)


def charts_of(found: History) -> list[Chart]:
    """One chart per slot type; none where nothing is known."""
    if not any(each.is_known for each in found.intervals):
        return []
    kinds = dict.fromkeys(course.slot_type for course in found.courses)
    return [_chart(found, kind, [each for each in found.courses if each.slot_type == kind]) for kind in kinds]


def _chart(found: History, kind: str, courses: Sequence[Course]) -> Chart:
    shown = found.intervals
    start, end = shown[0].since, shown[-1].until
    rates = [_rates(course, shown) for course in courses]
    one_scale = _top([each for course, each in zip(courses, rates, strict=True) if course.tenant])
    tops = [one_scale if course.tenant else _top([each]) for course, each in zip(courses, rates, strict=True)]
    span = end - start
    edges = [100 * ((each.since - start) / span) for each in shown] + [100.0]
    return Chart(
        kind,
        tuple(
            _plot(course, each, edges, top) for course, each, top in zip(courses, rates, tops, strict=True)
        ),
        tuple(
            (f"{100 * ((since - start) / span):.2f}", f"{100 * ((until - since) / span):.2f}")
            for since, until in found.unknown
        ),
        tuple(_row(n, each, courses) for n, each in enumerate(shown)),
        (start, end),
        found.width,
    )


def _top(rates: Sequence[Sequence[Figures | None]]) -> float:
    """The end of a scale on which all of this fits."""
    return round_up(
        max([sum(_stack(rate)) for each in rates for rate in each if rate is not None], default=0.0), HALVES
    )


def _rates(course: Course, intervals: Sequence[Interval]) -> list[Figures | None]:
    """Devices on average over the time of which there are figures."""
    return [
        None if found is None else Figures().plus(found, 1 / each.recorded_s)
        for found, each in zip(course.figures, intervals, strict=True)
    ]


def _stack(rate: Figures) -> tuple[float, float, float]:
    """Received as entitled, short, and received beyond."""
    delivered = max(0.0, rate.entitled - rate.shortfall)
    return delivered, rate.shortfall, max(0.0, rate.received - delivered)


def _plot(course: Course, rates: Sequence[Figures | None], edges: Sequence[float], top: float) -> Plot:
    whole = reduce(Figures.plus, (each for each in course.figures if each is not None), Figures())
    name = course.tenant or f"{course.tenants} other tenant{'s' * (course.tenants > 1)}"
    unknown = sum(each is None for each in rates)
    text = f"{name}, {course.slot_type}: received {_hours(whole.received)} of {_hours(whole.entitled)} device-hours,"
    text += f" {_hours(whole.shortfall)} short"
    if unknown:
        text += f"; {unknown} of {len(rates)} intervals unknown"
    stacks = [None if rate is None else _stack(rate) for rate in rates]
    return Plot(
        name,
        course.tenant,
        text,
        tuple(axis_text(each) for each in (top, top / 2, 0)),
        tuple(
            Band(kind, _band(stacks, part, edges, top))
            for part, kind in enumerate(("part-used", "part-short", "part-beyond"))
        ),
        _line([None if rate is None else rate.entitled for rate in rates], edges, top),
        whole.entitled / HOUR_S,
        whole.received / HOUR_S,
        whole.shortfall / HOUR_S,
    )


def _band(
    stacks: Sequence[tuple[float, float, float] | None], part: int, edges: Sequence[float], top: float
) -> str:
    """One part of all stacks: a rectangle per interval that has any of it."""
    path = ""
    for n, stack in enumerate(stacks):
        if stack is not None and stack[part] > 0:
            below, above = sum(stack[:part]), sum(stack[: part + 1])
            path += f"M{edges[n]:.2f} {_y(below, top)}V{_y(above, top)}H{edges[n + 1]:.2f}V{_y(below, top)}Z"
    return path


def _line(values: Sequence[float | None], edges: Sequence[float], top: float) -> str:
    """A line of steps, interrupted where nothing is known."""
    path, drawing = "", False
    for n, value in enumerate(values):
        if value is not None:
            y = _y(value, top)
            path += (f"V{y}" if drawing else f"M{edges[n]:.2f} {y}") + f"H{edges[n + 1]:.2f}"
        drawing = value is not None
    return path


def _row(n: int, interval: Interval, courses: Sequence[Course]) -> dict[str, Any]:
    cells = [
        None if (found := course.figures[n]) is None else (found.received / HOUR_S, found.entitled / HOUR_S)
        for course in courses
    ]
    return {"since": interval.since, "in_part": interval.is_known and interval.unknown_s > 0, "cells": cells}


def _y(value: float, top: float) -> str:
    return f"{100 - 100 * value / top:.2f}"


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR_S:,.1f}"
