"""How many bytes a tenant stores: triggers note every change in StorageChange, a periodic task adds them up.

Readers add both in one statement, so of one snapshot. Logs count as printed, metric points as POINT_BYTES each, files
once per tenant and content, from the moment they are offered until they are removed from the store (docs/adr/0066).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from django.db import connection

from jobs.models import StorageKind
from jobs.retries import retry_on_serialization_failure

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

Used = Mapping[StorageKind, int]


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
