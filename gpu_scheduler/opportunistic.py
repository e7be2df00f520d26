"""Opportunistic jobs: a plan is made without them, then they get what it leaves, and leave where it starts others.

The plan for all other jobs is that of a cluster without opportunistic ones, so these change no explanation of it and
delay its starts only by what ``clearing`` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from gpu_scheduler import cordoned, rests
from gpu_scheduler.checks import Scope
from gpu_scheduler.clearing import Cleared
from gpu_scheduler.draft import Draft
from gpu_scheduler.model import Explanation, Gang, Plan, Resize, Running, Snapshot, Start, WaitReason, unit
from gpu_scheduler.places import LEAVES_WITHIN, is_stuck
from gpu_scheduler.policies.base import policy_of
from gpu_scheduler.policies.opportunistic import Opportunistic


def has_any(snapshot: Snapshot) -> bool:
    """Whether any job of the snapshot is opportunistic."""
    return any(run.gang.opportunistic for run in snapshot.running) or any(
        gang.opportunistic for gang in snapshot.waiting
    )


def without(snapshot: Snapshot) -> Snapshot:
    """The snapshot as if there were none, but for what stuck ones hold. A job for which some leave would have started
    already: slots are promised to it, so it keeps its place."""
    leaving = [run for run in snapshot.running if run.gang.opportunistic]
    stuck = [run for run in leaving if is_stuck(run, snapshot.now)]
    gone = [run for run in leaving if not is_stuck(run, snapshot.now)]
    orders = [run.order for run in gone if run.order is not None]
    awaited: dict[str, datetime | None] = {
        order.for_job: None for order in orders if order.for_job is not None
    }
    others = [run for run in snapshot.running if not run.gang.opportunistic]
    return replace(
        snapshot,
        nodes=cordoned.with_room(snapshot.nodes, gone),
        promised={**snapshot.promised, **awaited},
        waiting=tuple(gang for gang in snapshot.waiting if not gang.opportunistic),
        running=(*others, *map(_holder, stuck)),
    )


def _holder(run: Running) -> Running:
    """What it holds on nodes, as that of no tenant, and with no known end; no order would be carried out."""
    gang = replace(run.gang, tenant="", user="", project="", opportunistic=False)
    return replace(run, gang=gang, stopping=False, requeues=False, order=None, ends_by=None)


def next_event_at(snapshot: Snapshot) -> datetime | None:
    """When a plan can change without a start, an end or a new job: the policy's time, when a run that leaves counts as
    stuck, or when one that left often may start again."""
    leaving = (run.stopping_since for run in snapshot.running if run.gang.opportunistic)
    stuck = [since + LEAVES_WITHIN for since in leaving if since is not None]
    changes = [
        policy_of(snapshot).next_event_at(snapshot),
        rests.next_end(snapshot),
        *(at for at in stuck if at > snapshot.now),
    ]
    return min((at for at in changes if at is not None), default=None)


def left_for_opportunistic(
    snapshot: Snapshot,
    runs: Iterable[Running],
    resizes: Iterable[Resize],
    draft: Draft,
    away: Collection[str],
) -> Snapshot:
    """What opportunistic jobs can have: beside all runs and these, of starts that take place or wait, beside what runs
    grow by, by these orders and those under way, and on no node of which anything is reserved. They borrow nothing, and
    no project's share is theirs. away: those of them that are offered nothing."""
    kept = frozenset(name for pool in draft.pools.values() for name in pool.reserved_nodes)
    return replace(
        snapshot,
        waiting=tuple(gang for gang in snapshot.waiting if gang.opportunistic and gang.job not in away),
        running=(*snapshot.running, *runs),
        quotas=tuple(replace(quota, cohort="") if quota.cohort else quota for quota in snapshot.quotas),
        policy=Opportunistic(kept, tuple(_growing(snapshot, resizes))),
        policy_state={},
        promised={},
        projects=(),
    )


def _growing(snapshot: Snapshot, resizes: Iterable[Resize]) -> Iterator[tuple[Running, int]]:
    """The runs that are to have learners in other places, and how many, beside those that a draft knows itself, of runs
    that leave cordoned nodes already."""
    new = {resize.job: resize for resize in resizes}
    usable = cordoned.usable(snapshot.nodes)
    known = {run.job: learners for run, learners in cordoned.leaving(snapshot)}
    for run in snapshot.running:
        order = new.get(run.job, run.order)
        if not isinstance(order, Resize):
            continue
        if (more := cordoned.elsewhere(run, order.learners, usable) - known.get(run.job, 0)) > 0:
            yield run, more


def merged(plan: Plan, cleared: Cleared, rest: Plan, gangs: Mapping[str, Gang], *, explained: bool) -> Plan:
    """One plan of both."""
    starts, stops = (*cleared.starts, *rest.starts), (*plan.stops, *cleared.stops)
    if not explained:
        return replace(plan, starts=starts, stops=stops)
    waits = [_waits(gangs[start.job], start, count) for start, count in cleared.waiting]
    ahead = Counter(_queue(wait, gangs) for wait in plan.waits if "position" in wait.numbers)
    ahead.update((start.placement.slot_type, "") for start, _ in cleared.waiting)
    behind = [_behind(wait, ahead, gangs) for wait in rest.waits]
    return replace(plan, starts=starts, stops=stops, waits=(*waits, *plan.waits, *behind))


def _queue(wait: Explanation, gangs: Mapping[str, Gang]) -> tuple[str, str]:
    """Slot type and, of a job that its own tenant's limits hold back, the tenant: it is ahead of no other's."""
    of_tenant = wait.numbers["scope"] is not Scope.CLUSTER
    return wait.numbers["slot_type"], gangs[wait.job].tenant if of_tenant else ""


def _behind(wait: Explanation, ahead: Counter[tuple[str, str]], gangs: Mapping[str, Gang]) -> Explanation:
    """With its position behind all other jobs that wait for the same."""
    numbers = wait.numbers
    if "position" not in numbers:
        return wait
    slot_type = numbers["slot_type"]
    nodes_ahead = ahead[slot_type, ""]
    moved = {
        "nodes_ahead": numbers["nodes_ahead"] + nodes_ahead,
        "position": numbers["position"] + nodes_ahead + ahead[slot_type, gangs[wait.job].tenant],
    }
    return replace(wait, numbers={**numbers, **moved})


def _waits(gang: Gang, start: Start, count: int) -> Explanation:
    """Of a job that starts as soon as opportunistic ones have left."""
    slots, slot_type = len(start.placement.nodes) * gang.slots, start.placement.slot_type
    jobs = "an opportunistic job has" if count == 1 else f"{count} opportunistic jobs have"
    message = (
        f"Starts as soon as {jobs} saved and left the {slots} {unit(slot_type, slots)} that it starts on."
    )
    numbers = {
        "slot_type": slot_type,
        "learners": len(start.placement.nodes),
        "slots": gang.slots,
        "asked": gang.asked,
        "stopping_for_it": count,
    }
    return Explanation(gang.job, WaitReason.IDLE_LEAVING, message, numbers)
