"""What the scheduler would do right now, under the limits as they are or as somebody thinks of setting them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.utils import timezone

from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Gang, Node, Placing, Priority, Share, Snapshot
from jobs.models import Job
from jobs.selectors import installation
from jobs.selectors.snapshot import snapshot
from jobs.spec import Spec
from tenants.models import Tenant

SHOWN = 200
"""Jobs named per list; a queue of thousands would say no more."""


@dataclass(frozen=True, slots=True)
class Affected:
    """One waiting job. slots over all learners; reason: the sentence why it waits, empty if it starts."""

    job: str
    name: str
    tenant: str
    slots: int
    slot_type: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Outlook:
    """What one look of the scheduler decides. starting_ids holds all, the lists at most SHOWN jobs."""

    starting: tuple[Affected, ...]
    waiting: tuple[Affected, ...]
    starting_ids: frozenset[str]


def would_start(limits: Mapping[tuple[str, str], int]) -> Outlook:
    """Plan now with these limits, by (tenant, slot type), in place of the present ones. Changes nothing."""
    seen = _with_limits(snapshot(nodes=nodes(), now=timezone.now()), limits)
    decided = plan(seen)
    gangs = {gang.job: gang for gang in seen.waiting}
    starts = [start.job for start in decided.starts]
    waits = {wait.job: wait.message for wait in decided.waits}
    shown = [*starts[:SHOWN], *list(waits)[:SHOWN]]
    names = dict(Job.objects.filter(pk__in=shown).values_list("pk", "name"))

    def affected(job: str) -> Affected:
        gang = gangs[job]
        slots = gang.slots * gang.learners
        return Affected(job, names.get(job, ""), gang.tenant, slots, gang.slot_type, waits.get(job, ""))

    return Outlook(
        tuple(affected(job) for job in starts[:SHOWN]),
        tuple(affected(job) for job in list(waits)[:SHOWN]),
        frozenset(starts),
    )


def nodes() -> list[Node]:
    """The nodes as the last scheduling cycle saw them, in the scheduler's own shape."""
    return [Node(row.name, row.slot_type, row.slots, row.ready) for row in installation.nodes()]


def _with_limits(seen: Snapshot, limits: Mapping[tuple[str, str], int]) -> Snapshot:
    left = dict(limits)
    shares = [
        replace(share, limit=left.pop((share.tenant, share.slot_type), share.limit)) for share in seen.shares
    ]
    shares += [Share(tenant, slot_type, limit, 0) for (tenant, slot_type), limit in left.items()]
    return replace(seen, shares=tuple(shares))


@dataclass(frozen=True, slots=True)
class Preview:
    """What would happen to a job submitted now. nodes: one per learner if it starts; else code and message why not."""

    starts: bool
    slot_type: str | None
    nodes: tuple[str, ...]
    code: str
    message: str
    numbers: Mapping[str, Any]


def preview(tenant: Tenant, spec: Spec) -> Preview:
    """Plan now with one more job in the queue. Changes nothing."""
    now = timezone.now()
    gang = Gang(
        job=_NEW,
        tenant=tenant.slug,
        learners=spec.resources.learners,
        slots=spec.slots_per_learner,
        slot_type=spec.slot_type,
        placing=Placing(spec.placement),
        priority=Priority[spec.priority.upper()],
        queued_at=now,
        runs_at_most_s=spec.time_limit_s,
    )
    seen = snapshot(nodes=nodes(), now=now)
    decided = plan(replace(seen, waiting=(*seen.waiting, gang)))
    for start in decided.starts:
        if start.job == _NEW:
            where = ", ".join(sorted(set(start.placement.nodes)))
            message = f"Would start at once on {where}."
            return Preview(True, start.placement.slot_type, start.placement.nodes, "", message, {})
    wait = next(wait for wait in decided.waits if wait.job == _NEW)
    return Preview(False, spec.slot_type, (), wait.code.value, wait.message, wait.numbers)


_NEW = "zzzzzzzzzzzz"
"""Sorts behind every real id, so that the thought-up job stands last among its equals."""
