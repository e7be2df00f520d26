"""The queue as people may see it: when a job is expected to start, and the totals for administrators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Greatest, Now

from gpu_scheduler.checks import NOT_QUEUED
from gpu_scheduler.forecast import Basis, StartForecast, WhyNone
from gpu_scheduler.model import WaitReason, slot_type_of
from jobs.models import Attempt, Estimate, Job, PeriodicTask
from jobs.selectors.platform_stops import WaitedSeconds
from jobs.serialization import rfc3339
from jobs.states import Intent, State
from tenants.models import Tenant

TOLERANCE = timedelta(seconds=15)
"""A start this late still counts as in time: estimates are made every few seconds, and so are plans."""


def checked_at() -> datetime | None:
    """When the last scheduling cycle that reached the cluster ended."""
    return PeriodicTask.objects.filter(name=PeriodicTask.CYCLE).values_list("done_at", flat=True).first()


WHY_NONE = {
    WhyNone.CANNOT_START: "It can't start without a change.",
    WhyNone.BUDGET: "When it starts depends on the tenant's GPU-hour budget.",
    WhyNone.UNKNOWN_END: "A running job that holds what it needs has no known end: it reports no progress, and"
    " too few jobs like it have completed. A time limit is not a run time.",
    WhyNone.TOO_FAR: "Its start is too far ahead to estimate.",
}
BUDGET_AHEAD = (
    "The tenant's GPU-hour budget may be used up before it can start: then it waits until the next month begins, or a"
    " platform admin raises the budget."
)
"""Of a job that waits for something else now. Guests read it, too: it has no number and no date of the budget."""
NO_NUMBERS: Mapping[str, Any] = {}
_NOT_QUEUED = {code.value for code in NOT_QUEUED}
NOT_YET = "The first estimate follows within seconds."
BACKS_OFF = "Estimated after its retry time."
STOPS = "Based on jobs that are being stopped; assumes no new jobs."
RESTS = "Based on the time until which it stays away; assumes no new jobs."
SOURCES = {
    Basis.PROGRESS: "the progress of running jobs",
    Basis.HISTORY: "past runs of the same or similar programs",
}


def why_unforeseen(code: str) -> WhyNone | None:
    """Why no forecast is made of a job that waits for this reason; None: one is."""
    if code == WaitReason.BUDGET_EXHAUSTED:
        return WhyNone.BUDGET
    return WhyNone.CANNOT_START if code in _NOT_QUEUED else None


def _why_none(why: WhyNone, numbers: Mapping[str, Any], now: datetime) -> str:
    """Why there is no estimate. numbers: of the reason why the job waits, as far as the reader may see them."""
    if why is not WhyNone.BUDGET or "month_ends" not in numbers:
        return WHY_NONE[why]
    if numbers["month_ends"] is None:
        return "Only a platform admin who raises the tenant's GPU-hour budget lets it start."
    turns = datetime.fromisoformat(numbers["month_ends"])
    if turns <= now:
        return WHY_NONE[why]
    return (
        f"Not before {turns:%Y-%m-%d %H:%M} UTC, when the GPU-hour budget of the next month begins, unless a platform"
        " admin raises this month's; how long after that is not known."
    )


def _ahead(why: WhyNone) -> str:
    """Why a forecast of a job that could wait for its turn has no time."""
    return BUDGET_AHEAD if why is WhyNone.BUDGET else WHY_NONE[why]


def estimate_view(job: Job, now: datetime) -> dict[str, Any] | None:
    """A job's estimate as JSON. Of a job that has started: its first estimate and when it started."""
    kept: Estimate | None = getattr(job, "estimate", None)
    if job.state != State.QUEUED:
        if kept is None or kept.first_at is None or kept.started_at is None:
            return None
        return _view(None, None, [], "", kept.made_at, kept)
    if job.start_after is not None and job.start_after > now:
        return _view(None, None, [], BACKS_OFF, None, None)
    if (why := why_unforeseen(job.reason_code)) is not None:
        return _view(None, None, [], _why_none(why, job.reason_numbers, now), None, None)
    if kept is None or kept.started_at is not None:
        return _view(None, None, [], NOT_YET, None, None)
    waits = kept.soonest is not None and kept.soonest > kept.made_at
    rests = job.reason_code == WaitReason.IDLE_BACKOFF
    message = (
        _ahead(WhyNone(kept.why_none))
        if kept.why_none
        else basis_sentence(kept.basis, waits=waits, rests=rests)
    )
    soonest, latest = (None if at is None else max(at, now) for at in (kept.soonest, kept.latest))
    return _view(soonest, latest, kept.basis, message, kept.made_at, kept)


