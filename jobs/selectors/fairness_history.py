"""What tenants were entitled to and received, interval by interval of a period: for charts, and bounded whatever the
period is.

Intervals are as long as it takes for MOST_INTERVALS of them to cover the period. Of each slot type, the tenants that
were short of the most are named, and the others are one sum. So a year has no more rows than a day.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection

from gpu_scheduler.fairness import NONE, Figures, Key
from jobs.selectors.platform_stops import Span, stops_between
from jobs.selectors.usage import gpus_first
from tenants.models import Tenant

MOST_INTERVALS = 64
NAMED = 8
"""Tenants of a type that are named."""
WIDTHS = tuple(timedelta(hours=hours) for hours in (1, 6, 24, 168))
ORIGIN = datetime(2024, 1, 1, tzinfo=UTC)
"""A Monday: intervals of a week begin with one."""
CLOSE = 8
"""Unknown spans with less than this part of an interval (1/8) between them are shown as one."""

Part = tuple[datetime, Mapping[Key, Figures]]
"""The begin of a full hour, or of the time since the newest one, and what its figures are."""

SUMS = """
WITH named AS MATERIALIZED (
  SELECT slot_type, id AS tenant_id, slug
  FROM unnest(%(types)s::text[], %(slugs)s::text[]) AS named(slot_type, slug) JOIN tenants_tenant USING (slug)
)
SELECT part.slot_type, coalesce(slug, ''), since,
  sum(guaranteed), sum(share), sum(received), sum(borrowed), sum(lent), sum(shortfall)
