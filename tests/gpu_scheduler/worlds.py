"""Builders and Hypothesis strategies for snapshots; a small oracle that knows the rules in another way."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from gpu_scheduler import world
from gpu_scheduler.model import (
    CPU_TYPE,
    Gang,
    Level,
    Node,
    PlacementStrategy,
    Plan,
    QuotaUse,
    Range,
    Resources,
    Room,
    Running,
    Snapshot,
    TenantState,
    Topology,
)
from gpu_scheduler.policies.fair_share import OF_USER, FairShare

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def nodes(**slots: int) -> tuple[Node, ...]:
    """nodes(a1=8) is one ready node of type a100; the first letter chooses the type."""
    types = {"a": "a100", "h": "h200", "c": "cpu"}
    return tuple(Node.with_slots(name, types[name[0]], count) for name, count in sorted(slots.items()))


def gang(
    job: str,
    learners: int = 1,
    slots: int = 1,
    *,
    cpus: float | None = None,
    memory_mib: int | None = None,
    **changes: Any,
) -> Gang:
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
        resources=Resources.of_slots(values["slot_type"], slots, cpus=cpus, memory_mib=memory_mib),
        **values,
    )


def running(job: str, *on: str, slots: int = 1, **changes: Any) -> Running:
    """One learner on each of these nodes."""
    names = ("tenant", "slot_type", "cpus", "memory_mib", "user", "priority", "project")
    of_gang = {name: changes.pop(name) for name in names if name in changes}
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
USERS = ("alice", "carol")
TYPES = ("a100", "cpu", "h200")


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    """Small clusters with everything that can go together: types, down nodes, heads, limits, suspension; CPUs and
    memory that some nodes report, and others hold parts of."""
    machines = tuple(_machine(draw, f"n{i}") for i in range(draw(st.integers(0, 5))))
    busy = _busy(draw, machines)
    waiting = tuple(_waiting(draw, f"j{i}") for i in range(draw(st.integers(0, 9))))
    used: Counter[tuple[str, str]] = Counter()
    live: Counter[str] = Counter()
    for job in busy:
        used[job.tenant, job.slot_type] += job.slots * len(job.nodes)
        live[job.tenant] += 1
    quotas = tuple(
        QuotaUse(
            tenant,
            slot_type,
            draw(st.integers(0, 20)),
            used[tenant, slot_type],
            user_limit=draw(st.none() | st.integers(1, 8)),
            gang_limit=draw(st.none() | st.integers(1, 12)),
        )
        for tenant in TENANTS
        for slot_type in TYPES
        if draw(st.integers(0, 5))
    )
    states = tuple(
        TenantState(
            tenant,
            draw(st.integers(0, 7)) == 0,
            draw(st.none() | st.integers(0, 4)),
            live[tenant],
            draw(st.none() | st.integers(1, 3)),
            draw(st.none() | st.none() | st.integers(300, 1500)),
        )
        for tenant in TENANTS
    )
    heads = {
        draw(st.sampled_from(["", OF_USER])) + job.job: NOON
        - timedelta(seconds=draw(st.sampled_from([0, 100, 400, 4000, 9000])))
        for job in waiting
        if draw(st.integers(0, 3)) == 0
    }
    return Snapshot(NOON, machines, waiting, busy, quotas, FairShare(300, 3600), states, heads)


CPUS, MEMORIES = (0.25, 1, 2.5, 6), (256, 1000, 4096, 20_000)


def _machine(draw: st.DrawFn, name: str) -> Node:
    slot_type, slots = draw(st.sampled_from(TYPES)), draw(st.integers(1, 8))
    node = Node.with_slots(
        name,
        slot_type,
        slots,
        draw(st.booleans() | st.just(True)),
        cpus=draw(st.none() | st.sampled_from([1, 4, 7.5, 16])),
        memory_mib=draw(st.none() | st.sampled_from([900, 4096, 16_384])),
    )
    if draw(st.booleans()):
        node = replace(
            node, rack=draw(st.sampled_from(["", "r1", "r2"])), block=draw(st.sampled_from(["", "b1", "b2"]))
        )
    if draw(st.booleans()):
        return node
    if draw(st.booleans()):
        node = replace(node, avoid_until=NOON + timedelta(seconds=draw(st.integers(-60, 60))))
    others = Resources.of_slots(
        slot_type,
        draw(st.integers(0, 2)),
        cpus=draw(st.sampled_from([0, 0.1, 3])),
        memory_mib=draw(st.integers(0, 1500)),
    )
    return replace(
        node, used_by_others=others, per_learner=Resources(memory_mib=draw(st.sampled_from([0, 256])))
    )


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
                    user=draw(st.sampled_from(USERS)),
                    slot_type=first.slot_type,
                    cpus=draw(st.none() | st.sampled_from(CPUS)),
                    memory_mib=draw(st.none() | st.sampled_from(MEMORIES)),
                    ends_by=None if ends is None else NOON + timedelta(seconds=ends),
                )
            )
    return tuple(found)


def _waiting(draw: st.DrawFn, name: str) -> Gang:
    return gang(
        name,
        draw(st.integers(1, 5)),
        draw(st.integers(1, 6)),
        cpus=draw(st.none() | st.sampled_from(CPUS)),
        memory_mib=draw(st.none() | st.sampled_from(MEMORIES)),
        tenant=draw(st.sampled_from(TENANTS)),
        user=draw(st.sampled_from(USERS)),
        slot_type=draw(st.sampled_from((*TYPES, "v100", None))),
        strategy=draw(st.sampled_from(PlacementStrategy)),
        priority=draw(st.integers(0, 3)),
        queued_at=NOON - timedelta(seconds=draw(st.integers(0, 5000))),
        runs_at_most_s=draw(st.none() | st.integers(1, 1200)),
        topology=draw(st.none() | TOPOLOGIES),
    )


@st.composite
def racked_worlds(draw: st.DrawFn) -> Snapshot:
    """One type on up to seven nodes in racks and blocks, some not known, and gangs with a topology that could start."""
    domains = st.tuples(st.sampled_from(["r1", "r1", "r2", ""]), st.sampled_from(["b1", "b1", "b2", ""]))
    machines = []
    for number in range(draw(st.integers(2, 7))):
        rack, block = draw(domains)
        node = Node.with_slots(f"n{number}", "a100", draw(st.integers(1, 4)))
        machines.append(replace(node, rack=rack, block=block))
    busy = [
        running(
            f"r{node.name}",
            node.name,
            slots=draw(st.integers(1, node.slots)),
            tenant=draw(tenants),
            priority=0,
        )
        for node in machines
        if draw(st.booleans())
    ]
    waiting = [
        gang(
            f"j{number}",
            draw(st.integers(2, 4)),
            draw(st.integers(1, 2)),
            tenant=draw(tenants),
            topology=draw(TOPOLOGIES),
            strategy=draw(st.sampled_from(PlacementStrategy)),
            priority=draw(st.sampled_from([1, 1, 3])),
        )
        for number in range(draw(st.integers(1, 3)))
    ]
    made = snapshot(machines, waiting, busy)
    return replace(made, tenants=tuple(TenantState(tenant) for tenant in TENANTS))


tenants = st.sampled_from(TENANTS[:2])
TOPOLOGIES = st.builds(Topology, st.sampled_from(Level), st.booleans())

Free = dict[str, Room]
"""Slots, thousandths of a CPU and MiB by node, as a Room; below zero where a node is over-committed."""


def free_after(world: Snapshot, plan: Plan) -> Free:
    """What every node has left once the plan is carried out. A node without a report of a resource has a lot of it."""
    free = {node.name: _left_by_others(node) for node in world.nodes}
    gangs = {job.job: job for job in world.waiting}
    on = {node.name: node for node in world.nodes}
    for job in world.running:
        for name in job.nodes:
            free[name] = _less(free[name], taken(job.gang, on[name], world))
    for start in plan.starts:
        for name in start.placement.nodes:
            free[name] = _less(free[name], taken(gangs[start.job], on[name], world))
    return free


def overcommitted(world: Snapshot, plan: Plan) -> set[str]:
    """The nodes of which starts take more of a resource than they had left: not those that lack what no start takes,
    because what ran there before holds more of it than there is."""
    before, after = free_after(world, Plan()), free_after(world, plan)
    return {
        name
        for name, left in after.items()
        if any(now < 0 and now < then for now, then in zip(left, before[name], strict=True))
    }


def taken(job: Gang, node: Node, world: Snapshot) -> Room:
    """By one learner, with what comes on top of it on nodes of this type."""
    pool = [other.per_learner.memory_mib or 0 for other in world.nodes if other.slot_type == node.slot_type]
    cpus = 0 if node.slot_type == CPU_TYPE else round((job.resources.cpus or 0) * 1000)
    return job.slots, cpus, (job.resources.memory_mib or 0) + max(pool)


def fitting(
    job: Gang, free: Free, world: Snapshot, slot_type: str, among: Iterable[Node] | None = None
) -> int:
    """How many of its learners fit on the nodes of the type that are ready, or on those of them among these."""
    found = 0
    for node in world.nodes if among is None else among:
        if node.ready and node.slot_type == slot_type:
            need = taken(job, node, world)
            found += max(0, min(has // one for has, one in zip(free[node.name], need, strict=True) if one))
    return found


def near(one: Node, other: Node, level: Level) -> bool:
    """Whether two nodes are known to be in one domain of the level."""
    if one.name == other.name:
        return True
    same_rack = one.rack == other.rack != "" and one.block == other.block
    same_block = one.block == other.block != ""
    return (level is not Level.NODE and same_rack) or (level is Level.BLOCK and same_block)


def fitting_together(job: Gang, free: Free, world: Snapshot, slot_type: str, level: Level) -> int:
    """How many of its learners fit at most on nodes of the type that are near each other: round each node in turn."""
    return max(
        (
            fitting(job, free, world, slot_type, [node for node in world.nodes if near(node, one, level)])
            for one in world.nodes
        ),
        default=0,
    )


def _left_by_others(node: Node) -> Room:
    others = node.used_by_others
    has_cpus = node.slot_type != CPU_TYPE and node.allocatable.cpus is not None
    cpus = round((node.allocatable.cpus or 0) * 1000) if has_cpus else PLENTY
    memory = PLENTY if node.allocatable.memory_mib is None else node.allocatable.memory_mib
    held = (
        node.slots - others.slots(node.slot_type),
        cpus - round((others.cpus or 0) * 1000),
        memory - (others.memory_mib or 0),
    )
    return max(0, held[0]), max(0, held[1]), max(0, held[2])


def _less(one: Room, other: Room) -> Room:
    return one[0] - other[0], one[1] - other[1], one[2] - other[2]


PLENTY = 10**12


def usage_after(world: Snapshot, plan: Plan) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """Slots per (tenant, type) and live jobs per tenant once the plan is carried out."""
    used: Counter[tuple[str, str]] = Counter(
        {(quota.tenant, quota.slot_type): quota.used for quota in world.quotas}
    )
    live: Counter[str] = Counter({state.tenant: state.jobs_used for state in world.tenants})
    jobs = {job.job: job for job in world.waiting}
    for start in plan.starts:
        job = jobs[start.job]
        used[job.tenant, start.placement.slot_type] += len(start.placement.nodes) * job.slots
        live[job.tenant] += 1
    return used, live


def users_after(
    world: Snapshot, plan: Plan
) -> tuple[Counter[tuple[str, str, str]], Counter[tuple[str, str]]]:
    """Slots per (tenant, user, type) and live jobs per (tenant, user) once the plan is carried out."""
    held: Counter[tuple[str, str, str]] = Counter()
    live: Counter[tuple[str, str]] = Counter()
    for run in world.running:
        held[run.tenant, run.gang.user, run.slot_type] += run.slots * len(run.nodes)
        live[run.tenant, run.gang.user] += 1
    jobs = {job.job: job for job in world.waiting}
    for start in plan.starts:
        job = jobs[start.job]
        held[job.tenant, job.user, start.placement.slot_type] += len(start.placement.nodes) * job.slots
        live[job.tenant, job.user] += 1
    return held, live


def is_allowed(job: Gang, world: Snapshot, plan: Plan, slot_type: str) -> bool:
    """Whether the limits on single jobs and on users let it start on this type after the plan, whatever else does."""
    held, live = users_after(world, plan)
    state = next(state for state in world.tenants if state.tenant == job.tenant)
    quota = next(
        (quota for quota in world.quotas if (quota.tenant, quota.slot_type) == (job.tenant, slot_type)), None
    )
    asked, user = job.learners.min * job.slots, (job.tenant, job.user)
    return (
        (state.max_time_s is None or (job.runs_at_most_s or math.inf) <= state.max_time_s)
        and (state.user_jobs_limit is None or live[user] < state.user_jobs_limit)
        and (quota is None or quota.gang_limit is None or asked <= quota.gang_limit)
        and (quota is None or quota.user_limit is None or held[*user, slot_type] + asked <= quota.user_limit)
    )
