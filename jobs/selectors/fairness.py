"""What tenants were entitled to and what they received, by hours: as stored, and recomputed from attempts and events.

The newest hours are not stored yet (jobs.fairness_hours), and are computed for each reader. Of an hour that is neither
stored nor that new, nothing is known, and the report says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from django.db.models import Max, Min, Sum

from gpu_scheduler.fairness import Figures as Figures
from gpu_scheduler.fairness import Key, Terms, figures, jain
from jobs.models import FairnessHour, FairnessShare
from jobs.selectors.demand import TooMuch, held_spans, owed_spans, terms_between
from jobs.selectors.fairness_history import History, Part, history
from jobs.selectors.usage import gpus_first
from tenants.models import Tenant

HOUR = timedelta(hours=1)
FRESH = 3 * HOUR
"""At most so much is computed for a reader."""
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
COLUMNS = ("guaranteed", "share", "received", "borrowed", "lent", "shortfall")
"""Figures' fields, in order."""


@dataclass(frozen=True, slots=True)
class Line:
    """The figures of one tenant and slot type, in slot-seconds. cohort: that of now."""

    tenant: str
    cohort: str
    slot_type: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class Report:
    """Figures from a time until another, both full hours or now. unknown: spans of it of which nothing is known.

    jain: by slot type; None where no tenant was entitled to anything or received any of it. Empty for one tenant: it
    would say something of others.
    """

    start: datetime
    end: datetime
    lines: tuple[Line, ...]
    jain: Mapping[str, float | None]
    unknown: tuple[tuple[datetime, datetime], ...]
    history: History | None = None
    """The same by interval, where that was asked for."""

    @property
    def slot_types(self) -> list[str]:
        return sorted({line.slot_type for line in self.lines}, key=gpus_first)


def hour_of(at: datetime) -> datetime:
    """The begin of its hour (UTC)."""
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def fairness(
    start: datetime, end: datetime, now: datetime, tenant: Tenant | None = None, *, by_interval: bool = False
) -> Report:
    """The hours that have a part of this time, up to now; of all tenants or of one."""
    start, end = _hours(start, end, now)
    stored = FairnessHour.objects.filter(at__gte=start, at__lt=end)
    known = list(stored.order_by("at").values_list("at", flat=True))
    rows = FairnessShare.objects.filter(hour_id__gte=start, hour_id__lt=end)
    if tenant is not None:
        rows = rows.filter(tenant=tenant)
    sums: defaultdict[Key, Figures] = defaultdict(Figures)
    summed = rows.order_by().values_list("tenant__slug", "slot_type").annotate(*map(Sum, COLUMNS))
    for slug, slot_type, *values in summed:
        sums[slug, slot_type] = Figures(*values)
    fresh, newest = _newest(start, end, now, tenant)
    for _, part in newest:
        for key, found in part.items():
            sums[key] = sums[key].plus(found)
    unknown = _unknown(max(start, _founded(end, tenant)), end, known, fresh)
    report = _report(start, end, sums, unknown, whole=tenant is None)
    if not by_interval:
        return report
    found_by_interval = history(start, end, sums=sums, newest=newest, unknown=unknown, tenant=tenant)
    return replace(report, history=found_by_interval)


def recompute(start: datetime, end: datetime, now: datetime) -> Report:
    """The same of all tenants, from attempts, events and the history of quotas alone; they must still be there."""
    start, end = _hours(start, end, now)
    sums: defaultdict[Key, Figures] = defaultdict(Figures)
    at = start
    while at < end:  # a day at a time: a year has too many attempts to hold at once
        until = min(end, at + 24 * HOUR)
        for key, found in recomputed(at, until).items():
            sums[key] = sums[key].plus(found)
        at = until
    return _report(start, end, sums, (), whole=True)


def recomputed(start: datetime, end: datetime, tenant: str | None = None) -> dict[Key, Figures]:
    """By key. With a tenant, its figures are whole, and only those that lend to it or borrow from it are read."""
    return recomputed_between([start, end], tenant)[0]


