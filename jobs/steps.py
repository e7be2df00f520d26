"""How many steps of a job a start from scratch repeats, as far as its program's own counting says."""

from __future__ import annotations

from jobs.models import Learner, Progress


def reported_step(job_id: str) -> int | None:
    """The last step that the job reported, of any attempt."""
    return Progress.objects.filter(job=job_id).values_list("step", flat=True).first()


def steps_from_scratch(job_id: str) -> int | None:
    """Steps up to the last one reported, None if none was. Counted from 0, they are one more than its number."""
    last = reported_step(job_id)
    if last is None:
        return None
    return last + 1 if Learner.objects.filter(job=job_id, first_step=0).exists() else last
