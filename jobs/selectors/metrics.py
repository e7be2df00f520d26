"""Metric series for charts, downsampled to buckets by the database: from roll-ups where they are fine enough.

Nothing here checks permission: callers have fetched the job (job_get).
A point is superseded when a newer attempt has reported at or around its step; such points are returned separately,
so that a chart can draw them faintly. NaN and infinities are values: minima and maxima ignore them, and each is
listed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from django.db import connection

from jobs.models import MetricRollup, Progress
from jobs.selectors.metric_sql import AXES, BUCKETS_SQL, NOT_FINITE_SQL, SPANS_SQL, SUPERSEDING_SQL
from learner_agent.wire import number_out

Axis = Literal["step", "time"]
ORDER = "order"
"""The axis of metrics whose points have an order only, in place of "step"."""
Bucket = tuple[float, float | None, float | None, float | str]
"""x of the last point, minimum and maximum of the finite values (None: there is none), last value."""

MAX_BUCKETS = 2_000
DEFAULT_BUCKETS = 500
MAX_SERIES = 200
"""Per response; a program can report thousands of names, and each series costs a scan of its points."""
MAX_NOT_FINITE = 200
COARSER = 2
"""A roll-up is read in place of its points if it is at most this many buckets wide: a wide zoom has fewer buckets then,
about half of what was asked for at worst, and reads half as many points before roll-ups take over."""


@dataclass(slots=True)
class Series:
    """One metric of one learner. complete: every point is a bucket of its own, nothing was downsampled.

    axis: "step", or ORDER if its steps only give the points' order.

    points counts those in the buckets, without superseded ones.
    """

    name: str
    rank: int
    buckets: list[Bucket] = field(default_factory=list)
    superseded: list[Bucket] = field(default_factory=list)
    not_finite: list[tuple[float, str]] = field(default_factory=list)
    complete: bool = True
    points: int = 0
    axis: str = "step"


@dataclass(frozen=True, slots=True)
class Span:
    """What one attempt reported of one series."""

    name: str
    rank: int
    attempt: int
    first: int
    last: int
    low: float
    high: float
    count: int


GLANCE_SQL = """
SELECT asked.job, found.step, found.value
FROM unnest(%(jobs)s::text[], %(names)s::text[], %(ranks)s::int[], %(lasts)s::bigint[]) AS asked (job, name, rank, last)
CROSS JOIN generate_series(0, %(points)s - 1) AS place
CROSS JOIN LATERAL (
    SELECT step, value FROM jobs_metricpoint p
    WHERE p.job_id = asked.job AND p.name = asked.name AND p.rank = asked.rank
      AND p.step >= asked.last * place / (%(points)s - 1)
    ORDER BY step LIMIT 1
) AS found
WHERE found.value <> ALL ('{NaN,Infinity,-Infinity}'::float8[])
"""


def glances(
    wanted: Sequence[tuple[str, str, int, int]], points: int = 32
) -> dict[str, list[tuple[int, float]]]:
    """A few points of one metric for each of several jobs, by job. wanted: (job, name, rank, newest step) each.

    Every point is one index lookup, so a job with a million points costs no more than one with a hundred.
    """
    if not wanted:
        return {}
    columns = dict(
        zip(("jobs", "names", "ranks", "lasts"), map(list, zip(*wanted, strict=True)), strict=True)
    )
    found: dict[str, dict[int, float]] = defaultdict(dict)
    with connection.cursor() as cursor:
        cursor.execute(GLANCE_SQL, columns | {"points": points})
        for job, step, value in cursor.fetchall():
            found[job][step] = value
    return {job: sorted(line.items()) for job, line in found.items()}


def names(job_id: str, q: str = "") -> list[str]:
    """Names of a job's metrics, or of those with q in their name, sorted."""
    return sorted({span.name for span in spans(job_id, q=q)})


def newest(job_id: str) -> int:
    """Ingest number of the newest stored point."""
    return Progress.objects.filter(job=job_id).values_list("metric_seq", flat=True).first() or 0


def lost(job_id: str) -> int:
    """Points that were not kept, for want of room or because the job has too many metrics."""
    return Progress.objects.filter(job=job_id).values_list("metric_lost", flat=True).first() or 0


