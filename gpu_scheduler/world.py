"""apply(snapshot, plan, ended) -> the next snapshot: the one place that knows what decisions and ends change.

The forecast, what-if questions and tests move through time with it. Time itself is the caller's: ``now`` stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from gpu_scheduler import cordoned, rests
from gpu_scheduler.model import (
    Gang,
    Plan,
    QuotaUse,
    Resize,
    Running,
    Snapshot,
    Start,
    Stop,
    TenantState,
)
from gpu_scheduler.policies.base import policy_of


def apply(snapshot: Snapshot, plan: Plan | None = None, ended: Collection[str] = ()) -> Snapshot:
    """What the next snapshot shows once this plan is carried out, and these running jobs have released their slots.

    Starts hold their slots from now and are the last in running, in the plan's order. Stops and resizes are pending
    orders: the job holds its slots until it is in ended; then it waits again with its first queued_at. The slots are
    promised to the job that it was stopped for, and after a resize to itself, too; of an opportunistic one it is noted
    that it left. A job that ended without an order is gone. plan None: nothing was decided, the policy's state stays.
    O(n), and what does not change is not copied: forecasts call this at each event.
    """
    waiting, running = snapshot.waiting, snapshot.running
    began: list[Running] = []
    released: list[Running] = []
    if plan is not None and plan.starts:
        starts = {start.job for start in plan.starts}
        gangs = {gang.job: gang for gang in waiting if gang.job in starts}
        began = [started(snapshot, gangs[start.job], start) for start in plan.starts]
        waiting = tuple([gang for gang in waiting if gang.job not in starts])
        running = (*running, *began)
    if plan is not None and (plan.stops or plan.resizes):
        running = _with_orders(running, (*plan.stops, *plan.resizes))
    if ended:
        gone = frozenset(ended)
        released = [run for run in running if run.gang.job in gone]
        running = tuple([run for run in running if run.gang.job not in gone])
        back = [_queued_again(run, snapshot) for run in released if run.order is not None and run.requeues]
        waiting = (*waiting, *back) if back else waiting
    quotas, tenants = _use(snapshot, began, released)
    return replace(
        snapshot,
        nodes=cordoned.with_room(snapshot.nodes, released),
        waiting=waiting,
        running=running,
        quotas=quotas,
        tenants=tenants,
        policy_state=snapshot.policy_state if plan is None else plan.policy_state,
        promised=_promised(snapshot, running, released, {run.job for run in began}),
        yielded=rests.after(snapshot, released),
    )


def started(snapshot: Snapshot, gang: Gang, start: Start) -> Running:
    """The run of a gang that starts now."""
    at_most = gang.runs_at_most_s
    ends_by = None if at_most is None else snapshot.now + timedelta(seconds=at_most)
    placement = start.placement
    return Running(gang, placement.slot_type, placement.nodes, snapshot.now, ends_by)


def ordered(run: Running, order: Stop | Resize) -> Running:
    """The run with this order, unless it is void: decided for another generation of the intent; for a run that is
    stopping (but a stop replaces a resize that is being carried out); a resize where a stop is pending, or to the size
    that the run has without leaving a node. The write of an order refuses the same ones."""
    pending = run.order
    if order.generation != run.generation:
        return run
    if isinstance(order, Stop):
        void = run.stopping and not (run.requeues and isinstance(pending, Resize))
    else:
        same = order.learners == len(run.nodes) and not order.leaves
        void = run.stopping or isinstance(pending, Stop) or same
    return run if void else replace(run, order=order)


def replace_waiting(snapshot: Snapshot, old: str, new: Gang) -> Snapshot:
    """The snapshot in which this gang waits in place of the job old, at the position that its own queued_at gives."""
    left = tuple(gang for gang in snapshot.waiting if gang.job != old)
    return replace(snapshot, waiting=(*left, new))


def _queued_again(run: Running, snapshot: Snapshot) -> Gang:
    """A stopped run's gang as it waits again: with the size of its order as target, and a time limit that is shorter by
    the time that it ran."""
    gang = run.gang
    if isinstance(run.order, Resize):
        gang = replace(gang, target=run.order.learners)
    if run.ends_by is None:
        return gang
    return replace(gang, runs_at_most_s=max(0.0, (run.ends_by - snapshot.now).total_seconds()))


def _with_orders(running: Iterable[Running], orders: Iterable[Stop | Resize]) -> tuple[Running, ...]:
    by_job = {run.gang.job: run for run in running}
    for order in orders:
        if order.job in by_job:
            by_job[order.job] = ordered(by_job[order.job], order)
    return tuple(by_job.values())


def _promised(
    snapshot: Snapshot, running: Iterable[Running], released: Iterable[Running], began: Collection[str]
) -> Mapping[str, datetime | None]:
    """Until when the policy has freed slots offered first to the job that they were freed for (Policy.promise_s)."""
    freed_for = [run.order.for_job for run in released if run.order is not None]
    resized = [run.job for run in released if isinstance(run.order, Resize)]
    stopped = [run for run in released if isinstance(run.order, Stop) and run.order.for_job is not None]
    past = {*began, *(run.job for run in stopped)}  # the latter wait for another one
    kept = {
        job: until
        for job, until in snapshot.promised.items()
        if job not in past and (until is None or until > snapshot.now)
    }
    promised = {**kept, **{job: None for job in (*freed_for, *resized) if job is not None}}
    if not promised:
        return promised
    leaving = {run.order.for_job for run in running if run.order is not None}
    until = snapshot.now + timedelta(seconds=policy_of(snapshot).promise_s)
    return {job: None if job in leaving else at or until for job, at in promised.items()}


def _use(
    snapshot: Snapshot, began: Collection[Running], released: Collection[Running]
) -> tuple[tuple[QuotaUse, ...], tuple[TenantState, ...]]:
    """The use of quotas and of limits on live jobs after these starts and ends."""
    if not (began or released):
        return snapshot.quotas, snapshot.tenants
    slots: Counter[tuple[str, str]] = Counter()
    jobs: Counter[str] = Counter()
    for runs, sign in ((began, 1), (released, -1)):
        for run in runs:
            if run.gang.opportunistic:
                continue
            slots[run.tenant, run.slot_type] += sign * run.slots * len(run.nodes)
            jobs[run.tenant] += sign
    quotas = tuple(
        replace(quota, used=max(0, quota.used + slots[quota.tenant, quota.slot_type]))
        if (quota.tenant, quota.slot_type) in slots
        else quota
        for quota in snapshot.quotas
    )
    tenants = tuple(
        replace(state, jobs_used=max(0, state.jobs_used + jobs[state.tenant]))
        if state.tenant in jobs
        else state
        for state in snapshot.tenants
    )
    return quotas, tenants
