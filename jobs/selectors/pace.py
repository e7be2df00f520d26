"""How fast a job makes its steps, and how long it has to go: one answer for forecasts, pages and REST. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Pace:
    """What is left, and the speed at which it goes."""

    left_s: float
    steps_per_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """What a job has done so far. ran_s: of its closed attempts; first_step: at which its first attempt began (other
    than 0 in a clone from a checkpoint); since, began_step: of the attempt that runs now, if one does."""

    step: int | None
    total: int | None
    reported_at: datetime | None
    ran_s: float
    first_step: int
    since: datetime | None
    began_step: int


def pace(run: Run, now: datetime) -> Pace | None:
    """By all attempts together: right after a resume the newest has made few steps, and its start was slow."""
    if run.step is None or not run.total:
        return None
    at, heard = run.step, None
    if run.since is not None:
        # What was reported before this attempt is behind it: it goes on where it began.
        spoke = run.reported_at is not None and run.reported_at > run.since and run.step > run.began_step
        at, heard = (run.step, run.reported_at) if spoke else (run.began_step, run.since)
    before = (run.began_step if run.since is not None else at) - run.first_step
    steps, seconds = (before, run.ran_s) if before > 0 < run.ran_s else (0, 0.0)
    if run.since is not None and heard is not None:
        steps, seconds = steps + at - run.began_step, seconds + (heard - run.since).total_seconds()
    if steps <= 0 or seconds <= 0:
        return None
    silent_s = max(0.0, (now - heard).total_seconds()) if heard else 0.0
    return Pace(max(0.0, (run.total - at) * seconds / steps - silent_s), steps / seconds)
