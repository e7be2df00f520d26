"""Rows that the past would have left: jobs that waited for reasons and held slots of nodes, from hour to hour."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from gpu_scheduler.model import WaitReason
from jobs.models import Attempt, Job, JobEvent
from jobs.selectors.fairness import HOUR, hour_of
from jobs.selectors.usage_sql import SETTLE
from jobs.states import EventCode, State
from tenants.models import Tenant
from tests import factories


def hours_ago(now: datetime, count: float) -> datetime:
    """So many hours before the begin of the newest hour that is old enough to be stored, which is 0 hours ago."""
    return hour_of(now - SETTLE) - HOUR - count * HOUR


def job_of_the_past(of: Tenant, slots: int, submitted: datetime, **fields: Any) -> Job:
    """A CPU job by default, submitted then; it waits until something else is said of it."""
    return factories.job(of=of, slots=slots, created_at=submitted, **fields)


def waited(job: Job, reason: WaitReason, since: datetime, **numbers: Any) -> None:
    """From then on it waited for this reason, until its next line of history."""
    slot_type = job.gpu_type or "cpu"
    _event(
        job, since, EventCode.WAITING, reason=reason.value, message=f"Waits: {reason.value}.",
        numbers={"slot_type": slot_type} | numbers,
    )  # fmt: skip


def held(job: Job, since: datetime, until: datetime | None, nodes: tuple[str, ...] = ("node-a",)) -> None:
    """It held its slots on these nodes; it still does without an end."""
    n = job.attempts.count() + 1
    _event(job, since, EventCode.PLACED, from_state=State.QUEUED, to_state=State.DEPLOYING, attempt=n)
    Attempt.objects.create(
        job=job, tenant=job.tenant, n=n, cluster="memory", slot_type=job.gpu_type or "cpu", slots=job.slots,
        learners=len(nodes), nodes=list(nodes), opened_at=since, held=until is None, closed_at=until,
        outcome="" if until is None else State.COMPLETED, opportunistic=job.opportunistic,
    )  # fmt: skip
    if until is None:
        Job.objects.filter(pk=job.pk).update(state=State.DEPLOYING)
    else:
        ended(job, until)


def ended(job: Job, at: datetime) -> None:
    """It was final from then on."""
    _event(job, at, EventCode.MOVED, from_state=State.QUEUED, to_state=State.CANCELED)
    Job.objects.filter(pk=job.pk).update(state=State.CANCELED, finished_at=at)


def _event(job: Job, at: datetime, code: EventCode, **fields: Any) -> None:
    n = JobEvent.objects.filter(job=job).count() + 1
    JobEvent.objects.create(job=job, tenant=job.tenant, n=n, at=at, code=code, source="scheduler", **fields)
