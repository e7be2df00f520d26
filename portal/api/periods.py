"""The period of a query: `from` and `to`, both optional."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from portal.api.errors import MalformedRequest
from tenants.errors import problem


def period(query: Mapping[str, Any], *, usual: timedelta, most: timedelta) -> tuple[datetime, datetime]:
    """From and to; without a time zone they are UTC. By default up to now, from the begin of the day (UTC) that is
    `usual` before. Raises MalformedRequest if that is no period, or longer than `most`."""
    end = aware(query.get("to")) or timezone.now()
    start = aware(query.get("from")) or _before(end, usual)
    if not timedelta(0) < end - start <= most:
        text = f"must be before `to`, by at most {most.days} days"
        wrong = problem("from", "out_of_range", text, start.isoformat())
        raise MalformedRequest("The period is not valid.", code="invalid", errors=[wrong])
    return start, end


def _before(end: datetime, span: timedelta) -> datetime:
    """The begin of the day (UTC) of end - span, but not before the year 1."""
    earliest = datetime.min.replace(tzinfo=UTC)
    if end - earliest < span:
        return earliest
    return (end - span).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def aware(at: datetime | None) -> datetime | None:
    """The time of a query, which is UTC without a zone."""
    return at.replace(tzinfo=UTC) if at and at.tzinfo is None else at
