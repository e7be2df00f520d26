"""What is known of a job's steps, as far as its program's own counting says."""

from __future__ import annotations

from django.db.models import Q

from jobs.models import Checkpoint, Learner, Progress


def reported_step(job_id: str) -> int | None:
    """The last step that the job reported, of any attempt."""
    return Progress.objects.filter(job=job_id).values_list("step", flat=True).first()


def steps_from_scratch(job_id: str) -> int | None:
    """Steps up to the last one reported, None if none was, or if they fell back, so that it does not count them all.
    Counted from 0, they are one more than its number."""
    last = reported_step(job_id)
    if last is None or Learner.objects.filter(job=job_id, fell_ms__isnull=False).exists():
        return None
    return last + 1 if Learner.objects.filter(job=job_id, first_step=0).exists() else last


def fell_since(saved: Checkpoint) -> bool:
    """Whether the steps of a job fell back after this checkpoint was saved, or may have: then the distance from its
    step to the last one reported says nothing. Of a gang the learners' clocks are taken to be alike."""
    later = Q(attempt__gt=saved.attempt)
    in_its_own = Q(attempt=saved.attempt)
    if saved.saved_ns is not None:
        in_its_own &= Q(fell_ms__gt=saved.saved_ns // 1_000_000)
    return Learner.objects.filter(later | in_its_own, job=saved.job_id, fell_ms__isnull=False).exists()
