"""The line in which a job waits, as its people may see it: of foreign neighbours nothing but their size."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q

from gpu_scheduler.explain import FOR_NODES
from jobs.models import Job, PeriodicTask
from jobs.selectors.estimates import estimate_view
from jobs.selectors.jobs import jobs_visible_to
from jobs.states import Intent, State
from tenants import access

EACH_SIDE = 3
OWN_LIMITS = {"QUOTA_GPUS", "QUOTA_JOBS"}


@dataclass(frozen=True, slots=True)
class Place:
    """One job in line. Of a job that the caller may not see, everything but place and slots is None."""

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
class Line:
    """The part of the line around a job. of_tenant: its own tenant's line, because its limits hold the job back."""

    of_tenant: bool
    slot_type: str
    places: tuple[Place, ...]


def line_around(user: access.Person, job: Job, now: datetime) -> Line | None:
    """The jobs up to three places before and behind; None for a job that stands in no line. Three queries."""
    numbers = job.reason_numbers
    of_tenant = job.reason_code in OWN_LIMITS
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
        in_line = Q(reason_code__in=[code.value for code in FOR_NODES]) | Q(pk=job.pk)
        rows = rows.filter(in_line, reason_numbers__slot_type=slot_type, **near)
    shown = rows.select_related("tenant", "owner", "estimate").order_by(f"reason_numbers__{key}", "pk")
    found = list(shown[: 4 * EACH_SIDE])
    mine = set(jobs_visible_to(user).filter(pk__in=[row.pk for row in found]).values_list("pk", flat=True))
    places = [_place(row, row.reason_numbers[key], row.pk in mine, row.pk == job.pk, now) for row in found]
    at = next((index for index, each in enumerate(places) if each.is_this), 0)
    return Line(of_tenant, slot_type, tuple(places[max(0, at - EACH_SIDE) : at + EACH_SIDE + 1]))


def _place(job: Job, place: int, is_visible: bool, is_this: bool, now: datetime) -> Place:
    slots = job.slots * job.learners
    if not is_visible:
        return Place(place, slots)
    return Place(
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
    """When the scheduler last looked at everything that waits."""
    return PeriodicTask.objects.filter(name="cycle").values_list("done_at", flat=True).first()
