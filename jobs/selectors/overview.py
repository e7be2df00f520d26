"""The whole installation at a glance, for platform admins: the queue over all tenants and who works on it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from django.db.models import Count, F, Max, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Greatest
from django.utils import timezone

from jobs.models import Attempt, Job, Worker
from jobs.states import HOLDS_GPUS, Intent, State

FRESH = timedelta(seconds=15)
"""A worker that looked at due jobs within this time works; the same limit as /readyz."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Jobs that wait for devices. slots: what they ask for in all; waits in seconds, None while nobody waits."""

    jobs: int
    slots: int
    longest_s: float | None
    median_s: float | None


@dataclass(frozen=True, slots=True)
class Working:
    """Celery workers that looked lately, of all that have a row, and when the last one looked."""

    workers: int
    known: int
    seen_at: datetime | None


@dataclass(frozen=True, slots=True)
class Live:
    """Jobs of one tenant that hold devices, and those that wait."""

    running: int
    queued: int


def waiting_jobs() -> QuerySet[Any]:
    """Every queued job of every tenant, the longest waiting first; for callers that have checked for a platform admin.

    waits_since: a job that came back after a failure keeps its place in line (queued_at), but it has run meanwhile.
    """
    rows = Job.objects.filter(state=State.QUEUED, intent=Intent.RUN, deleted_at=None)
    newest_end = Attempt.objects.filter(job=OuterRef("pk")).order_by("-n").values("closed_at")[:1]
    rows = rows.annotate(
        waits_since=Greatest("queued_at", Subquery(newest_end))
    )  # NULL, no attempt, counts as less
    return rows.select_related("tenant", "owner").order_by("waits_since", "pk")


def queue() -> Queue:
    now = timezone.now()
    waits = [(now - at).total_seconds() for at in waiting_jobs().values_list("waits_since", flat=True)]
    slots = waiting_jobs().order_by().aggregate(n=Sum(F("slots") * F("learners")))["n"] or 0
    return Queue(len(waits), slots, max(waits, default=None), median(waits) if waits else None)


def working() -> Working:
    rows = Worker.objects.aggregate(known=Count("pk"), seen=Max("seen_at"))
    fresh = Worker.objects.filter(seen_at__gt=timezone.now() - FRESH).count()
    return Working(fresh, rows["known"], rows["seen"])


def live_by_tenant() -> dict[int, Live]:
    """Running and queued jobs by tenant id; a tenant without any is left out."""
    rows = Job.objects.filter(deleted_at=None, state__in=[State.QUEUED, *HOLDS_GPUS])
    counts: dict[int, list[int]] = {}
    for tenant_id, state, n in rows.values_list("tenant_id", "state").annotate(n=Count("pk")).order_by():
        counts.setdefault(tenant_id, [0, 0])[state == State.QUEUED] += n
    return {tenant_id: Live(*pair) for tenant_id, pair in counts.items()}
