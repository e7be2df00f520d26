"""Say why each job waits, in the words and numbers of the scheduler, and write only what changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connection, transaction

from gpu_scheduler.model import Explanation, WaitReason
from jobs import events
from jobs.models import Job, JobEvent
from jobs.retries import retry_on_serialization_failure
from jobs.selectors.snapshot import waiting_rows
from jobs.states import EventCode, State

NUMBERS_ONLY = 500  # explanations of which only numbers changed, written per pass
CHUNK = 500
PLACES = ("position", "cluster_position")


def explain(waits: Sequence[Explanation]) -> None:
    """Write why each job waits, only where that changed; a new code is an event, new numbers are not."""
    places = [f"reason_numbers__{place}" for place in PLACES]
    rows = Job.objects.filter(state=State.QUEUED).values_list("pk", "reason_code", "reason_message", *places)
    shown = {job: tuple(values) for job, *values in rows}
    changed = [wait for wait in waits if wait.job in shown and shown[wait.job] != _shown(wait)]
    fresh = [wait for wait in changed if shown[wait.job][0] != wait.code.value]
    numbers_only = [wait for wait in changed if shown[wait.job][0] == wait.code.value]
    numbers_only.sort(key=lambda wait: wait.numbers.get("cluster_position") or 0)
    for part in _chunks(fresh):
        _write_reasons(part, with_event=True)
    for part in _chunks(numbers_only[:NUMBERS_ONLY]):
        _write_reasons(part, with_event=False)


def _shown(wait: Explanation) -> tuple[Any, ...]:
    """What people see of it."""
    return (wait.code.value, wait.message, *(wait.numbers.get(place) for place in PLACES))


WRITE_REASONS = """
UPDATE jobs_job j SET reason_code = v.code, reason_message = v.message, reason_numbers = v.numbers,
  event_seq = event_seq + %s,
  next_reconcile_at = CASE WHEN j.intent = 'RUN' AND j.lease_token IS NULL AND j.start_after IS NULL
    THEN clock_timestamp() + interval '10 minutes' ELSE j.next_reconcile_at END
FROM jsonb_to_recordset(%s) AS v(job text, code text, message text, numbers jsonb)
WHERE j.id = v.job AND j.state = 'QUEUED' RETURNING j.id, j.tenant_id, j.event_seq, j.attempt
"""


@retry_on_serialization_failure
def _write_reasons(waits: Sequence[Explanation], *, with_event: bool) -> None:
    by_job = {wait.job: wait for wait in waits}
    rows = [
        {"job": wait.job, "code": wait.code.value, "message": wait.message, "numbers": dict(wait.numbers)}
        for wait in waits
    ]
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(WRITE_REASONS, [int(with_event), json.dumps(rows, default=str)])
            written = cursor.fetchall()
        if with_event:
            JobEvent.objects.bulk_create(
                JobEvent(
                    job_id=job,
                    tenant_id=tenant,
                    n=n,
                    code=EventCode.WAITING,
                    attempt=attempt,
                    reason=by_job[job].code.value,
                    message=by_job[job].message,
                    numbers=json.loads(json.dumps(dict(by_job[job].numbers), default=str)),
                    source="scheduler",
                )
                for job, tenant, n, attempt in written
            )
        for job, tenant, n, _ in written:
            events.publish_later(job, tenant, n)


def explain_cluster_busy(why: str) -> None:
    waiting = waiting_rows().values_list("pk", flat=True)
    message = f"The cluster is not responding, so nothing starts now; waiting jobs keep their places. ({why})"
    explain([Explanation(job, WaitReason.NOT_EVALUATED, message, {}) for job in waiting])


def _chunks(waits: Sequence[Explanation]) -> Iterable[Sequence[Explanation]]:
    return (waits[start : start + CHUNK] for start in range(0, len(waits), CHUNK))
