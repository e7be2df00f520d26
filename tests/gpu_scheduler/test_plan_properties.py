"""What plan() promises for every snapshot, however odd."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.checks import CHECKS, NOT_QUEUED, RULES, Scope, check_named, check_of
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import (
    CPU_TYPE,
    LEVELS,
    NOTHING,
    Gang,
    Level,
    PlacementStrategy,
    Plan,
    Snapshot,
    Topology,
    WaitReason,
)
from gpu_scheduler.policies.fair_share import OF_USER, FairShare
from tests.gpu_scheduler.worlds import (
    NOON,
    TOPOLOGIES,
    TYPES,
    Free,
    fitting,
    fitting_together,
    free_after,
    gang,
    is_allowed,
    near,
    next_snapshot,
    nodes,
    overcommitted,
    racked_worlds,
    running,
    snapshot,
    usage_after,
    users_after,
    worlds,
)

EVERYDAY = settings(max_examples=300, deadline=None)


@EVERYDAY
@given(worlds())
def test_every_waiting_job_is_started_or_explained_once(world: Snapshot) -> None:
    made = plan(world)
    answered = [start.job for start in made.starts] + [wait.job for wait in made.waits]
    assert sorted(answered) == sorted(job.job for job in world.waiting)
    for wait in made.waits:
        assert wait.message.endswith(".")
        json.dumps(wait.numbers)
        states = [check["ok"] for check in wait.checks()]
        assert states.count(False) == 1
        assert states == [True] * states.index(False) + [False] + [None] * (
            len(states) - states.index(False) - 1
        )


@EVERYDAY
@given(worlds())
def test_no_node_gets_more_than_it_has_and_only_ready_nodes_of_the_type_get_any(world: Snapshot) -> None:
    """Slots, CPUs and memory, less what others hold. What ran before may hold more than its node has; starts not."""
    made = plan(world)
    by_name = {node.name: node for node in world.nodes}
    assert not overcommitted(world, made)
    for start in made.starts:
        for name in start.placement.nodes:
            assert by_name[name].ready
            assert by_name[name].slot_type == start.placement.slot_type


@EVERYDAY
@given(worlds())
def test_a_gang_starts_whole_on_the_type_it_asked_for(world: Snapshot) -> None:
    jobs = {job.job: job for job in world.waiting}
    for start in plan(world).starts:
        job = jobs[start.job]
        assert len(start.placement.nodes) == job.learners.min
        if job.slot_type is None:
            assert start.placement.slot_type != CPU_TYPE
        else:
            assert start.placement.slot_type == job.slot_type


@EVERYDAY
@given(worlds())
def test_no_start_takes_a_tenant_above_its_quota_or_its_jobs_limit(world: Snapshot) -> None:
    made = plan(world)
    used, live = usage_after(world, made)
    limits = {(quota.tenant, quota.slot_type): quota.limit for quota in world.quotas}
    states = {state.tenant: state for state in world.tenants}
    jobs = {job.job: job for job in world.waiting}
    for start in made.starts:
        tenant = jobs[start.job].tenant
        key = (tenant, start.placement.slot_type)
        assert used[key] <= limits.get(key, 0)
        assert not states[tenant].suspended
        jobs_limit = states[tenant].jobs_limit
        assert jobs_limit is None or live[tenant] <= jobs_limit


@EVERYDAY
@given(worlds())
def test_no_start_takes_a_user_or_a_job_above_its_tenants_limits(world: Snapshot) -> None:
    made = plan(world)
    held, live = users_after(world, made)
    quotas = {(quota.tenant, quota.slot_type): quota for quota in world.quotas}
    states = {state.tenant: state for state in world.tenants}
    jobs = {job.job: job for job in world.waiting}
    for start in made.starts:
        job = jobs[start.job]
        quota, state = quotas[job.tenant, start.placement.slot_type], states[job.tenant]
        assert quota.gang_limit is None or len(start.placement.nodes) * job.slots <= quota.gang_limit
        assert quota.user_limit is None or held[job.tenant, job.user, quota.slot_type] <= quota.user_limit
        assert state.user_jobs_limit is None or live[job.tenant, job.user] <= state.user_jobs_limit
        assert state.max_time_s is None or (job.runs_at_most_s or math.inf) <= state.max_time_s


@EVERYDAY
@given(worlds(), st.randoms(use_true_random=False))
def test_the_same_snapshot_gives_the_same_plan_in_whatever_order_it_is_listed(
    world: Snapshot, chance: random.Random
) -> None:
    def shuffled(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(chance.sample(items, len(items)))

    again = replace(
        world, nodes=shuffled(world.nodes), waiting=shuffled(world.waiting), running=shuffled(world.running)
    )
    assert plan(world) == plan(world) == plan(again)


@EVERYDAY
@given(worlds() | racked_worlds())
def test_nothing_that_could_start_waits_unless_slots_are_kept_for_a_head(world: Snapshot) -> None:
    """Work conservation: only FAIR_SHARE holds back a job that fits, for a queue head past its starvation timeout, or
    for a job that others are stopped for.

    A job that takes any type reports on the type on which it came furthest; slots may be reserved on another.
    """
    made = plan(world)
    free, (used, live) = free_after(world, made), usage_after(world, made)
    jobs = {job.job: job for job in world.waiting}
    since = {key.removeprefix(OF_USER): since for key, since in world.policy_state.items()}
    impatient = any(
        wait.job in since and (NOON - since[wait.job]).total_seconds() >= world.policy.starvation_timeout_s
        for wait in made.waits
    )
    kept = impatient or any(stop.for_job for stop in made.stops)
    for wait in made.waits:
        job = jobs[wait.job]
        of_user = wait.numbers.get("user_reserved") or wait.numbers.get("user_jobs_reserved")
        if wait.code is WaitReason.FAIR_SHARE or of_user:
            assert kept
        elif _could_start(job, world, made, free, used, live):
            assert job.slot_type is None
            assert kept


def _could_start(job: Gang, world: Snapshot, made: Plan, free, used, live) -> bool:
    state = next(state for state in world.tenants if state.tenant == job.tenant)
    if state.suspended or (state.jobs_limit is not None and live[job.tenant] >= state.jobs_limit):
        return False
    limits = {(quota.tenant, quota.slot_type): quota.limit for quota in world.quotas}
    types = [job.slot_type] if job.slot_type else [one for one in TYPES if one != CPU_TYPE]
    for slot_type in types:
        key = (job.tenant, slot_type)
        level = job.required_level
        room = (
            fitting_together(job, free, world, slot_type, level)
            if level
            else fitting(job, free, world, slot_type)
        )
        fits = room >= job.learners.min
        if (
            fits
            and is_allowed(job, world, made, slot_type)
            and used[key] + job.learners.min * job.slots <= limits.get(key, 0)
        ):
            return True
    return False


@EVERYDAY
@given(worlds() | racked_worlds())
def test_the_reason_given_is_true_when_the_plan_is_carried_out(world: Snapshot) -> None:
    made = plan(world)
    free, (used, live) = free_after(world, made), usage_after(world, made)
    jobs = {job.job: job for job in world.waiting}
    states = {state.tenant: state for state in world.tenants}
    quotas = {(quota.tenant, quota.slot_type): quota for quota in world.quotas}
    held, of_user = users_after(world, made)
    for wait in made.waits:
        job, numbers = jobs[wait.job], wait.numbers
        user = (job.tenant, job.user)
        asked = job.learners.min * job.slots
        pool = [node for node in world.nodes if node.slot_type == numbers["slot_type"]]
        free_now = sum(max(0, free[node.name][0]) for node in pool if node.ready)
        by_slots = sum(max(0, free[node.name][0]) // job.slots for node in pool if node.ready)
        all_fit = fitting(job, free, world, numbers["slot_type"]) >= job.learners.min
        match wait.code:
            case WaitReason.NO_MATCHING_POOL:
                assert sum(node.slots // job.slots for node in pool) < job.learners.min
            case WaitReason.NODE_TOO_SMALL:
                assert numbers["have"] < numbers["need"] or job.learners.min > 1
                assert not all_fit
            case WaitReason.EXCEEDS_MAX_QUOTA:
                assert asked > numbers["limit"]
            case WaitReason.EXCEEDS_MAX_GANG:
                assert asked > numbers["gang_limit"] == quotas[job.tenant, numbers["slot_type"]].gang_limit
            case WaitReason.EXCEEDS_MAX_TIME:
                assert (
                    (job.runs_at_most_s or math.inf) > numbers["max_time_s"] == states[job.tenant].max_time_s
                )
            case WaitReason.EXCEEDS_USER_LIMIT:
                assert asked > numbers["user_limit"] == quotas[job.tenant, numbers["slot_type"]].user_limit
            case WaitReason.USER_GPUS:
                assert numbers["user_used"] == held[*user, numbers["slot_type"]]
                assert (
                    numbers["user_used"] + numbers["user_reserved"] + asked > numbers["user_limit"] >= asked
                )
            case WaitReason.USER_JOBS:
                assert numbers["user_jobs_used"] == of_user[user]
                assert numbers["user_jobs_used"] + numbers["user_jobs_reserved"] >= numbers["user_jobs_limit"]
            case WaitReason.TENANT_SUSPENDED:
                assert states[job.tenant].suspended
            case WaitReason.QUOTA_GPUS:
                assert numbers["used"] == used[job.tenant, numbers["slot_type"]]
                assert numbers["used"] + asked > numbers["limit"] >= asked
            case WaitReason.QUOTA_JOBS:
                assert live[job.tenant] == numbers["jobs_used"] >= numbers["jobs_limit"]
            case WaitReason.INSUFFICIENT_CAPACITY:
                assert free_now == numbers["free"] < asked
            case WaitReason.GANG_FRAGMENTED:
                assert free_now == numbers["free"] >= asked
                assert by_slots < job.learners.min
            case WaitReason.NODE_CPUS | WaitReason.NODE_MEMORY:
                assert by_slots >= job.learners.min
                assert not all_fit
                assert numbers["have"] < numbers["need"] or job.learners.min > 1
                assert numbers["learners_fitting"] == fitting(job, free, world, numbers["slot_type"])
            case WaitReason.TOPOLOGY_TOO_SMALL:
                up = replace(
                    world, nodes=tuple(replace(node, ready=True) for node in world.nodes), running=()
                )
                alone = replace(up, nodes=tuple(replace(node, used_by_others=NOTHING) for node in up.nodes))
                _agrees_on_domains(job, numbers, free_after(alone, Plan()), alone)
            case WaitReason.TOPOLOGY_FRAGMENTED:
                assert all_fit
                _agrees_on_domains(job, numbers, free, world)
            case WaitReason.FAIR_SHARE:
                pass
            case other:
                raise AssertionError(f"{other} is none of plan()'s reasons")


def _agrees_on_domains(job: Gang, numbers: Mapping[str, Any], free: Free, world: Snapshot) -> None:
    level = Level(numbers["level"])
    assert level is job.required_level
    most = fitting_together(job, free, world, numbers["slot_type"], level)
    assert most == numbers["have"] < numbers["need"] == job.learners.min


@EVERYDAY
@given(racked_worlds())
def test_a_gang_that_requires_a_level_is_in_one_domain_of_it(world: Snapshot) -> None:
    jobs = {job.job: job for job in world.waiting}
    by_name = {node.name: node for node in world.nodes}
    for start in plan(world).starts:
        level = jobs[start.job].required_level
        if level is not None:
            first, *others = (by_name[name] for name in start.placement.nodes)
            assert all(near(first, other, level) for other in others)


@EVERYDAY
@given(racked_worlds(), TOPOLOGIES, st.sampled_from(PlacementStrategy))
def test_a_gang_is_in_the_smallest_domain_that_holds_it(
    world: Snapshot, topology: Topology, strategy: PlacementStrategy
) -> None:
    """PACK looks at the smallest level first, SPREAD at its own."""
    nodes = tuple(replace(node, avoid_until=None) for node in world.nodes)
    for job in world.waiting:
        asked = replace(job, topology=topology, strategy=strategy)
        alone = replace(world, nodes=nodes, waiting=(asked,), policy_state={})
        made = plan(alone)
        for start in made.starts:
            placed = [node for name in start.placement.nodes for node in nodes if node.name == name]
            free, slot_type = free_after(alone, Plan()), start.placement.slot_type
            own = LEVELS.index(topology.level)
            levels = LEVELS[0 if strategy is PlacementStrategy.PACK else own :]
            fit = [
                each
                for each in levels
                if fitting_together(asked, free, alone, slot_type, each) >= len(placed)
            ]
            assert all(near(placed[0], other, level) for level in fit[:1] for other in placed)


@EVERYDAY
@given(worlds())
def test_a_position_counts_who_is_ahead_and_no_job_that_its_own_tenant_holds_back(world: Snapshot) -> None:
    """So a tenant's queue of a type, with the jobs of others that wait for its nodes, is 1, 2, 3 …"""
    made = plan(world)
    tenant_of = {job.job: job.tenant for job in world.waiting}
    queued = [wait for wait in made.waits if wait.code not in NOT_QUEUED]
    assert all("position" not in wait.numbers for wait in made.waits if wait.code in NOT_QUEUED)
    for tenant in set(tenant_of.values()):
        for slot_type in {wait.numbers["slot_type"] for wait in queued}:
            seen = [
                wait
                for wait in queued
                if wait.numbers["slot_type"] == slot_type
                and (tenant_of[wait.job] == tenant or wait.numbers["scope"] == Scope.CLUSTER)
            ]
            for place, wait in enumerate(seen, start=1):
                if tenant_of[wait.job] == tenant:
                    assert wait.numbers["position"] == place


