"""Take one job for a change: seen by the caller, his to operate, and its row held until the transaction ends."""

from __future__ import annotations

from jobs.errors import IllegalTransition, JobNotFound, VersionChanged
from jobs.models import Checkpoint, Job
from jobs.selectors.jobs import job_to_operate, with_details
from jobs.selectors.views import etag
from jobs.states import Intent, State, allowed_actions, display_phase
from tenants import access


def lock_job(*, user: access.Person, job_id: str, checkpoint: int | None = None) -> Job:
    """The job's row, locked (foreign keys may still point at it). Raises JobNotFound or NotAllowed.

    checkpoint: this one of its is not dropped meanwhile. Its row comes first in the order of locks (docs/adr/0012).
    """
    job_to_operate(user=user, job_id=job_id)
    if checkpoint is not None:
        Checkpoint.objects.select_for_update(no_key=True).filter(job_id=job_id, n=checkpoint).first()
    row = Job.objects.select_for_update(no_key=True, of=("self",)).select_related("tenant", "owner")
    job = row.filter(pk=job_id, deleted_at=None).first()
    if job is None:
        raise JobNotFound
    return job


def refuse_stale(job: Job, if_match: str | None) -> None:
    """Raise VersionChanged unless the locked job still is what its caller saw, if he says what that was (an ETag)."""
    if if_match is not None and if_match not in ("*", etag(job)):
        raise VersionChanged(etag=etag(job))


def reload(job_id: str) -> Job:
    """The job with its details as the answer shows it, after a change its caller was allowed to make."""
    return with_details(Job.objects.all()).get(pk=job_id)


def refuse(job: Job, verb: str) -> IllegalTransition:
    """The error for a verb that is not possible now, with what is."""
    state, intent = State(job.state), Intent(job.intent)
    phase = display_phase(state, intent, job.stop_reason, job.attempt)
    actions = [action.value for action in allowed_actions(state, intent)]
    return IllegalTransition(
        f"A job that is {phase.lower()} cannot be {verb}. Possible now: {', '.join(actions)}.",
        state=state.value,
        phase=phase,
        allowed_actions=actions,
    )
