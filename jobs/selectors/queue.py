"""The queue as people may see it: a job's position, when it is expected to start, and the totals for administrators."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from django.db.models import F, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Greatest
from django.utils import timezone

from gpu_scheduler.checks import NOT_QUEUED, Scope
from gpu_scheduler.forecast import Basis, StartForecast, WhyNone
from gpu_scheduler.model import slot_type_of
from jobs.models import Attempt, Estimate, Job, PeriodicTask
from jobs.selectors.jobs import jobs_visible_to
from jobs.serialization import rfc3339
from jobs.states import Intent, State
from tenants import access

EACH_SIDE = 3


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """One job in the queue. Everything but place and slots is None if the caller cannot see the job."""

    place: int
    slots: int
    is_this: bool = False
    job: str | None = None
    name: str | None = None
    tenant: str | None = None
    owner: str | None = None
    priority: str | None = None
    estimate: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class QueueSection:
    """The queue around a job. of_tenant: its own tenant's queue, because the job waits for its tenant's limits."""

    of_tenant: bool
    slot_type: str
    places: tuple[QueueEntry, ...]


def queue_around(user: access.Person, job: Job, now: datetime) -> QueueSection | None:
    """Up to three jobs ahead and three behind; None for a job without a queue position. Three queries."""
    numbers = job.reason_numbers
    of_tenant = numbers.get("scope") == Scope.TENANT
    key = "position" if of_tenant else "cluster_position"
    place, slot_type = numbers.get(key), numbers.get("slot_type", "")
    if job.state != State.QUEUED or place is None:
        return None
    rows = Job.objects.filter(state=State.QUEUED, intent=Intent.RUN, deleted_at=None)
    near = {
        f"reason_numbers__{key}__gte": place - EACH_SIDE,
        f"reason_numbers__{key}__lte": place + EACH_SIDE,
    }
    if of_tenant:
        rows = rows.filter(tenant=job.tenant_id, **near)
        if job.tenant.jobs_limit is None:
            rows = rows.filter(reason_numbers__slot_type=slot_type)
    else:
        ahead_of_others = Q(reason_numbers__scope=Scope.CLUSTER) | Q(pk=job.pk)
        rows = rows.filter(ahead_of_others, reason_numbers__slot_type=slot_type, **near)
    shown = rows.select_related("tenant", "owner", "estimate").order_by(f"reason_numbers__{key}", "pk")
    found = list(shown[: 4 * EACH_SIDE])
    mine = set(jobs_visible_to(user).filter(pk__in=[row.pk for row in found]).values_list("pk", flat=True))
    places = [_place(row, row.reason_numbers[key], row.pk in mine, row.pk == job.pk, now) for row in found]
    at = next((index for index, each in enumerate(places) if each.is_this), 0)
    return QueueSection(of_tenant, slot_type, tuple(places[max(0, at - EACH_SIDE) : at + EACH_SIDE + 1]))


def _place(job: Job, place: int, is_visible: bool, is_this: bool, now: datetime) -> QueueEntry:
    slots = job.slots * job.learners
    if not is_visible:
        return QueueEntry(place, slots)
    return QueueEntry(
        place,
        slots,
        is_this,
        job.pk,
        job.name,
        job.tenant.slug,
        job.owner.get_username(),
        job.priority,
        estimate_view(job, now),
    )


def checked_at() -> datetime | None:
    """When the last scheduling cycle that reached the cluster ended."""
    return PeriodicTask.objects.filter(name=PeriodicTask.CYCLE).values_list("done_at", flat=True).first()


WHY_NONE = {
    WhyNone.CANNOT_START: "It can't start without a change.",
    WhyNone.UNKNOWN_END: "A running job that holds what it needs has no known end: no progress, no time limit,"
    " too few past jobs.",
    WhyNone.TOO_FAR: "Its start is too far ahead to estimate.",
}
NOT_YET = "The first estimate follows within seconds."
BACKS_OFF = "Estimated after its retry time."
STOPS = "Based on jobs that are being stopped; assumes no new jobs."
SOURCES = {
    Basis.PROGRESS: "the progress of running jobs",
    Basis.TIME_LIMIT: "time limits",
    Basis.HISTORY: "past jobs of the same tenants",
}


def estimate_view(job: Job, now: datetime) -> dict[str, Any] | None:
    """A job's estimate as JSON. Of a job that has started: its first estimate and when it started."""
    kept: Estimate | None = getattr(job, "estimate", None)
    if job.state != State.QUEUED:
        if kept is None or kept.first_at is None or kept.started_at is None:
            return None
        return _view(None, None, [], "", kept.made_at, kept)
    if job.start_after is not None and job.start_after > now:
        return _view(None, None, [], BACKS_OFF, None, None)
    if job.reason_code in {code.value for code in NOT_QUEUED}:
        return _view(None, None, [], WHY_NONE[WhyNone.CANNOT_START], None, None)
    if kept is None or kept.started_at is not None:
        return _view(None, None, [], NOT_YET, None, None)
    waits = kept.soonest is not None and kept.soonest > kept.made_at
    message = WHY_NONE[WhyNone(kept.why_none)] if kept.why_none else basis_sentence(kept.basis, waits=waits)
    soonest, latest = (None if at is None else max(at, now) for at in (kept.soonest, kept.latest))
    return _view(soonest, latest, kept.basis, message, kept.made_at, kept)


