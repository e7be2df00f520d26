"""GPU-hour budgets of tenants in a plan: what runs when one is used up is stopped with a save, and waits for the next.

That it does not start before is a check like the others (checks.tenant). CPU jobs and opportunistic ones neither count
nor are held.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

from gpu_scheduler.ledger import counts
from gpu_scheduler.model import Snapshot, Stop, TenantState
from gpu_scheduler.policies.orders import can_be_ordered

EXHAUSTED = "budget_exhausted"
"""Reason of the stops."""
MONTH_S = timedelta(days=31).total_seconds()
LEAST = timedelta(microseconds=1)
"""Later than a budget is used up by calculation it is used up by any rounding, too."""


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
    held = _held(snapshot, budgets)
    waits = {gang.tenant for gang in snapshot.waiting if counts(gang, gang.slot_type)}
    changes = []
    for tenant, budget in budgets.items():
        if tenant in waits:
            changes.append(budget.month_ends)
        if held[tenant] and budget.left_gpu_s > 0:
            lasts_s = budget.left_gpu_s / held[tenant]
            used_up = snapshot.now + timedelta(microseconds=math.ceil(1e6 * min(lasts_s, MONTH_S))) + LEAST
            changes.append(min(used_up, budget.month_ends))
    return min((at for at in changes if at > snapshot.now), default=None)


def elapsed(snapshot: Snapshot, until: datetime) -> tuple[TenantState, ...]:
    """The tenants at a later time, if what runs goes on until then: their budgets are used, or new with a month."""
    budgets = {state.tenant: state.budget for state in snapshot.tenants if state.budget is not None}
    if not budgets:
        return snapshot.tenants
    held = _held(snapshot, budgets)
    return tuple(
        _later(state, held[state.tenant], snapshot.now, until) if state.tenant in budgets else state
        for state in snapshot.tenants
    )


def month_after(first: datetime) -> datetime:
    """When the month ends that begins here."""
    return (first + timedelta(days=31)).replace(day=1)


def _later(state: TenantState, held: int, now: datetime, until: datetime) -> TenantState:
    ends, used = state.month_ends, state.used_gpu_s
    assert ends is not None
    while ends <= until:
        now, ends, used = ends, month_after(ends), 0.0
    return replace(state, used_gpu_s=used + held * (until - now).total_seconds(), month_ends=ends)


def _held(snapshot: Snapshot, tenants: Collection[str]) -> Counter[str]:
    """The slots that count against the budgets of these tenants."""
    held = Counter[str]()
    for run in snapshot.running:
        if run.tenant in tenants and counts(run.gang, run.slot_type):
            held[run.tenant] += run.slots * len(run.nodes)
    return held
