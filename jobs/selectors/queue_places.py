"""The queue for one device type as one tenant sees it: its jobs in the order of the next plan, others only counted.

A job of another tenant is in it where it waits for nodes of the type: one that its own tenant's limits hold back is
ahead of no other tenant. So the positions that the plan gave the tenant's jobs are their places in this list.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from gpu_scheduler.checks import Scope
from gpu_scheduler.model import slot_type_of
from jobs.models import Job
from jobs.selectors.jobs import jobs_visible_to
from jobs.selectors.queue import estimate_view
from jobs.selectors.requests import asked
from jobs.states import Intent, State
from tenants import access
from tenants.models import Tenant

EACH_SIDE = 3
UNREAD = ("spec", "spec_text", "packages", "measured", "last_halt", "order_plan", "order_loss")
"""Texts and JSON of a job, stored apart from its row if they are long."""


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """One job in the queue. place: None if it cannot start as it is, so that it keeps none. asks: slots in total.

    Everything but place, slot_type and asks is None of another tenant's job.
    """

    place: int | None
    slot_type: str
    asks: int
    is_this: bool = False
    job: str | None = None
    name: str | None = None
    owner: str | None = None
    priority: str | None = None
    code: str | None = None
    waits_for: str | None = None
    estimate: dict[str, Any] | None = None
    opportunistic: bool | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Which job has which place, before anything else of it is read. own: it is one of the tenant's."""

    job: str
    slot_type: str
    place: int | None
    own: bool


def places(tenant: Tenant, slot_type: str = "") -> list[Place]:
    """The whole queue of a type, or of all types one after the other. Jobs without a place are the tenant's own."""
    rows = _waiting().filter(Q(tenant=tenant) | Q(reason_numbers__scope=Scope.CLUSTER))
    queues: defaultdict[str, list[tuple[tuple[Any, ...], str, bool, int | None]]] = defaultdict(list)
    # The numbers as a whole: they are stored apart from their row, and each key would fetch all of them again.
    for job, of, gpus, gpu_type, numbers in rows.values_list(
        "pk", "tenant_id", "gpus", "gpu_type", "reason_numbers"
    ):
        kind, ahead, scope, position = map(numbers.get, ("slot_type", "nodes_ahead", "scope", "position"))
        kind = kind or slot_type_of(gpus, gpu_type) or "any"
        if slot_type and kind != slot_type:
            continue
        queues[kind].append((_order(ahead, scope, position, job), job, of == tenant.pk, position))
    return [
        Place(job, kind, position if own else number, own)
        for kind in sorted(queues)
        for number, (_, job, own, position) in enumerate(sorted(queues[kind]), start=1)
    ]


def entries(user: access.Person, tenant: Tenant, shown: Sequence[Place], now: datetime) -> list[QueueEntry]:
    """These places with what this user can read of them. Two queries."""
    rows = _shown(Job.objects.all()).in_bulk([one.job for one in shown])
    named = _named(user, tenant.pk, rows.values())
    return [
        _entry(rows[one.job], one.place, one.slot_type, one.job in named, now)
        for one in shown
        if one.job in rows  # it may have been purged meanwhile
    ]


def around(user: access.Person, job: Job, now: datetime) -> list[QueueEntry]:
    """Up to three jobs ahead of this one, itself, and up to three behind; empty without a position. Two queries."""
    numbers = job.reason_numbers
    place, ahead, slot_type = (numbers.get(key) for key in ("position", "nodes_ahead", "slot_type"))
    if job.state != State.QUEUED or place is None or ahead is None:
        return []
    own = Q(
        tenant=job.tenant_id,
        reason_numbers__position__gte=place - EACH_SIDE,
        reason_numbers__position__lte=place + EACH_SIDE,
    )
    others = ~Q(tenant=job.tenant_id) & Q(
        reason_numbers__scope=Scope.CLUSTER,
        reason_numbers__nodes_ahead__gte=ahead - EACH_SIDE,
        reason_numbers__nodes_ahead__lte=ahead + EACH_SIDE,
    )
    rows = _waiting().filter(own | others, reason_numbers__slot_type=slot_type)
    found = sorted(
        _shown(rows)[: 8 * EACH_SIDE],
        key=lambda row: _order(
            row.reason_numbers["nodes_ahead"],
            row.reason_numbers["scope"],
            row.reason_numbers["position"],
            row.pk,
        ),
    )
    at = next((index for index, row in enumerate(found) if row.pk == job.pk), None)
    if at is None:
        return []  # it started meanwhile
    near = list(enumerate(found))[max(0, at - EACH_SIDE) : at + EACH_SIDE + 1]
    named = _named(user, job.tenant_id, [row for _, row in near])
    return [
        _entry(row, place + index - at, slot_type, row.pk in named, now, is_this=row.pk == job.pk)
        for index, row in near
    ]


def _order(ahead: int | None, scope: str | None, position: int | None, job: str) -> tuple[Any, ...]:
    """Sorts as the plan did: a job that its tenant holds back comes before the node waiter with as many ahead."""
    if ahead is None or position is None:
        return (1, 0, 0, 0, job)
    return (0, ahead, int(scope == Scope.CLUSTER), position, job)


def _waiting() -> QuerySet[Job]:
    return Job.objects.filter(state=State.QUEUED, intent=Intent.RUN, deleted_at=None)


def _shown(rows: QuerySet[Job]) -> QuerySet[Job]:
    """With what an entry reads of them, and without what would be most of it: a spec may hold the code."""
    return rows.select_related("owner", "estimate").defer(*UNREAD)


def _named(user: access.Person, tenant: int, rows: Iterable[Job]) -> set[str]:
    """Of these rows the tenant's own, as far as this user can see them."""
    own = [row.pk for row in rows if row.tenant_id == tenant]
    return set(jobs_visible_to(user).filter(pk__in=own).values_list("pk", flat=True))


def _entry(
    job: Job, place: int | None, slot_type: str, is_named: bool, now: datetime, *, is_this: bool = False
) -> QueueEntry:
    asks = asked(job)
    if not is_named:
        return QueueEntry(place, slot_type, asks)
    return QueueEntry(
        place,
        slot_type,
        asks,
        is_this,
        job.pk,
        job.name,
        job.owner.get_username(),
        job.priority,
        job.reason_code,
        job.reason_message,
        estimate_view(job, now),
        job.opportunistic,
    )
