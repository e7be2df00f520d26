"""When the platform was stopped: no job waits for devices in that time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import FloatField, Func

from jobs.models import PlatformStop

Span = tuple[datetime, datetime]


def stops_between(start: datetime, end: datetime) -> list[Span]:
    """The stops that overlap this time, cut to it, in order."""
    rows = PlatformStop.objects.filter(ended_at__gt=start, began_at__lt=end).order_by("began_at")
    return [(max(began, start), min(ended, end)) for began, ended in rows.values_list("began_at", "ended_at")]


def stopped_s(start: datetime, end: datetime) -> float:
    """Seconds of this time in which the platform was stopped."""
    return sum((ended - began).total_seconds() for began, ended in stops_between(start, end))


def waited_s_sql(start: str, end: str) -> str:
    """SQL: the seconds from start to end without those in which the platform was stopped."""
    return f"""greatest(0, extract(epoch FROM {end} - {start}) - coalesce((
    SELECT sum(extract(epoch FROM least(stop.ended_at, {end}) - greatest(stop.began_at, {start})))
    FROM jobs_platformstop AS stop WHERE stop.ended_at > {start} AND stop.began_at < {end}), 0))"""


class WaitedSeconds(Func):
    """waited_s_sql as an expression of queries: of two times, from when and until when."""

    output_field = FloatField()

    def as_sql(self, compiler: Any, connection: Any, **_: Any) -> tuple[str, list[Any]]:  # type: ignore[override]
        (start, start_values), (end, end_values) = map(compiler.compile, self.get_source_expressions())
        waited = waited_s_sql("wait.began_at", "wait.ended_at")
        sql = f"(SELECT ({waited})::float8 FROM (SELECT {start} AS began_at, {end} AS ended_at) AS wait)"
        return sql, [*start_values, *end_values]
