"""One row and one advisory lock per worker process: when it dies, its lock is free at once and its leases are open.

The lock is held by one connection of its own thread (the ticker's). A lost connection loses the seat: a new one is
taken, and what was leased under the old one may be taken over, which is harmless (docs/adr/0010-leases-and-seats.md).
"""

from __future__ import annotations

import os
import socket

from django.db import connection, transaction
from django.db.models.functions import Now

from jobs.models import WORKER_LOCKS, Worker

_owner = ""


def owner() -> str:
    """The name under which this process takes leases: its seat's number, or something that only lease time ends."""
    return _owner or f"process-{socket.gethostname()}-{os.getpid()}"


def take(name: str) -> int:
    """Sit down: a row, and its lock on the calling thread's connection. Returns the seat's number."""
    global _owner
    seat = Worker.objects.create(name=name)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s, %s)", [WORKER_LOCKS, seat.pk])
    _owner = str(seat.pk)
    return seat.pk


def keep(seat: int) -> bool:
    """Write down that this worker looked just now. False if the seat is gone and another must be taken."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objid = %s"
            " AND pid = pg_backend_pid()",
            [WORKER_LOCKS, seat],
        )
        return cursor.fetchone() is not None and Worker.objects.filter(pk=seat).update(seen_at=Now()) == 1


def leave(seat: int) -> None:
    """Stand up on a clean exit, so that nobody takes this worker for silent."""
    global _owner
    _owner = ""
    Worker.objects.filter(pk=seat).delete()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [WORKER_LOCKS, seat])


def clear_dead() -> int:
    """Remove the rows of workers that died without standing up; returns how many."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM jobs_worker w WHERE seen_at < clock_timestamp() - interval '1 hour' AND NOT EXISTS ("
            " SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objid = w.id)",
            [WORKER_LOCKS],
        )
        return int(cursor.rowcount)