FROM unnest(%(since)s::timestamptz[], %(until)s::timestamptz[]) AS interval(since, until) CROSS JOIN LATERAL (
  SELECT slot_type, tenant_id, sum(guaranteed) AS guaranteed, sum(share) AS share, sum(received) AS received,
    sum(borrowed) AS borrowed, sum(lent) AS lent, sum(shortfall) AS shortfall
  FROM jobs_fairnessshare
  WHERE hour_id >= since AND hour_id < until AND (%(tenant)s::bigint IS NULL OR tenant_id = %(tenant)s)
  GROUP BY slot_type, tenant_id
) AS part LEFT JOIN named ON named.slot_type = part.slot_type AND named.tenant_id = part.tenant_id
GROUP BY 1, 2, 3
"""
"""Rows: intervals x named tenants and the others, of each type. Interval by interval: a year at once would be sorted on
disk."""


@dataclass(frozen=True, slots=True)
class Interval:
    """recorded_s: seconds of it of which there are figures; unknown_s: those without, and those in which the platform
    was stopped, when what jobs held is known, but not what waited."""

    since: datetime
    until: datetime
    recorded_s: float
    unknown_s: float

    @property
    def lasted_s(self) -> float:
        return (self.until - self.since).total_seconds()

    @property
    def is_known(self) -> bool:
        """Whether anything is known of it: otherwise it has no figures, not figures of zero."""
        return self.unknown_s < self.lasted_s


@dataclass(frozen=True, slots=True)
class Course:
    """The figures of one tenant and slot type by interval; None where the interval is unknown.

    tenant: empty for the sum of the tenants that are not named, of which there are so many (tenants).
    """

    tenant: str
    tenants: int
    slot_type: str
    figures: tuple[Figures | None, ...]


@dataclass(frozen=True, slots=True)
class History:
    """unknown: spans without figures, or in which the platform was stopped, those close to each other as one."""

    width: timedelta
    intervals: tuple[Interval, ...]
    courses: tuple[Course, ...]
    unknown: tuple[Span, ...]


def history(
    start: datetime,
    end: datetime,
    *,
    sums: Mapping[Key, Figures],
    newest: Sequence[Part],
    unknown: Iterable[Span],
    tenant: Tenant | None,
) -> History:
    """From full hours, as a report of the period (jobs.selectors.fairness) reads them: its sums, what it computed of
    the newest time, and its spans without figures. tenant: the only one whose figures are read."""
    width = next((each for each in WIDTHS if (end - start) / each < MOST_INTERVALS), WIDTHS[-1])
    names = _names(sums)
    unrecorded = list(unknown)
    dark = _joined([*unrecorded, *stops_between(start, end)], timedelta(0))
    intervals = _intervals(start, end, width, unrecorded, dark)
    at = _sums(intervals, names, tenant)
    for since, found in newest:
        for (slug, kind), figures in found.items():
            key = kind, slug if (kind, slug) in names else "", max(start, _interval_of(since, width))
            at[key] = at[key].plus(figures)
    named = [(kind, slug, 1) for kind, slug in names]
    others = defaultdict[str, int](int)
    for slug, kind in sums:
        others[kind] += (kind, slug) not in names
    lines = sorted([*named, *((kind, "", n) for kind, n in others.items() if n)], key=_place)
    courses = tuple(_course(line, at, intervals) for line in lines)
    return History(width, intervals, courses, tuple(_joined(dark, width / CLOSE)))


def _names(sums: Mapping[Key, Figures]) -> set[tuple[str, str]]:
    """Slot type and tenant of those that are named."""
    of: defaultdict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for (slug, kind), found in sums.items():
        of[kind].append((-found.shortfall, -found.entitled, slug))
    return {(kind, slug) for kind, each in of.items() for *_, slug in sorted(each)[:NAMED]}


def _sums(
    intervals: Sequence[Interval], names: set[tuple[str, str]], tenant: Tenant | None
) -> defaultdict[tuple[str, str, datetime], Figures]:
    """By slot type, tenant or "", and begin of the interval."""
    ordered = sorted(names)
    values: dict[str, Any] = {
        "since": [each.since for each in intervals],
        "until": [each.until for each in intervals],
        "types": [kind for kind, _ in ordered],
        "slugs": [slug for _, slug in ordered],
        "tenant": None if tenant is None else tenant.pk,
    }
    found: defaultdict[tuple[str, str, datetime], Figures] = defaultdict(lambda: NONE)
    with connection.cursor() as cursor:
        cursor.execute(SUMS, values)
        for kind, slug, since, *figures in cursor.fetchall():
            found[kind, slug, since] = Figures(*figures)
    return found


def _interval_of(at: datetime, width: timedelta) -> datetime:
    return ORIGIN + (at - ORIGIN) // width * width


def _intervals(
    start: datetime, end: datetime, width: timedelta, unrecorded: Sequence[Span], dark: Sequence[Span]
) -> tuple[Interval, ...]:
    """The first and the last one are cut to the period."""
    found, at = [], _interval_of(start, width)
    while at < end:
        since, until = max(at, start), min(at + width, end)
        recorded_s = (until - since).total_seconds() - _within(unrecorded, since, until)
        found.append(Interval(since, until, recorded_s, _within(dark, since, until)))
        at += width
    return tuple(found)


def _within(spans: Iterable[Span], since: datetime, until: datetime) -> float:
    """Seconds of the spans that are in this time."""
    parts = ((min(b, until) - max(a, since)).total_seconds() for a, b in spans)
    return sum(part for part in parts if part > 0)


def _course(
    line: tuple[str, str, int],
    at: Mapping[tuple[str, str, datetime], Figures],
    intervals: Sequence[Interval],
) -> Course:
    kind, slug, tenants = line
    figures = (at.get((kind, slug, each.since), NONE) if each.is_known else None for each in intervals)
    return Course(slug, tenants, kind, tuple(figures))


def _place(line: tuple[str, str, int]) -> tuple[bool, str, bool, str]:
    """GPUs before CPUs, tenants by name, the others last."""
    kind, slug, _ = line
    return *gpus_first(kind), not slug, slug


def _joined(spans: Iterable[Span], least: timedelta) -> list[Span]:
    """In order; spans that overlap, or have no more than this between them, as one."""
    found: list[Span] = []
    for since, until in sorted(spans):
        if found and since - found[-1][1] <= least:
            found[-1] = found[-1][0], max(found[-1][1], until)
        else:
            found.append((since, until))
    return found
