"""GPU-hour budgets of tenants in a plan: what runs when one is used up is stopped with a save, and waits for the next.

That it does not start before is a check like the others (checks.tenant). CPU jobs and opportunistic ones neither count
nor are held.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

from gpu_scheduler.ledger import counts
from gpu_scheduler.model import Running, Snapshot, Stop
from gpu_scheduler.policies.orders import can_be_ordered

EXHAUSTED = "budget_exhausted"
"""Reason of the stops."""


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
    held = Counter[str]()
    for run in snapshot.running:
        if run.tenant in budgets and counts(run.gang, run.slot_type):
            held[run.tenant] += _slots(run)
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


def _slots(run: Running) -> int:
    return run.slots * len(run.nodes)
