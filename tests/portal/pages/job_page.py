"""The tabs of a job's page, and a past for the job."""

from __future__ import annotations

from jobs.models import Job, JobEvent
from jobs.states import EventCode, State

TABS = ["", "/metrics", "/logs", "/learners", "/events", "/checkpoints", "/spec"]


def moved(job: Job, to: State, **fields: object) -> None:
    """One more event that moved the job."""
    job.event_seq += 1
    job.save()
    JobEvent.objects.create(
        job=job,
        tenant=job.tenant,
        n=job.event_seq,
        code=EventCode.MOVED,
        to_state=to,
        attempt=job.attempt,
        **fields,
    )
