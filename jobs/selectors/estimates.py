"""When waiting jobs are expected to start: the forecast of the whole queue, and what is kept of it as people see it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from gpu_scheduler.cycle import NOT_IN_LINE
from gpu_scheduler.forecast import Basis, WhyNone
from gpu_scheduler.forecast import Estimate as Foreseen
from jobs.models import Estimate, Job
from jobs.selectors.moments import moment
from jobs.states import State

IN_LINE = 300
"""Waiting jobs that a forecast looks at; of one further back it says that too many are ahead."""

QUICK = 20_000
"""Units of a forecast that somebody waits for: tens of milliseconds."""

WHY_NONE = {
    WhyNone.CANNOT_START: "It cannot start as things are.",
    WhyNone.UNKNOWN_END: "A job it waits for has no known end: no progress, no time limit, too few past jobs.",
    WhyNone.TOO_FAR: "Too much is ahead of it to foresee.",
}
NOT_YET = "The next forecast will tell."
BACKS_OFF = "It waits before its restart; when that is over, the next forecast will tell."
SOURCES = {
    Basis.PROGRESS: "the progress of running jobs",
    Basis.TIME_LIMIT: "time limits",
    Basis.HISTORY: "past jobs of the same tenants",
}


def estimate_view(job: Job, now: datetime) -> dict[str, Any] | None:
    """The estimate of contracts' Job. Of a job that has started: what it was first told, beside the truth."""
    kept: Estimate | None = getattr(job, "estimate", None)
    if job.state != State.QUEUED:
        if kept is None or kept.first_at is None or kept.started_at is None:
            return None
        return _view(None, None, [], "", kept.made_at, kept)
    if job.start_after is not None and job.start_after > now:
        return _view(None, None, [], BACKS_OFF, None, None)
    if job.reason_code in {code.value for code in NOT_IN_LINE}:
        return _view(None, None, [], WHY_NONE[WhyNone.CANNOT_START], None, None)
    if kept is None or kept.started_at is not None:
        return _view(None, None, [], NOT_YET, None, None)
    message = WHY_NONE[WhyNone(kept.why_none)] if kept.why_none else because(kept.basis)
    soonest, latest = (None if at is None else max(at, now) for at in (kept.soonest, kept.latest))
    return _view(soonest, latest, kept.basis, message, kept.made_at, kept)


def foreseen_view(foreseen: Foreseen, now: datetime) -> dict[str, Any]:
    """The same shape for a job that nobody has submitted yet."""
    basis = [each.value for each in foreseen.basis]
    message = WHY_NONE[foreseen.why_none] if foreseen.why_none else because(basis)
    return _view(foreseen.soonest, foreseen.latest, basis, message, now, None)


def because(basis: list[str]) -> str:
    """What an estimate rests on, in a sentence."""
    if not basis:
        return "Nothing has to end first."
    sources = [SOURCES[Basis(each)] for each in basis]
    listed = ", ".join(sources[:-1]) + " and " + sources[-1] if len(sources) > 1 else sources[0]
    return f"From {listed}, if nothing else comes."


def _view(
    soonest: datetime | None,
    latest: datetime | None,
    basis: list[str],
    message: str,
    at: datetime | None,
    kept: Estimate | None,
) -> dict[str, Any]:
    told = kept is not None and kept.first_at is not None
    return {
        "from": moment(soonest),
        "to": moment(latest),
        "basis": basis,
        "message": message,
        "at": moment(at),
        "first": {
            "from": moment(kept.first_soonest),
            "to": moment(kept.first_latest),
            "at": moment(kept.first_at),
        }
        if kept is not None and told
        else None,
        "started_at": moment(kept.started_at) if kept else None,
    }
