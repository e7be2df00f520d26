"""What a halt now may cost: the question before one that may lose something. It claims no more than is known."""

from __future__ import annotations

from datetime import datetime

from jobs.accounting import ran_s
from jobs.humanize import duration
from jobs.models import Attempt, Checkpoint, Job, Learner
from jobs.selectors.checkpoints import checkpoint_for
from jobs.states import Intent, State
from jobs.steps import fell_since, reported_step, steps_from_scratch


def question(job: Job, now: datetime) -> str:
    """Sentences for a person who is about to halt this job; "" if one click is enough.

    One click is enough where no program runs, or where it has a checkpoint and is known to check for a halt.
    """
    if job.state != State.PROCESSING or job.intent != Intent.RUN:
        return ""
    saved = checkpoint_for(job)
    checks = Learner.objects.filter(job=job, attempt=job.attempt, checks_halt=True).exists()
    if checks and saved is not None:
        return ""
    return f"{_known(job, saved, checks=checks)} {_at_stake(job, saved, now)}"


def _known(job: Job, saved: Checkpoint | None, *, checks: bool) -> str:
    if checks:
        return (
            "No checkpoint has been stored so far. The program checks for a halt and may save before it ends."
        )
    signal = f"it gets SIGTERM and {duration(job.grace_s)} to save"
    if saved is None:
        return f"No checkpoint has been stored so far, and the program has not checked for a halt so far: {signal}."
    return f"The program has not checked for a halt so far: {signal}."


def _at_stake(job: Job, saved: Checkpoint | None, now: datetime) -> str:
    start = "starts from scratch" if saved is None else f"starts from checkpoint {saved.n}{_step(saved)}"
    nothing = "nothing" if saved is None else "nothing new"
    return (
        f"What it has saved in CHECKPOINT_DIR by then is kept. If that is {nothing}, a resume {start}, and"
        f" {_repeated(job, saved, now)} is repeated."
    )


def _step(saved: Checkpoint) -> str:
    return " (step unknown)" if saved.step is None else f" (step {saved.step:,})"


def _repeated(job: Job, saved: Checkpoint | None, now: datetime) -> str:
    """What was done since, in steps where both ends are known, otherwise in time."""
    reported = reported_step(job.pk)
    if reported is not None and saved is None and steps_from_scratch(job.pk) is not None:
        return f"everything up to step {reported:,}, the last one reported,"
    step = saved.step if saved is not None and not fell_since(saved) else None
    if reported is not None and step is not None and reported > step:
        return f"everything from step {step:,} to step {reported:,}, the last one reported,"
    if saved is not None and saved.committed_at is not None:
        return f"everything since it was stored, {duration((now - saved.committed_at).total_seconds())} ago,"
    began = Attempt.objects.filter(job=job, n=job.attempt).values_list("processing_at", flat=True).first()
    return f"what it did in {duration(job.running_s + ran_s(began, now))} of running"
