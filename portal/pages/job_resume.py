"""What a resume of a halted job would bring right now: a start at once or a wait, and the quota before and after."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from jobs.models import Job
from jobs.selectors.checkpoints import checkpoint_for
from jobs.selectors.redaction import redact
from jobs.selectors.throughput import Run, throughput
from jobs.selectors.what_if import Preview, cached_resume_preview
from jobs.states import State
from portal.pages.job_cards import ASK, FIX, speed
from portal.templatetags.ui import duration, foreseen


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
        return f"Quota {self.kind}: {self.before} of {self.limit} in use, {self.after} after the resume"


@dataclass(frozen=True)
class ResumeCard:
    """The card. icon and family as those of a wait's class; rest: how much longer it would run, in words."""

    headline: str
    text: str
    icon: str
    quota: QuotaMeter | None
    rest: str


def outlook(job: Job, now: datetime, *, guest: bool) -> ResumeCard | None:
    """None for a job that is not halted. A guest is told no numbers of its tenant.

    A plan of the scheduler as for a new job's form, shared by all who look."""
    if job.state != State.HALTED:
        return None
    found = cached_resume_preview(job)
    if guest:
        message, numbers = redact(found.code, found.message, found.numbers)
        found = replace(found, message=message, numbers=numbers)
    left = rest(job, now)
    return ResumeCard(*_words(found, now), _meter(job, found), left[0] if left else "")


def rest(job: Job, now: datetime) -> tuple[str, str] | None:
    """How long a halted job would go on and how fast: from the step that the resume begins at, at its pace so far."""
    if job.state != State.HALTED:
        return None
    progress, kept = job.progress, checkpoint_for(job)
    first = getattr(job, "first_step", None) or 0
    been = throughput(
        Run(progress.step, progress.total, progress.reported_at, job.running_s, first, None, 0), now
    )
    if been is None:
        return None
    # Below 0 where a program counts checkpoints in other units than it reports.
    left = (progress.total or 0) - ((kept.step if kept else None) or 0)
    return (duration(round(left / been.steps_per_s)), speed(been.steps_per_s)) if left > 0 else None


def _words(found: Preview, now: datetime) -> tuple[str, str, str]:
    if found.starts:
        return f"Can start now on {', '.join(sorted(set(found.nodes)))}", "", "circle-check"
    if found.code in FIX:
        return "Can't start as configured", found.message, "wrench"
    if found.code in ASK:
        return "Cannot start", found.message, "user-cog"
    span = foreseen(dict(found.estimate), now)
    start = "Waits" if not span else f"Waits {span}" if span.startswith("under") else f"Waits about {span}"
    told = found.message if span else f"{found.message} {found.estimate['message']}"
    return start, told, "hourglass"


def _meter(job: Job, found: Preview) -> QuotaMeter | None:
    """Without a quota there is nothing to measure by; the headline says so."""
    kind, limit, used = found.quota.slot_type, found.quota.limit, found.quota.used
    if not limit:
        return None
    asked = job.learners * job.slots
    scale = max(limit, used + asked) / 100
    return QuotaMeter(kind, used, used + asked, limit, used / scale, asked / scale, limit / scale)
