"""The one way to add an event to a job's history: numbered without gaps, published after the commit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.db import connection, transaction

from jobs import pubsub
from jobs.models import JobEvent
from jobs.states import EventCode
from tenants.rows import insert_all


def append(
    *,
    job_id: str,
    tenant_id: int,
    code: EventCode,
    attempt: int = 0,
    reason: str = "",
    message: str = "",
    numbers: dict[str, Any] | None = None,
    actor_id: int | None = None,
    source: str,
    from_state: str = "",
    to_state: str = "",
) -> int:
    """Write the job's next event and return its number. Call it in the transaction of the change that it records."""
    n = next_number(job_id)
    event = JobEvent(
        job_id=job_id,
        tenant_id=tenant_id,
        n=n,
        code=code,
        from_state=from_state,
        to_state=to_state,
        attempt=attempt,
        reason=reason,
        message=message,
        numbers=numbers or {},
        actor_id=actor_id,
        source=source,
    )
    insert_all([event])
    publish_later(job_id, tenant_id, n)
    return n


def append_numbered(rows: Sequence[JobEvent]) -> None:
    """Write events of many jobs whose numbers were taken in this transaction, with their jobs' rows locked."""
    insert_all(rows)
    for job_id, (tenant_id, n) in {row.job_id: (row.tenant_id, row.n) for row in rows}.items():
        publish_later(job_id, tenant_id, n)


def next_number(job_id: str) -> int:
    """Take the job's next event number; the row stays locked until the transaction ends, so there is no gap."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobs_job SET event_seq = event_seq + 1 WHERE id = %s RETURNING event_seq", [job_id]
        )
        row = cursor.fetchone()
    if row is None:
        raise LookupError(f"no job {job_id}")
    return int(row[0])


def publish_later(job_id: str, tenant_id: int, n: int) -> None:
    """Publish after the commit that the job's history goes up to n."""
    transaction.on_commit(partial(pubsub.job_changed, job_id, tenant_id, n), robust=True)