def recomputed_between(edges: Sequence[datetime], tenant: str | None = None) -> list[dict[Key, Figures]]:
    """The same from each of these times to the next, all read once."""
    start, end = edges[0], edges[-1]
    terms, tenants = terms_between(start, end), None
    if tenant is not None:
        tenants = sorted({tenant}.union(*(_cohort_of(tenant, each) for each in terms)))
        terms = [
            replace(each, quotas=tuple(quota for quota in each.quotas if quota.tenant in tenants))
            for each in terms
        ]
    held, owed = held_spans(start, end, tenants), owed_spans(start, end, tenants)
    return [figures(held, owed, _cut(terms, since, until)) for since, until in pairwise(edges)]


def _cut(terms: Sequence[Terms], start: datetime, end: datetime) -> list[Terms]:
    """Those of this time alone."""
    return [
        replace(each, since=max(each.since, start), until=min(each.until, end))
        for each in terms
        if each.since < end and start < each.until
    ]


def _cohort_of(tenant: str, terms: Terms) -> set[str]:
    cohorts = {quota.cohort for quota in terms.quotas if quota.tenant == tenant and quota.cohort}
    return {quota.tenant for quota in terms.quotas if quota.cohort in cohorts}


def _hours(start: datetime, end: datetime, now: datetime) -> tuple[datetime, datetime]:
    """All hours that have a part of it, up to now; none of the future. No time that a caller may name overflows."""
    if start > now:
        return now, now
    end = max(EARLIEST, min(end, now))
    start = hour_of(min(max(EARLIEST, start), end))
    return start, max(start, min(now, hour_of(end - timedelta(microseconds=1)) + HOUR))


def _newest(
    start: datetime, end: datetime, now: datetime, tenant: Tenant | None
) -> tuple[tuple[datetime, datetime] | None, list[Part]]:
    """What is not stored yet, hour by hour, and of which time that is; None if it could not be read."""
    fresh = _fresh(start, end, now)
    if fresh is None:
        return None, []
    begin, end = fresh
    edges = [begin]
    while edges[-1] < end:
        edges.append(min(edges[-1] + HOUR, end))
    slug = None if tenant is None else tenant.slug
    try:
        found = recomputed_between(edges, slug)
    except TooMuch:
        return None, []
    mine = [{key: part[key] for key in part if slug in (None, key[0])} for part in found]
    return fresh, list(zip(edges, mine, strict=False))


def _fresh(start: datetime, end: datetime, now: datetime) -> tuple[datetime, datetime] | None:
    """What of this time is not stored yet but will be."""
    newest = FairnessHour.objects.aggregate(newest=Max("at"))["newest"]
    if newest is None or now - newest > FRESH + HOUR:
        return None
    begin = max(start, newest + HOUR)
    return (begin, end) if begin < end else None


def _founded(end: datetime, tenant: Tenant | None) -> datetime:
    """The hour in which this tenant, or the first of all, was made, `end` at most. Before it nothing was entitled to
    anything, which is known."""
    founded = tenant.created_at if tenant else Tenant.objects.aggregate(first=Min("created_at"))["first"]
    return min(hour_of(founded), end) if founded else end


def _unknown(
    start: datetime, end: datetime, known: Sequence[datetime], fresh: tuple[datetime, datetime] | None
) -> tuple[tuple[datetime, datetime], ...]:
    spans = [(at, at + HOUR) for at in known]
    found, at = [], start
    for since, until in [*spans, *([fresh] if fresh else [])]:
        if at < since:
            found.append((at, since))
        at = max(at, until)
    if at < end:
        found.append((at, end))
    return tuple(found)


def _report(
    start: datetime,
    end: datetime,
    sums: Mapping[Key, Figures],
    unknown: tuple[tuple[datetime, datetime], ...],
    *,
    whole: bool,
) -> Report:
    cohorts = dict(Tenant.objects.filter(slug__in={slug for slug, _ in sums}).values_list("slug", "cohort"))
    lines = [Line(slug, cohorts.get(slug, ""), kind, found) for (slug, kind), found in sums.items()]
    lines.sort(key=lambda line: (gpus_first(line.slot_type), line.tenant))
    by_type: defaultdict[str, list[Figures]] = defaultdict(list)
    for line in lines if whole else ():
        by_type[line.slot_type].append(line.figures)
    return Report(start, end, tuple(lines), {kind: jain(found) for kind, found in by_type.items()}, unknown)
