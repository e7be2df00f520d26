"""Worker registrations: one row and one advisory lock per worker process, so that its death frees its leases at once.

The ticker's connection holds the lock. A lost connection loses the registration: the worker registers again, and other
workers may take over what it had leased, which is harmless (docs/adr/0010-leases-and-worker-registrations.md).
"""

from __future__ import annotations

import os
import socket

from django.db import connection, transaction
from django.db.models.functions import Now

from jobs.models import WORKER_LOCKS, Worker

_owner = ""


def owner() -> str:
    """The name under which this process takes leases: the id of its registration. Without one, a name that no lock
    backs, so that its leases end only by time."""
    return _owner or f"process-{socket.gethostname()}-{os.getpid()}"


def register(name: str) -> int:
    """Register this worker and take its liveness lock on the calling thread's connection. Returns its id."""
    global _owner
    worker = Worker.objects.create(name=name)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s, %s)", [WORKER_LOCKS, worker.pk])
    _owner = str(worker.pk)
    return worker.pk


def keep_alive(worker_id: int) -> bool:
    """Record that this worker is alive. False if its registration is gone and it must register again."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objid = %s"
            " AND pid = pg_backend_pid()",
            [WORKER_LOCKS, worker_id],
        )
        return (
            cursor.fetchone() is not None and Worker.objects.filter(pk=worker_id).update(seen_at=Now()) == 1
        )


def deregister(worker_id: int) -> None:
    """Deregister on shutdown, so that this worker is not reported as silent."""
    global _owner
    _owner = ""
    Worker.objects.filter(pk=worker_id).delete()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [WORKER_LOCKS, worker_id])


def remove_dead() -> int:
    """Remove the rows of workers that died without deregistering; returns how many."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM jobs_worker w WHERE seen_at < clock_timestamp() - interval '1 hour' AND NOT EXISTS ("
            " SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objid = w.id)",
            [WORKER_LOCKS],
        )
        return int(cursor.rowcount)
