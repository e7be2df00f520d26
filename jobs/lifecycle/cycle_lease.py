"""The scheduling cycle's lease: one row with a random token, so that one worker at a time makes passes.

No lock of a session: a worker that freezes loses the lease when it ends, and a connection pool may sit in between. The
holder extends it before each step of a pass and inside each admission's transaction, which locks the row until the
commit. So a worker whose lease was taken over admits nothing, even if it goes on in the middle of a pass. See
docs/adr/0035-rows-not-session-locks.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.db import connection

from jobs.lifecycle.leases import dead_owner, owner
from jobs.models import PeriodicTask, SchedulingLease

FREE = f"""(token IS NULL OR until < clock_timestamp() OR ({dead_owner("owner")})
  OR until > clock_timestamp() + make_interval(secs => 2 * %(lease_s)s))"""
"""The last part: no lease is that long, so the database's clock was set back."""
TAKE = f"""
UPDATE jobs_schedulinglease SET owner = %(owner)s, token = gen_random_uuid(),
  until = clock_timestamp() + make_interval(secs => %(lease_s)s)
WHERE name = (
  SELECT name FROM jobs_schedulinglease WHERE name = %(name)s AND {FREE} FOR NO KEY UPDATE SKIP LOCKED
) RETURNING token"""
EXTEND = """
UPDATE jobs_schedulinglease SET until = clock_timestamp() + make_interval(secs => %(lease_s)s)
WHERE name = %(name)s AND token = %(token)s"""
RELEASE = (
    "UPDATE jobs_schedulinglease SET owner = '', token = NULL, until = NULL WHERE name = %s AND token = %s"
)


class CycleTakenOver(Exception):
    """Another worker has the cycle's lease: this pass must write nothing more."""


@contextmanager
def held() -> Iterator[uuid.UUID | None]:
    """The lease's token for the time of the block; None if another worker has it."""
    SchedulingLease.objects.get_or_create(name=PeriodicTask.CYCLE)
    with connection.cursor() as cursor:
        cursor.execute(TAKE, _values(owner=owner()))
        row = cursor.fetchone()
    token: uuid.UUID | None = row[0] if row else None
    try:
        yield token
    finally:
        if token is not None:
            with connection.cursor() as cursor:
                cursor.execute(RELEASE, [PeriodicTask.CYCLE, token])


def extend(token: uuid.UUID) -> None:
    """Have the lease for its whole length again; inside a transaction also keep it until the commit. Raises
    CycleTakenOver."""
    with connection.cursor() as cursor:
        cursor.execute(EXTEND, _values(token=token))
        if cursor.rowcount != 1:
            raise CycleTakenOver


def note_problem(problem: str) -> None:
    """Record why the last pass did not complete, for /readyz; empty: it did."""
    SchedulingLease.objects.filter(name=PeriodicTask.CYCLE).exclude(problem=problem).update(problem=problem)


def _values(**more: Any) -> dict[str, Any]:
    return {"name": PeriodicTask.CYCLE, "lease_s": settings.LUTHIER_LEASE_S} | more
