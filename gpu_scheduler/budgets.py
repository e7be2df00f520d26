"""GPU-hour budgets of tenants in a plan: what runs when one is used up is stopped with a save, and waits for the next.

That it does not start before is a check like the others (checks.tenant). CPU jobs and opportunistic ones neither count
nor are held.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

from gpu_scheduler.ledger import LEAST_RUN_S, counts
from gpu_scheduler.model import Gang, Snapshot, Stop, TenantState
from gpu_scheduler.policies.orders import can_be_ordered

EXHAUSTED = "budget_exhausted"
"""Reason of the stops."""
TICK_S = 1e-5


def enforced(snapshot: Snapshot) -> tuple[Snapshot, tuple[Stop, ...]]:
    """The stops of runs whose tenant's budget is used up, and the snapshot in which these are under way: a policy
    orders them nothing else, and counts on their leaving."""
    exhausted = {
        state.tenant
        for state in snapshot.tenants
        if state.budget is not None and state.budget.left_gpu_s <= 0
    }
    if not exhausted:
        return snapshot, ()
    stops = {
        run.job: Stop(run.job, EXHAUSTED, generation=run.generation)
        for run in snapshot.running
        if run.tenant in exhausted and counts(run.gang, run.slot_type) and can_be_ordered(run)
    }
    running = tuple(
        replace(run, order=stops[run.job]) if run.job in stops else run for run in snapshot.running
    )
    return replace(snapshot, running=running), tuple(stops.values())


def next_event_at(snapshot: Snapshot) -> datetime | None:
    """When a budget is used up if what runs continues, or when the month ends for which jobs wait; None: neither."""
    budgets = {state.tenant: state.budget for state in snapshot.tenants if state.budget is not None}
    if not budgets:
        return None
    held = _held(snapshot)
    waits = {gang.tenant for gang in snapshot.waiting if counts(gang, gang.slot_type)}
    changes = []
    for tenant, budget in budgets.items():
        if tenant in waits:
            changes.append(budget.month_ends)
        if held[tenant] and budget.left_gpu_s > 0:
            lasts_s = min(
                budget.left_gpu_s / held[tenant], (budget.month_ends - snapshot.now).total_seconds()
            )
            changes.append(snapshot.now + timedelta(seconds=lasts_s))
    return min((at for at in changes if at > snapshot.now), default=None)


def after(snapshot: Snapshot, now: datetime) -> tuple[TenantState, ...]:
    """The tenants once what runs has run on until this time, for those who move through time: what their budgets have
    left, of the calendar month (UTC) that it is then."""
    if now <= snapshot.now or all(state.budget is None for state in snapshot.tenants):
        return snapshot.tenants
    held = _held(snapshot)
    return tuple(
        state if state.budget is None else _used_on(state, snapshot.now, now, held[state.tenant])
        for state in snapshot.tenants
    )


def holds_back(snapshot: Snapshot, gang: Gang) -> bool:
    """Whether the budget of its tenant, as it is in the snapshot, does not last for the gang."""
    if not counts(gang, gang.slot_type):
        return False
    states = (state for state in snapshot.tenants if state.tenant == gang.tenant)
    budget = next((state.budget for state in states), None)
    if budget is None:
        return False
    return budget.left_gpu_s < (_held(snapshot)[gang.tenant] + gang.asked) * LEAST_RUN_S


def returns_at(snapshot: Snapshot) -> datetime | None:
    """When the next month begins for the first tenant of which a job waits for that, and for which it suffices."""
    ends = {state.tenant: state.budget for state in snapshot.tenants if state.budget is not None}
    waiting = (gang for gang in snapshot.waiting if gang.tenant in ends) if ends else ()
    return min(
        (
            ends[gang.tenant].month_ends
            for gang in waiting
            if gang.asked * LEAST_RUN_S <= ends[gang.tenant].gpu_hours * 3600 and holds_back(snapshot, gang)
        ),
        default=None,
    )


def _used_on(state: TenantState, since: datetime, now: datetime, held: int) -> TenantState:
    ends, used_s = state.month_ends, state.used_gpu_s
    assert ends is not None
    assert state.budget_gpu_hours is not None
    while ends <= now:
        since, used_s = max(since, ends), 0.0
        ends = (ends + timedelta(days=31)).replace(day=1)  # of a month's first day, so in the next one
    used_s += max(0.0, (now - since).total_seconds()) * held
    left_s = state.budget_gpu_hours * 3600 - used_s
    if 0 < left_s < held * TICK_S:  # it was to be used up now, and times are whole microseconds
        used_s += left_s
    return replace(state, used_gpu_s=used_s, month_ends=ends)


def _held(snapshot: Snapshot) -> Counter[str]:
    """By tenant, the GPUs that count against a budget."""
    held = Counter[str]()
    for run in snapshot.running:
        if counts(run.gang, run.slot_type):
            held[run.tenant] += run.slots * len(run.nodes)
    return held
