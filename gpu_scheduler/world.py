"""apply(snapshot, plan, ended) -> the next snapshot: the one place that knows what decisions and ends change.

The forecast, what-if questions and tests move through time with it. Time itself is the caller's: ``now`` stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import timedelta

from gpu_scheduler.model import Gang, Plan, Range, Resize, Running, Snapshot, Start, Stop

PROMISE_S = 60.0
"""Seconds for which the slots of a job that was stopped for another one are offered to that one first."""


def apply(snapshot: Snapshot, plan: Plan | None = None, ended: Collection[str] = ()) -> Snapshot:
    """What the next snapshot shows once this plan is carried out, and these running jobs have released their slots.

    Starts hold their slots from now. Stops and resizes are pending orders: the job holds its slots until it is in
    ended; then it waits again with its first queued_at, and the slots are promised to the job that it was stopped for.
    A job that ended without an order is gone. plan None: nothing was decided, the policy's state stays. O(n).
    """
    running = {run.job: run for run in snapshot.running}
    waiting = {gang.job: gang for gang in snapshot.waiting}
    began: list[Running] = []
    for start in plan.starts if plan else ():
        run = started(snapshot, waiting.pop(start.job), start)
        running[run.job] = run
        began.append(run)
    orders: list[Stop | Resize] = [*plan.stops, *plan.resizes] if plan else []
    for order in orders:
        if order.job in running:
            running[order.job] = ordered(running[order.job], order)
    over = [running.pop(job) for job in ended if job in running]
    back = [_queued_again(run, snapshot) for run in over if run.order is not None]
    promised = dict(snapshot.promised)
    for run in over:
        if isinstance(run.order, Stop) and run.order.for_job is not None:
            promised[run.order.for_job] = snapshot.now + timedelta(seconds=PROMISE_S)
    return replace(
        _with_use(snapshot, began, over),
        waiting=(*waiting.values(), *back),
        running=tuple(running.values()),
        policy_state=plan.policy_state if plan else snapshot.policy_state,
        promised=promised,
    )


def started(snapshot: Snapshot, gang: Gang, start: Start) -> Running:
    """The run of a gang that starts now."""
    at_most = gang.runs_at_most_s
    ends_by = None if at_most is None else snapshot.now + timedelta(seconds=at_most)
    placement = start.placement
    return Running(gang, placement.slot_type, placement.nodes, snapshot.now, ends_by)


def ordered(run: Running, order: Stop | Resize) -> Running:
    """The run with this order, unless it is void: the job's intent is newer, a newer order is pending, the run is
    already stopping, or a stop is pending and this is a resize."""
    if order.generation < run.generation or run.stopping:
        return run
    pending = run.order
    if pending is not None and order.generation < pending.generation:
        return run
    if isinstance(pending, Stop) and isinstance(order, Resize):
        return run
    return replace(run, order=order)


def instead(snapshot: Snapshot, old: str, new: Gang) -> Snapshot:
    """The snapshot in which this gang waits in place of the job old, at the position that its own queued_at gives."""
    left = tuple(gang for gang in snapshot.waiting if gang.job != old)
    return replace(snapshot, waiting=(*left, new))


def _queued_again(run: Running, snapshot: Snapshot) -> Gang:
    """A stopped run's gang as it waits again: its time limit is shorter by the time that it ran."""
    gang = run.gang
    if isinstance(run.order, Resize):
        gang = replace(gang, learners=Range.fixed(run.order.learners))
    if run.ends_by is None:
        return gang
    return replace(gang, runs_at_most_s=max(0.0, (run.ends_by - snapshot.now).total_seconds()))


def _with_use(snapshot: Snapshot, began: Iterable[Running], over: Iterable[Running]) -> Snapshot:
    """Quota and jobs limits follow."""
    slots: Counter[tuple[str, str]] = Counter()
    jobs: Counter[str] = Counter()
    for runs, sign in ((began, 1), (over, -1)):
        for run in runs:
            slots[run.tenant, run.slot_type] += sign * run.gang.slots * len(run.nodes)
            jobs[run.tenant] += sign
    if not jobs:
        return snapshot
    shares = (
        replace(share, used=max(0, share.used + slots[share.tenant, share.slot_type]))
        if (share.tenant, share.slot_type) in slots
        else share
        for share in snapshot.shares
    )
    tenants = (
        replace(state, jobs_used=max(0, state.jobs_used + jobs[state.tenant]))
        if state.tenant in jobs
        else state
        for state in snapshot.tenants
    )
    return replace(snapshot, shares=tuple(shares), tenants=tuple(tenants))
