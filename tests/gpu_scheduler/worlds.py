"""Builders and Hypothesis strategies for snapshots; a small oracle that knows the rules in another way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from gpu_scheduler import world
from gpu_scheduler.model import (
    Gang,
    Node,
    PlacementStrategy,
    Plan,
    QuotaUse,
    Range,
    Resources,
    Running,
    Snapshot,
    TenantState,
)
from gpu_scheduler.policies.fair_share import FairShare

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def nodes(**slots: int) -> tuple[Node, ...]:
    """nodes(a1=8) is one ready node of type a100; the first letter chooses the type."""
    types = {"a": "a100", "h": "h200", "c": "cpu"}
    return tuple(Node.with_slots(name, types[name[0]], count) for name, count in sorted(slots.items()))


def gang(job: str, learners: int = 1, slots: int = 1, **changes: Any) -> Gang:
    values: dict[str, Any] = {
        "tenant": "red",
        "slot_type": "a100",
        "strategy": PlacementStrategy.PACK,
        "priority": 1,
        "queued_at": NOON
        - timedelta(hours=1)
        + timedelta(seconds=int("".join(filter(str.isdigit, job)) or 0)),
    }
    values |= changes
    return Gang(
        job=job,
        learners=Range.fixed(learners),
        resources=Resources.of_slots(values["slot_type"], slots),
        **values,
    )


def running(job: str, *on: str, slots: int = 1, **changes: Any) -> Running:
    """One learner on each of these nodes."""
    of_gang = {name: changes.pop(name) for name in ("tenant", "slot_type") if name in changes}
    whole = gang(job, len(on), slots, queued_at=NOON - timedelta(hours=2), **of_gang)
    assert whole.slot_type is not None
    return Running(whole, whole.slot_type, on, NOON - timedelta(hours=1), **changes)


def snapshot(
    on: Iterable[Node],
    waiting: Iterable[Gang] = (),
    busy: Iterable[Running] = (),
    *,
    limits: dict[str, int] | None = None,
    **changes: Any,
) -> Snapshot:
    """A snapshot whose quotas follow from what runs; limits maps tenant to its limit of every type (100)."""
    waiting, busy = tuple(waiting), tuple(busy)
    used: Counter[tuple[str, str]] = Counter()
    for job in busy:
        used[job.tenant, job.slot_type] += job.slots * len(job.nodes)
    tenants = {job.tenant for job in (*waiting, *busy)}
    quotas = tuple(
        QuotaUse(tenant, slot_type, (limits or {}).get(tenant, 100), used[tenant, slot_type])
        for tenant in sorted(tenants)
        for slot_type in ("a100", "cpu", "h200")
    )
    values: dict[str, Any] = {"now": NOON, "quotas": quotas, "policy": FairShare()}
    return Snapshot(nodes=tuple(on), waiting=waiting, running=busy, **(values | changes))


def next_snapshot(before: Snapshot, plan: Plan, *, after_s: float, ended: Iterable[str] = ()) -> Snapshot:
    """The world after the plan was carried out, these jobs ended and some time passed."""
    after = world.apply(before, plan, tuple(ended))
    return replace(after, now=before.now + timedelta(seconds=after_s))


TENANTS = ("red", "green", "blue")
TYPES = ("a100", "cpu", "h200")


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    """Small clusters with everything that can go together: types, down nodes, heads, limits, suspension."""
    machines = tuple(
        Node.with_slots(
            f"n{i}",
            draw(st.sampled_from(TYPES)),
            draw(st.integers(1, 8)),
            draw(st.booleans() | st.just(True)),
        )
        for i in range(draw(st.integers(0, 5)))
    )
    busy = _busy(draw, machines)
    waiting = tuple(_waiting(draw, f"j{i}") for i in range(draw(st.integers(0, 9))))
    used: Counter[tuple[str, str]] = Counter()
    live: Counter[str] = Counter()
    for job in busy:
        used[job.tenant, job.slot_type] += job.slots * len(job.nodes)
        live[job.tenant] += 1
    quotas = tuple(
        QuotaUse(tenant, slot_type, draw(st.integers(0, 20)), used[tenant, slot_type])
        for tenant in TENANTS
        for slot_type in TYPES
        if draw(st.integers(0, 5))
    )
    states = tuple(
        TenantState(tenant, draw(st.integers(0, 7)) == 0, draw(st.none() | st.integers(0, 4)), live[tenant])
        for tenant in TENANTS
    )
    heads = {
        job.job: NOON - timedelta(seconds=draw(st.sampled_from([0, 100, 400, 4000, 9000])))
        for job in waiting
        if draw(st.integers(0, 3)) == 0
    }
    return Snapshot(NOON, machines, waiting, busy, quotas, FairShare(300, 3600), states, heads)


def _busy(draw: st.DrawFn, machines: tuple[Node, ...]) -> tuple[Running, ...]:
    free = {node.name: node.slots for node in machines}
    found = []
    for i in range(draw(st.integers(0, 4)) if machines else 0):
        first = draw(st.sampled_from(machines))
        slots = draw(st.integers(1, 4))
        on = []
        for node in machines:
            if node.slot_type == first.slot_type and free[node.name] >= slots and len(on) < 2:
                free[node.name] -= slots
                on.append(node.name)
        if on:
            ends = draw(st.none() | st.integers(0, 900))
            found.append(
                running(
                    f"r{i}",
                    *on,
                    slots=slots,
                    tenant=draw(st.sampled_from(TENANTS)),
                    slot_type=first.slot_type,
                    ends_by=None if ends is None else NOON + timedelta(seconds=ends),
                )
            )
    return tuple(found)


def _waiting(draw: st.DrawFn, name: str) -> Gang:
    return gang(
        name,
        draw(st.integers(1, 5)),
        draw(st.integers(1, 6)),
        tenant=draw(st.sampled_from(TENANTS)),
        slot_type=draw(st.sampled_from((*TYPES, "v100", None))),
        strategy=draw(st.sampled_from(PlacementStrategy)),
        priority=draw(st.integers(0, 3)),
        queued_at=NOON - timedelta(seconds=draw(st.integers(0, 5000))),
        runs_at_most_s=draw(st.none() | st.integers(1, 1200)),
    )


def free_after(world: Snapshot, plan: Plan) -> dict[str, int]:
    """Free slots per node once the plan is carried out; negative would be over-committed."""
    free = {node.name: node.slots for node in world.nodes}
    slots = {job.job: job.slots for job in world.waiting}
    for job in world.running:
        for name in job.nodes:
            free[name] -= job.slots
    for start in plan.starts:
        for name in start.placement.nodes:
            free[name] -= slots[start.job]
    return free


def usage_after(world: Snapshot, plan: Plan) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """Slots per (tenant, type) and live jobs per tenant once the plan is carried out."""
    used: Counter[tuple[str, str]] = Counter(
        {(quota.tenant, quota.slot_type): quota.used for quota in world.quotas}
    )
    live: Counter[str] = Counter({state.tenant: state.jobs_used for state in world.tenants})
    jobs = {job.job: job for job in world.waiting}
    for start in plan.starts:
        job = jobs[start.job]
        used[job.tenant, start.placement.slot_type] += job.learners.min * job.slots
        live[job.tenant] += 1
    return used, live
