"""Lock one job for a change: the caller may see and operate it, and its row stays locked until the transaction ends."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from jobs.accounting import counts_until, ran_s
from jobs.errors import IllegalTransition, JobChanged, JobNotFound, TimeLimitUsedUp
from jobs.humanize import duration
from jobs.models import Checkpoint, Job
from jobs.selectors.jobs import (
    actions_of,
    etag,
    is_time_up,
    job_to_manage,
    job_to_operate,
    live_attempt,
    will_fail,
    with_details,
)
from jobs.states import Intent, State, display_phase
from tenants import access


def lock_job(
    *, user: access.Person, job_id: str, checkpoint: int | None = None, to_manage: bool = False
) -> Job:
    """The job's row, locked (foreign keys may still point at it). Raises JobNotFound or JobForbidden.

    checkpoint: this one of its is not dropped meanwhile. Its row comes first in the order of locks (docs/adr/0012).
    to_manage: for who may edit and delete it; else for who may operate it.
    """
    (job_to_manage if to_manage else job_to_operate)(user=user, job_id=job_id)
    if checkpoint is not None:
        Checkpoint.objects.select_for_update(no_key=True).filter(job_id=job_id, n=checkpoint).first()
    row = Job.objects.select_for_update(no_key=True, of=("self",)).select_related("tenant", "owner")
    job = row.filter(pk=job_id, deleted_at=None).first()
    if job is None:
        raise JobNotFound
    return job


def require_match(job: Job, if_match: frozenset[str] | None) -> None:
    """Raise JobChanged if the caller gave ETags and none is the locked job's."""
    if if_match is not None and etag(job) not in if_match:
        raise JobChanged(etag=etag(job))


def reload(job_id: str) -> Job:
    """The job with its details as the response shows it, after a change that its caller was allowed to make."""
    return with_details(Job.objects.all()).get(pk=job_id)


def illegal(job: Job, verb: str) -> IllegalTransition:
    """The error for a verb that is not possible now, with what is."""
    details = possible_now(job)
    why = ": it will end as failed" if will_fail(job) and job.intent != Intent.CANCEL else ""
    possible = ", ".join(details["allowed_actions"])
    return IllegalTransition(
        f"A job that is {details['phase'].lower()} cannot be {verb}{why}. Actions possible in this state: {possible}.",
        **details,
    )


def time_limit_error(job: Job) -> TimeLimitUsedUp | None:
    """The error for a resume that would have no time left; None if it has some, or no limit."""
    live, now = live_attempt(job), timezone.now()
    if job.time_limit_s is None or not is_time_up(job, live, now):
        return None
    ran = job.running_s + (ran_s(live.processing_at, counts_until(live.known_at, None, now)) if live else 0)
    newest = job.checkpoints.filter(state=Checkpoint.State.COMMITTED)
    saved = newest.order_by(*Checkpoint.NEWEST_FIRST).values_list("n", flat=True).first()
    begin = f"; the clone can start from checkpoint {saved}" if saved is not None else ""
    return TimeLimitUsedUp(
        f"It has run for {duration(ran)}; its time limit is {duration(job.time_limit_s)}. A resume would have no time "
        f"left. Clone it with a larger time_limit{begin}.",
        ran_s=round(ran, 1),
        time_limit_s=job.time_limit_s,
        **possible_now(job),
    )


def possible_now(job: Job) -> dict[str, Any]:
    """The job's state and what is possible in it: the details of a refusal."""
    state, intent = State(job.state), Intent(job.intent)
    return {
        "state": state.value,
        "phase": display_phase(state, intent, job.stop_reason, job.attempt, job.early_ends),
        "allowed_actions": [action.value for action in actions_of(job, live_attempt(job), timezone.now())],
    }
