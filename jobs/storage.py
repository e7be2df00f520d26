"""How many bytes a tenant stores: triggers note every change in StorageChange, a periodic task adds them up.

Readers add both in one statement, so of one snapshot. Logs count as printed, metric points as POINT_BYTES each, files
once per tenant and content, from the moment they are offered until they are removed from the store (docs/adr/0066). A
spec counts as code, with what is larger than usual of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from django.db import connection

from jobs.humanize import filesize
from jobs.models import StorageKind
from jobs.retries import retry_on_serialization_failure
from tenants.models import Tenant
from tenants.retention import MAX_BYTES

PARTS = 5_000
"""Changes that are added up at most, in one transaction."""
RUN_S = 5.0

COUNTED = """
SELECT tenant_id, kind, sum(bytes) AS bytes FROM (
  SELECT tenant_id, kind, bytes FROM jobs_storageuse WHERE {which}
  UNION ALL SELECT tenant_id, kind, bytes FROM jobs_storagechange WHERE {which}) AS noted
GROUP BY tenant_id, kind
"""
ADD_UP = """
WITH taken AS (
  DELETE FROM jobs_storagechange
  WHERE id = ANY (ARRAY(SELECT id FROM jobs_storagechange ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED))
  RETURNING tenant_id, kind, bytes
),
added AS (
  INSERT INTO jobs_storageuse AS known (tenant_id, kind, bytes)
  SELECT tenant_id, kind, sum(bytes) FROM taken GROUP BY 1, 2 ORDER BY 1, 2  -- one order, so no deadlock
  ON CONFLICT (tenant_id, kind) DO UPDATE SET bytes = known.bytes + EXCLUDED.bytes
)
SELECT count(*) FROM taken
"""

LOCK = 4_770_002
"""Advisory lock, with the tenant's number: two offers must not both take the last bytes."""
SPEC_FREE_BYTES = 4096
"""Of each spec: about what the job's row and its history take whatever the spec says. See jobs_spec_bytes in SQL."""
MOST = MAX_BYTES
"""What a tenant without a limit may store: no store holds the files of 2^60 bytes that a program may declare."""
HALT_SHARE = 10
"""Percent of the limit, beyond it, for checkpoints of jobs that are halted or preempted."""

Used = Mapping[StorageKind, int]


class NoRoom(Exception):
    """Bytes that cannot be stored, refused before any of them is sent. numbers: in bytes; needed_bytes do not fit."""

    reason = ""

    def __init__(self, message: str, **numbers: int) -> None:
        super().__init__(message)
        self.numbers = numbers


class StorageFull(NoRoom):
    """The tenant may not store so many bytes more."""

    reason = "storage_full"

    def __init__(self, used: int, limit: int, needed: int) -> None:
        needs = f"{filesize(needed)} more do not fit: " if needed else ""
        super().__init__(
            f"{needs}the tenant stores {filesize(used)} of {filesize(limit)}. Delete jobs that are no longer needed, or"
            " ask a platform admin for a higher limit.",
            used_bytes=used,
            limit_bytes=limit,
            needed_bytes=needed,
        )


class DiskFull(NoRoom):
    """The platform's disk has no room for so many bytes more."""

    reason = "disk_full"

    def __init__(self, room: int, needed: int, promised: int = 0) -> None:
        beside = f" beside {filesize(promised)} that other files are still to fill" if promised else ""
        super().__init__(
            f"{filesize(needed)} more do not fit: the platform's disk has room for {filesize(room)}{beside}. Ask an"
            " operator of this installation to make room.",
            room_bytes=room,
            needed_bytes=needed,
            promised_bytes=promised,
        )


class TooManyFiles(NoRoom):
    """The job has offered so many files, and sent none of them whole."""

    reason = "too_many_files"

    def __init__(self, most: int) -> None:
        super().__init__(
            f"the job has {most:,} files that it offered and has not sent, the most allowed. Save fewer, larger files.",
            most=most,
        )


def used_by(tenant_id: int) -> Used:
    """Bytes that a tenant stores, of every kind."""
    with connection.cursor() as cursor:
        cursor.execute(COUNTED.format(which="tenant_id = %(tenant)s"), {"tenant": tenant_id})
        found = {kind: int(size) for _, kind, size in cursor.fetchall()}
    return {kind: found.get(kind.value, 0) for kind in StorageKind}


def used_by_all() -> dict[int, int]:
    """Bytes by tenant, of those that have ever stored any."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT tenant_id, sum(bytes) FROM ({COUNTED.format(which='true')}) AS counted GROUP BY 1"
        )
        return {tenant_id: int(size) for tenant_id, size in cursor.fetchall()}


def locked_limit(tenant_id: int) -> int | None:
    """The tenant's limit. If it has one, no other offer of the tenant is judged until the end of the transaction."""
    limit = Tenant.objects.values_list("storage_limit", flat=True).get(pk=tenant_id)
    if limit is not None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [LOCK, tenant_id])
    return limit


def require_room(tenant_id: int, limit: int | None, needed: int, *, halting: bool = False) -> None:
    """Raise StorageFull if the tenant may not store so many bytes more. limit: of locked_limit.

    halting: for the checkpoint of a halt, which may exceed the limit by HALT_SHARE.
    """
    if needed <= 0 or (limit is None and needed < MOST // 1024):  # quick, where nothing can be exceeded
        return
    used, most = sum(used_by(tenant_id).values()), MOST if limit is None else limit
    if used + needed > most + (most * HALT_SHARE // 100 if halting else 0):
        raise StorageFull(used, most, needed)


def add_up(_: dict[str, Any]) -> dict[str, Any]:
    """The periodic task: add what changed to the sums. more: there is more to do now."""
    deadline, done = time.monotonic() + RUN_S, 0
    while True:
        count = _add_up()
        done += count
        if count < PARTS or time.monotonic() > deadline:
            return {"changes": done, "more": count == PARTS}


@retry_on_serialization_failure
def _add_up() -> int:
    with connection.cursor() as cursor:
        cursor.execute(ADD_UP, [PARTS])
        (count,) = cursor.fetchone()
    return int(count)