@EVERYDAY
@given(worlds())
def test_only_who_waits_for_nodes_is_ahead_in_the_cluster(world: Snapshot) -> None:
    ahead: Counter[str] = Counter()
    for wait in plan(world).waits:
        if wait.code in NOT_QUEUED:
            continue
        assert wait.numbers["nodes_ahead"] == ahead[wait.numbers["slot_type"]]
        ahead[wait.numbers["slot_type"]] += wait.numbers["scope"] == Scope.CLUSTER
        check = check_of(wait.code)
        assert check is not None
        assert wait.numbers["scope"] == check.scope or wait.code is WaitReason.FAIR_SHARE


@EVERYDAY
@given(worlds())
def test_only_jobs_that_wait_in_line_are_remembered_as_heads_and_marks_never_move(world: Snapshot) -> None:
    made = plan(world)
    waits = {wait.job: wait for wait in made.waits}
    for key, since in made.policy_state.items():
        job = key.removeprefix(OF_USER)
        assert waits[job].code not in NOT_QUEUED
        as_head = world.policy_state.get(job, NOON)
        assert since == (as_head if key == job else world.policy_state.get(key, as_head))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 8),
    st.sampled_from(PlacementStrategy),
    st.integers(0, 3),
    st.integers(5, 60),
    st.randoms(use_true_random=False),
)
def test_a_large_gang_starts_although_small_jobs_never_stop_coming(
    learners: int,
    slots: int,
    strategy: PlacementStrategy,
    small_priority: int,
    lasts: int,
    chance: random.Random,
) -> None:
    """Two flooding tenants keep every slot wanted; jobs last up to `lasts` rounds of a minute.

    The bound follows from the policy: the starvation timeout, or the aging that lifts the gang over the flood's
    class, then at most one job's length until the reserved nodes are empty.
    """
    policy = FairShare(starvation_timeout_s=300, aging_s=1800)
    world = snapshot(
        nodes(a1=8, a2=8, a3=8, a4=8),
        [gang("big", learners, slots, strategy=strategy, queued_at=NOON)],
        limits={"red": 32, "green": 32, "blue": 32},
        policy=policy,
    )
    world = replace(world, quotas=tuple(replace(quota, limit=32) for quota in _quotas_for(world)))
    ends: dict[str, int] = {}
    bound = (max(0, small_priority - 1) + 1) * 30 + 5 + lasts + 2
    for minute in range(bound):
        flood = [
            gang(
                f"s{minute}-{i}",
                1,
                chance.randint(1, 3),
                tenant=chance.choice(["green", "blue"]),
                priority=small_priority,
                queued_at=world.now,
            )
            for i in range(12)
        ]
        world = replace(world, waiting=(*world.waiting[:60], *flood))
        made = plan(world)
        if any(start.job == "big" for start in made.starts):
            return
        for start in made.starts:
            ends[start.job] = minute + chance.randint(1, lasts)
        world = next_snapshot(
            world, made, after_s=60, ended=[job for job, end in ends.items() if end <= minute]
        )
    raise AssertionError(f"the gang still waits after {bound} minutes")