def forecast_view(foreseen: StartForecast, now: datetime) -> dict[str, Any]:
    """The same shape for a job that does not exist yet."""
    basis = [each.value for each in foreseen.basis]
    waits = foreseen.p50 is not None and foreseen.p50 > now
    message = WHY_NONE[foreseen.why_none] if foreseen.why_none else basis_sentence(basis, waits=waits)
    return _view(foreseen.p50, foreseen.p90, basis, message, now, None)


def basis_sentence(basis: list[str], *, waits: bool) -> str:
    """What an estimate is based on, as a sentence. waits: the start is later than the forecast."""
    if not basis:
        return STOPS if waits else "Nothing ahead of it in the queue."
    sources = [SOURCES[Basis(each)] for each in basis]
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
class QueueTotals:
    """All waiting jobs. slots: what they request in total. Waits in seconds, None without waiting jobs."""

    jobs: int
    slots: int
    longest_s: float | None
    median_s: float | None


def waiting_jobs() -> QuerySet[Any]:
    """Every queued job of every tenant, the longest waiting first. Only for platform admins.

    waits_since: a job that came back after a failure keeps its queue position (queued_at), but has run in between.
    """
    rows = Job.objects.filter(state=State.QUEUED, intent=Intent.RUN, deleted_at=None)
    newest_end = Attempt.objects.filter(job=OuterRef("pk")).order_by("-n").values("closed_at")[:1]
    rows = rows.annotate(
        waits_since=Greatest("queued_at", Subquery(newest_end))
    )  # NULL, no attempt, counts as less
    return rows.select_related("tenant", "owner").order_by("waits_since", "pk")


def queue_totals() -> QueueTotals:
    now = timezone.now()
    waits = [(now - at).total_seconds() for at in waiting_jobs().values_list("waits_since", flat=True)]
    slots = waiting_jobs().order_by().aggregate(n=Sum(F("slots") * F("learners")))["n"] or 0
    return QueueTotals(len(waits), slots, max(waits, default=None), median(waits) if waits else None)


def waiting_by_type() -> dict[str, int]:
    """Jobs in the queue by the type they ask for ("any" for any GPU), of all tenants: numbers, no names."""
    rows = Job.objects.filter(state="QUEUED", intent="RUN", deleted_at=None).values_list("gpus", "gpu_type")
    return dict(Counter(slot_type_of(*row) or "any" for row in rows))