def forecast_view(
    foreseen: StartForecast, now: datetime, numbers: Mapping[str, Any] = NO_NUMBERS
) -> dict[str, Any]:
    """The same shape for a job that does not exist yet. numbers: of the reason why it would wait."""
    basis = [each.value for each in foreseen.basis]
    waits = foreseen.p50 is not None and foreseen.p50 > now
    why = foreseen.why_none
    if why is None:
        message = basis_sentence(basis, waits=waits)
    else:
        message = _why_none(why, numbers, now) if "month_ends" in numbers else _ahead(why)
    return _view(foreseen.p50, foreseen.p90, basis, message, now, None)


def basis_sentence(basis: list[str], *, waits: bool, rests: bool = False) -> str:
    """What an estimate is based on, as a sentence. waits: the start is later than the forecast. rests: the job stays
    away until a time."""
    if not any(source in basis for source in SOURCES):
        return (RESTS if rests else STOPS) if waits else "Nothing ahead of it in the queue."
    sources = [words for source, words in SOURCES.items() if source in basis]
    listed = ", ".join(sources[:-1]) + " and " + sources[-1] if len(sources) > 1 else sources[0]
    return f"Based on {listed}; assumes no new jobs."


def _view(
    soonest: datetime | None,
    latest: datetime | None,
    basis: list[str],
    message: str,
    at: datetime | None,
    kept: Estimate | None,
) -> dict[str, Any]:
    has_first = kept is not None and kept.first_at is not None
    return {
        "from": rfc3339(soonest),
        "to": rfc3339(latest),
        "basis": basis,
        "message": message,
        "at": rfc3339(at),
        "first": {
            "from": rfc3339(kept.first_soonest),
            "to": rfc3339(kept.first_latest),
            "at": rfc3339(kept.first_at),
        }
        if kept is not None and has_first
        else None,
        "started_at": rfc3339(kept.started_at) if kept else None,
    }


@dataclass(frozen=True, slots=True)
class EstimateHits:
    """How good first estimates were: of the judged ones, how many jobs started by the earlier (p50) and by the later
    time (p90)."""

    judged: int
    by_soonest: int
    by_latest: int


def estimate_hits(tenant: Tenant, *, since: datetime) -> EstimateHits:
    """Of the tenant's jobs that got their devices since then; one that queued again counts once, by its last start."""
    started = Estimate.objects.filter(tenant=tenant, started_at__gte=since, first_at__isnull=False)
    found = started.aggregate(
        judged=Count("pk", filter=Q(first_latest__isnull=False)),
        by_soonest=Count("pk", filter=Q(started_at__lte=F("first_soonest") + TOLERANCE)),
        by_latest=Count("pk", filter=Q(started_at__lte=F("first_latest") + TOLERANCE)),
    )
    return EstimateHits(**found)


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """All waiting jobs. slots: what they request in total. Waits in seconds, None without waiting jobs."""

    jobs: int
    slots: int
    longest_s: float | None
    median_s: float | None


def waiting_jobs() -> QuerySet[Any]:
    """Every queued job of every tenant, the longest waiting first. Only for platform admins.

    waits_s: a job that came back after a failure keeps its queue position (queued_at), but has run in between; nor does
    time count in which the platform was stopped.
    """
    rows = Job.objects.filter(state=State.QUEUED, intent=Intent.RUN, deleted_at=None)
    newest_end = Attempt.objects.filter(job=OuterRef("pk")).order_by("-n").values("closed_at")[:1]
    since = Greatest("queued_at", Subquery(newest_end))  # NULL, no attempt, counts as less
    rows = rows.annotate(waits_since=since, waits_s=WaitedSeconds(F("waits_since"), Now()))
    return rows.select_related("tenant", "owner").order_by("waits_since", "pk")


def queue_totals() -> QueueTotals:
    waits = list(waiting_jobs().values_list("waits_s", flat=True))
    slots = waiting_jobs().order_by().aggregate(n=Sum(F("slots") * F("learners")))["n"] or 0
    return QueueTotals(len(waits), slots, max(waits, default=None), median(waits) if waits else None)


def waiting_by_type() -> dict[str, int]:
    """Jobs in the queue by the type they ask for ("any" for any GPU), of all tenants: numbers, no names."""
    rows = Job.objects.filter(state="QUEUED", intent="RUN", deleted_at=None).values_list("gpus", "gpu_type")
    return dict(Counter(slot_type_of(*row) or "any" for row in rows))