def rolled(job_id: str, upto: int | None) -> int:
    """Ingest number up to which roll-ups are read, and from there points. upto: the last point to read."""
    found = Progress.objects.filter(job=job_id).values_list("metric_rolled", flat=True).first() or 0
    return found if upto is None else min(found, upto // MetricRollup.SEGMENT * MetricRollup.SEGMENT)


def ends_in_order(job_id: str) -> dict[str, int]:
    """Metrics whose points have an order, but no steps of the program's, and where the newest of each is."""
    found = Progress.objects.filter(job=job_id).values_list("metrics", flat=True).first() or {}
    return {name: newest["step"] for name, newest in found.items() if newest.get("axis") == ORDER}


def spans(
    job_id: str,
    *,
    names: Sequence[str] | None = None,
    q: str = "",
    x: Axis = "step",
    upto: int | None = None,
) -> list[Span]:
    """The series of a job with these names, or with q in their name, by name and rank: one entry per attempt."""
    with connection.cursor() as cursor:
        cursor.execute(
            SPANS_SQL.format(**AXES[x]),
            {
                "job": job_id,
                "names": list(names) if names is not None else None,
                "q": q,
                "rolled": rolled(job_id, upto),
                "upto": upto,
            },
        )
        return [Span(*row) for row in cursor.fetchall()]


def series(
    job_id: str,
    found: Sequence[Span],
    *,
    x_from: float | None = None,
    x_to: float | None = None,
    buckets: int = DEFAULT_BUCKETS,
    x: Axis = "step",
    upto: int | None = None,
) -> list[Series]:
    """The series of these spans within x_from … x_to, each in at most this number of buckets, in the same order.

    x: "step", or "time" in milliseconds since the epoch. upto: the last ingest number to include.
    Buckets are about equally wide: a roll-up of at most COARSER buckets counts in the one where it ends. Every point
    is in exactly one bucket. Cost: a row for each roll-up of the range, and one for each point where roll-ups are
    wider, cross an end of the range or of what is superseded, or are not made yet.
    """
    buckets = max(1, min(buckets, MAX_BUCKETS))
    kept = {(span.name, span.rank): Series(span.name, span.rank) for span in found}
    in_order = ends_in_order(job_id)
    for one in kept.values():
        one.axis = ORDER if one.name in in_order else one.axis
    if found:
        read = {"job": job_id, "upto": upto, "rolled": rolled(job_id, upto)}
        _fill(read, kept, found, x_from, x_to, buckets, x)
        _fill_not_finite(read, kept, x_from, x_to, x)
    return list(kept.values())


def _fill(
    read: dict[str, Any],
    kept: dict[tuple[str, int], Series],
    spans: Sequence[Span],
    x_from: float | None,
    x_to: float | None,
    buckets: int,
    x: Axis,
) -> None:
    by_series: dict[tuple[str, int], list[Span]] = defaultdict(list)
    for span in spans:
        by_series[span.name, span.rank].append(span)
    wanted: dict[str, list[Any]] = defaultdict(list)
    for (name, rank), own in by_series.items():
        low = min(span.low for span in own) if x_from is None else x_from
        high = max(span.high for span in own) if x_to is None else x_to
        # Few points are returned as they are; more of them share buckets of equal width.
        width = 0.0 if sum(span.count for span in own) <= buckets else (high - low) / buckets * (1 + 1e-9)
        for span in own:
            for key, value in zip(
                ("name", "rank", "attempt", "low", "high", "width"),
                (name, rank, span.attempt, low, high, width),
                strict=True,
            ):
                wanted[f"w_{key}"].append(value)
    several = len({span.attempt for span in spans}) > 1
    parameters: dict[str, Any] = {
        **read,
        **wanted,
        "coarser": COARSER,
        "n_name": [span.name for span in spans],
        "n_rank": [span.rank for span in spans],
        "n_attempt": [span.attempt for span in spans],
        "n_first": [span.first for span in spans],
        "n_last": [span.last for span in spans],
    }
    statement = BUCKETS_SQL.format(**AXES[x], **SUPERSEDING_SQL[several])
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        for name, rank, superseded, at, low, high, last, count in cursor.fetchall():
            one = kept[name, rank]
            (one.superseded if superseded else one.buckets).append((at, low, high, number_out(last)))
            one.complete = one.complete and count == 1
            one.points += 0 if superseded else count


def _fill_not_finite(
    read: dict[str, Any],
    kept: dict[tuple[str, int], Series],
    x_from: float | None,
    x_to: float | None,
    x: Axis,
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            NOT_FINITE_SQL.format(**AXES[x]),
            {
                **read,
                "names": [name for name, _ in kept],
                "low": x_from,
                "high": x_to,
                "limit": MAX_NOT_FINITE,
            },
        )
        for name, rank, at, value in reversed(cursor.fetchall()):
            if (name, rank) in kept:
                kept[name, rank].not_finite.append((at, str(number_out(value))))
