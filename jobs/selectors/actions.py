"""What may be asked of a job now: by its state, by where its stop leads and by what is left of its time limit."""

from __future__ import annotations

from datetime import datetime

from jobs.accounting import counts_until, time_left_s
from jobs.models import Attempt, Job
from jobs.states import Action, Intent, State, allowed_actions, ends_failed


def actions_of(job: Job, live: Attempt | None, now: datetime) -> tuple[Action, ...]:
    """What REST and pages offer, and what is refused otherwise. live: the attempt that is not closed."""
    return allowed_actions(
        State(job.state), Intent(job.intent), fails=will_fail(job), time_is_up=is_time_up(job, live, now)
    )


def will_fail(job: Job) -> bool:
    """It stops, and that leads to FAILED."""
    return ends_failed(State(job.state), job.stop_reason, job.restarts_used, job.max_restarts)


def is_time_up(job: Job, live: Attempt | None, now: datetime) -> bool:
    """Nothing is left of its time limit."""
    began, known_at = (live.processing_at, live.known_at) if live else (None, None)
    left_s = time_left_s(job.time_limit_s, job.running_s, began, counts_until(known_at, None, now))
    return left_s is not None and left_s <= 0


def live_attempt(job: Job) -> Attempt | None:
    """Its attempt that is not closed, if its time is limited: nothing else needs to know."""
    return job.attempts.filter(closed_at=None).first() if job.time_limit_s is not None else None
