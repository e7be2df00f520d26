"""What happens if a halted job is resumed now: whether it starts, or why it waits, and the quota before and after."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from jobs.humanize import saved_step
from jobs.models import Job
from jobs.selectors.checkpoints import checkpoint_for
from jobs.selectors.redaction import redact, redact_estimate
from jobs.selectors.requests import asked
from jobs.selectors.throughput import Run, throughput
from jobs.selectors.what_if import Preview, cached_resume_preview
from jobs.states import State
from portal.pages.job_cards import speed
from portal.pages.job_waiting import FIX, WAIT, kind_of
from portal.templatetags.ui import approximately, duration, foreseen

# The form of a new job says the same: newJob in texts.ts, compared by tests/setup/test_words_of_both_sides.py.
CAN_START = "Can start now on {nodes}"
WOULD_WAIT = "Would wait in the queue"


@dataclass(frozen=True)
class QuotaMeter:
    """A tenant's quota of one kind; used, asked and at are shares of the meter, 0 to 100."""

    kind: str
    before: int
    after: int
    limit: int
    used: float
    asked: float
    at: float

    @property
    def label(self) -> str:
        return f"Quota {self.kind}: {self.before} of {self.limit} in use, {self.after} after resuming"


@dataclass(frozen=True)
class ResumeCard:
    """The card. icon: as for a wait of the same kind. origin: where training would go on. rest: how much longer the job
    would run, as text.

    waits: what the resume button says of the wait that would follow; empty if the job can start now.
    """

    headline: str
    text: str
    icon: str
    quota: QuotaMeter | None
    origin: str
    rest: str
    waits: str = ""


def outlook(job: Job, now: datetime, *, guest: bool) -> ResumeCard | None:
    """The card of a halted job; None in any other state. guest: hide the numbers of the job's tenant.

    The plan behind it is cached and shared by all viewers.
    """
    if job.state != State.HALTED:
        return None
    found = cached_resume_preview(job)
    if guest:
        message, numbers = redact(found.code, found.message, found.numbers)
        estimate = redact_estimate(found.code, found.estimate)
        found = replace(found, message=message, numbers=numbers, estimate=estimate)
    left = rest(job, now)
    headline, text, icon = _words(found, now)
    waits = "" if found.starts else f"{headline}. {text}".strip()
    return ResumeCard(headline, text, icon, _meter(job, found), _origin(job), left[0] if left else "", waits)


def _origin(job: Job) -> str:
    kept = checkpoint_for(job)
    return f"checkpoint {kept.n}: {saved_step(kept.step, job.progress.step)}" if kept else "scratch"


def rest(job: Job, now: datetime) -> tuple[str, str] | None:
    """How much longer a halted job would run and how fast, from the step that it resumes at, at its past throughput."""
    if job.state != State.HALTED:
        return None
    progress, kept = job.progress, checkpoint_for(job)
    first = getattr(job, "first_step", None)
    rate = throughput(
        Run(progress.step, progress.total, progress.reported_at, job.running_s, first, None, 0), now
    )
    if rate is None:
        return None
    if kept is not None and kept.step is None:
        return None
    # Below 0 where a program counts checkpoints in other units than it reports.
    left = (progress.total or 0) - ((kept.step if kept else None) or 0)
    return (duration(round(left / rate.steps_per_s)), speed(rate.steps_per_s)) if left > 0 else None


def _words(found: Preview, now: datetime) -> tuple[str, str, str]:
    if found.starts:
        return CAN_START.format(nodes=", ".join(sorted(set(found.nodes)))), "", "circle-check"
    kind = kind_of(found.code, found.numbers)
    if kind is not WAIT:
        return FIX.advice.rstrip(".") if kind is FIX else "Can't start now", found.message, kind.icon
    span = foreseen(dict(found.estimate), now)
    start = f"Starts in {approximately(span)}" if span else WOULD_WAIT
    text = found.message if span else f"{found.message} {found.estimate['message']}"
    return start, text, kind.icon


def _meter(job: Job, found: Preview) -> QuotaMeter | None:
    """None without a quota; the headline says so."""
    kind, limit, used = found.quota.slot_type, found.quota.limit, found.quota.used
    if not limit:
        return None
    more = asked(job)
    scale = max(limit, used + more) / 100
    return QuotaMeter(kind, used, used + more, limit, used / scale, more / scale, limit / scale)