def _quotas_for(world: Snapshot):
    both = snapshot(world.nodes, [gang("x", tenant="green"), gang("y", tenant="blue"), *world.waiting])
    return both.quotas


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 8), st.integers(2, 20), st.randoms(use_true_random=False))
def test_a_large_job_is_not_starved_by_its_own_tenants_small_ones(
    slots: int, lasts: int, chance: random.Random
) -> None:
    world = snapshot(
        nodes(a1=16),
        [gang("big", 1, slots, queued_at=NOON)],
        [running("first", "a1", slots=1)],
        limits={"red": 8},
    )
    ends = {"first": lasts}
    for minute in range(5 + 2 * lasts + 2):
        flood = [gang(f"s{minute}-{i}", 1, 1, queued_at=world.now) for i in range(9)]
        world = replace(world, waiting=(*world.waiting[:40], *flood))
        made = plan(world)
        if any(start.job == "big" for start in made.starts):
            return
        for start in made.starts:
            ends[start.job] = minute + chance.randint(1, lasts)
        world = next_snapshot(
            world, made, after_s=60, ended=[job for job, end in ends.items() if end <= minute]
        )
    raise AssertionError("the large job still waits")


def test_each_reason_is_given_by_one_rule_that_has_all_its_words() -> None:
    assert [check.code for check in CHECKS] == [
        code
        for code in WaitReason
        if code
        not in {
            WaitReason.NO_QUOTA,
            WaitReason.NOT_IDLE,
            WaitReason.NOT_EVALUATED,
            WaitReason.IDLE_LEAVING,
            WaitReason.IDLE_BACKOFF,
            WaitReason.START_PENDING,
            WaitReason.CLUSTER_BUSY,
            WaitReason.DISK_FULL,
            WaitReason.START_FAILED,
        }
    ]
    assert [check.code for check in RULES[len(CHECKS) :]] == [WaitReason.NO_QUOTA, WaitReason.NOT_IDLE]
    for check in RULES:
        assert check_of(check.code) is check
        assert check_named(check.key) is check
        assert check.title
        assert check.claim
        assert check.label
        assert bool(check.private) == bool(check.redacted)
