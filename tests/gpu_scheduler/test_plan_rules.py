"""The scheduler's rules one by one, each on the smallest cluster that shows it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from gpu_scheduler.checks import Remedy, check_of
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import (
    Explanation,
    Node,
    PlacementStrategy,
    Plan,
    Priority,
    TenantState,
    WaitReason,
    timestamp,
)
from gpu_scheduler.policies.base import Policy
from gpu_scheduler.policies.fair_share import FairShare
from gpu_scheduler.policies.fifo import FifoBackfill
from tests.gpu_scheduler.worlds import NOON, gang, nodes, running, snapshot


def started(made: Plan) -> list[str]:
    return [start.job for start in made.starts]


def where(made: Plan, job: str) -> tuple[str, ...]:
    return next(start.placement.nodes for start in made.starts if start.job == job)


def why(made: Plan, job: str) -> Explanation:
    return next(wait for wait in made.waits if wait.job == job)


# PlacementStrategy


def test_pack_takes_the_tightest_node_that_holds_the_gang() -> None:
    made = plan(snapshot(nodes(a1=8, a2=4, a3=2), [gang("j1", 2, 2)]))
    assert where(made, "j1") == ("a2", "a2")


def test_pack_takes_the_fewest_nodes_and_the_tightest_for_the_rest() -> None:
    made = plan(snapshot(nodes(a1=4, a2=2, a3=8), [gang("j1", 5, 2)]))
    assert where(made, "j1") == ("a3",) * 4 + ("a2",)


def test_spread_takes_as_many_nodes_as_it_has_learners_the_freest_first() -> None:
    made = plan(snapshot(nodes(a1=2, a2=8, a3=4), [gang("j1", 2, 2, strategy=PlacementStrategy.SPREAD)]))
    assert where(made, "j1") == ("a2", "a3")


def test_spread_goes_round_when_there_are_fewer_nodes_than_learners() -> None:
    made = plan(snapshot(nodes(a1=8, a2=8), [gang("j1", 5, 1, strategy=PlacementStrategy.SPREAD)]))
    assert Counter(where(made, "j1")) == {"a1": 3, "a2": 2}


def test_a_gang_that_does_not_fit_whole_takes_nothing() -> None:
    made = plan(snapshot(nodes(a1=8), [gang("j1", 2, 5), gang("j2", 1, 8)]))
    assert started(made) == ["j2"]


def test_a_node_that_is_not_ready_gets_nothing_and_is_mentioned() -> None:
    down = Node.with_slots("a2", "a100", 8, ready=False)
    made = plan(snapshot([*nodes(a1=2), down], [gang("j1", 1, 4)]))
    wait = why(made, "j1")
    assert wait.code is WaitReason.INSUFFICIENT_CAPACITY
    assert wait.message == "Waiting for capacity: 2 of 2 a100 GPUs free, this job needs 4; 1 node is down."


def test_any_type_goes_where_the_largest_part_is_free() -> None:
    made = plan(
        snapshot(nodes(a1=8, h1=8), [gang("j1", slot_type=None)], [running("r", "a1", tenant="green")])
    )
    assert made.starts[0].placement.slot_type == "h200"


def test_any_type_never_means_cpu() -> None:
    wait = why(plan(snapshot(nodes(c1=8), [gang("j1", slot_type=None)])), "j1")
    assert wait.code is WaitReason.NO_MATCHING_POOL
    assert wait.message == "This cluster has no GPU nodes; request no GPUs (gpus: 0)."


def test_any_type_avoids_a_type_without_quota() -> None:
    world = snapshot(nodes(a1=8, h1=8), [gang("j1", slot_type=None)])
    quotas = tuple(replace(quota, limit=0) if quota.slot_type == "a100" else quota for quota in world.quotas)
    assert plan(replace(world, quotas=quotas)).starts[0].placement.slot_type == "h200"


def test_a_gang_of_any_type_is_explained_by_the_type_that_could_take_most() -> None:
    world = snapshot(nodes(a1=8, h1=8), [gang("j1", 1, 8, slot_type=None)])
    limits = {"a100": 0, "h200": 4}
    quotas = tuple(replace(quota, limit=limits.get(quota.slot_type, 0)) for quota in world.quotas)
    wait = why(plan(replace(world, quotas=quotas)), "j1")
    assert wait.message == (
        "Larger than the tenant's quota of each GPU type on which this job fits: it needs 8 GPUs of one type, the"
        " largest of these quotas is 4 h200 GPUs. Request fewer, or ask a platform admin for more quota."
    )
    larger = plan(snapshot(nodes(a1=2, h1=4), [gang("j1", 1, 8, slot_type=None)]))
    assert "the largest node has 4" in why(larger, "j1").message


# Order


def test_a_higher_class_goes_first_even_if_it_came_later() -> None:
    made = plan(
        snapshot(nodes(a1=1), [gang("j1", tenant="green"), gang("j2", priority=Priority.HIGH)]),
    )
    assert started(made) == ["j2"]


def test_inside_a_tenant_first_come_is_first_served() -> None:
    made = plan(snapshot(nodes(a1=1), [gang("j2"), gang("j1")]))
    assert started(made) == ["j1"]


def test_the_tenant_that_uses_the_smaller_part_of_its_quota_goes_first() -> None:
    made = plan(
        snapshot(
            nodes(a1=4),
            [gang("j1"), gang("j2", tenant="green")],
            [running("r1", "a1", slots=2), running("r2", "a1", tenant="green")],
            limits={"red": 8, "green": 2},
        )
    )
    assert started(made) == ["j1"]


def test_a_flood_of_one_tenant_takes_turns_with_the_others() -> None:
    flood = [gang(f"j{i}") for i in range(20)]
    late = [gang(f"k{i}", tenant="green", queued_at=NOON) for i in range(4)]
    made = plan(snapshot(nodes(a1=8), flood + late))
    assert sum(job.startswith("k") for job in started(made)) == 4


# Backfill and starvation

HEAD = gang("j1", 2, 8)


def _pool_with_a_waiting_head(*later, since_s: float, busy_until=None):
    """Two nodes of 8; one slot of a1 is busy, so the 2 × 8 head cannot start."""
    return snapshot(
        nodes(a1=8, a2=8),
        [HEAD, *later],
        [running("r", "a1", tenant="green", ends_by=busy_until)],
        policy_state={"j1": NOON - timedelta(seconds=since_s)},
    )


def test_a_head_that_cannot_start_is_remembered_from_now_and_passed() -> None:
    world = replace(_pool_with_a_waiting_head(gang("j2"), since_s=0), policy_state={})
    made = plan(world)
    assert started(made) == ["j2"]
    assert made.policy_state == {"j1": NOON}
    (waits,) = made.waits
    assert waits.numbers["queue_head_since"] == "2026-01-01T12:00:00.000Z"


def test_before_the_starvation_timeout_a_head_is_passed() -> None:
    assert started(plan(_pool_with_a_waiting_head(gang("j2"), since_s=299))) == ["j2"]


def test_after_the_starvation_timeout_nothing_takes_what_the_head_needs() -> None:
    made = plan(_pool_with_a_waiting_head(gang("j2"), gang("j3", tenant="blue"), since_s=300))
    assert started(made) == []
    assert why(made, "j2").code is WaitReason.FAIR_SHARE
    assert why(made, "j2").message == (
        "Waiting its turn: 15 of 15 free a100 GPUs are reserved for job j1 ahead in the queue, so 0 are left;"
        " this job needs 1 a100 GPU. The reservation holds until that job starts."
    )
    assert why(made, "j3").message == why(made, "j2").message.replace("job j1", "a job of another tenant")
    assert (why(made, "j2").numbers["holder"], why(made, "j3").numbers["holder"]) == ("j1", None)
    assert why(made, "j1").code is WaitReason.INSUFFICIENT_CAPACITY


def test_slots_that_the_head_does_not_need_are_used_meanwhile() -> None:
    world = _pool_with_a_waiting_head(gang("j2", tenant="blue"), since_s=9000)
    made = plan(replace(world, nodes=(*world.nodes, Node.with_slots("a3", "a100", 4))))
    assert where(made, "j2") == ("a3",)


def test_a_job_that_ends_before_the_head_can_start_runs_on_its_slots() -> None:
    ends = NOON + timedelta(seconds=600)
    for limit, expected in ((600, ["j2"]), (601, [])):
        short = gang("j2", tenant="blue", runs_at_most_s=limit)
        assert started(plan(_pool_with_a_waiting_head(short, since_s=400, busy_until=ends))) == expected


@pytest.mark.parametrize("policy", [FairShare(), FifoBackfill()])
@pytest.mark.parametrize(("beyond_s", "free"), [(0, "a2"), (1, "a1"), (89 * 86_400, "a1")])
def test_an_end_that_is_out_of_sight_is_no_reason_to_wait_for_it(
    policy: Policy, beyond_s: float, free: str
) -> None:
    """Within a day what ends for certain is reserved, however much it lacks; beyond it, what lacks the least."""
    world = snapshot(
        nodes(a1=8, a2=8),
        [gang("j1", 1, 8), gang("j2", 1, 1, tenant="blue")],
        [
            running("r1", "a1", slots=6, ends_by=NOON + timedelta(days=1, seconds=beyond_s)),
            running("r2", "a2", slots=1),
        ],
        policy=policy,
        policy_state={"j1": NOON - timedelta(hours=0.5)} if isinstance(policy, FairShare) else {},
    )
    assert where(plan(world), "j2") == (free,)
    aging = NOON + timedelta(hours=0.5)
    in_sight = NOON + timedelta(seconds=beyond_s)
    expected = {
        FairShare: min(aging, in_sight if beyond_s else aging),
        FifoBackfill: in_sight if beyond_s else None,
    }
    assert policy.next_event_at(world) == expected[type(policy)]
    assert policy.next_event_at(replace(world, waiting=(), policy_state={})) is None


def test_no_job_runs_on_reserved_slots_because_it_ends_before_what_is_out_of_sight() -> None:
    short = gang("j2", tenant="blue", runs_at_most_s=600)
    for seconds, expected in ((0, ["j2"]), (1, [])):
        busy_until = NOON + timedelta(days=1, seconds=seconds)
        assert started(plan(_pool_with_a_waiting_head(short, since_s=400, busy_until=busy_until))) == expected


def test_kept_slots_are_of_the_nodes_that_lack_least() -> None:
    world = snapshot(
        nodes(a1=8, a2=8, a3=8),
        [gang("j1", 1, 8), gang("j2", 1, 2, tenant="blue")],
        [running("r1", "a1", slots=6), running("r2", "a2", slots=1), running("r3", "a3", slots=6)],
        policy_state={"j1": NOON - timedelta(hours=0.5)},
    )
    assert where(plan(world), "j2") == ("a1",)


def test_a_head_waiting_for_quota_is_not_passed_forever_by_its_own_tenant() -> None:
    world = snapshot(
        nodes(a1=16),
        [gang("j1", 1, 8), gang("j2"), gang("k1", tenant="green")],
        [running("r", "a1", slots=4)],
        limits={"red": 8},
        policy_state={"j1": NOON - timedelta(seconds=301)},
    )
    made = plan(world)
    assert started(made) == ["k1"]
    assert why(made, "j1").code is WaitReason.QUOTA_GPUS
    assert why(made, "j2").code is WaitReason.FAIR_SHARE
    assert why(made, "j2").message == (
        "Waiting its turn: 4 of the tenant's 8 a100 GPUs are in use and 8 are reserved for job j1 ahead in the queue;"
        " this job needs 1 a100 GPU. The reservation holds until that job starts."
    )
    assert [check["check"] for check in why(made, "j2").checks() if check["ok"] is False] == ["fair_share"]


def test_a_reservation_whose_nodes_have_a_known_end_says_until_when() -> None:
    for ends, moment in ((600, "12:10 UTC"), (86_400, "02 Jan 12:00 UTC")):
        at = NOON + timedelta(seconds=ends)
        made = plan(_pool_with_a_waiting_head(gang("j2", tenant="blue"), since_s=400, busy_until=at))
        wait = why(made, "j2")
        assert wait.message.endswith(f"The reservation holds until {moment} at the latest.")
        assert wait.numbers["until"] == timestamp(at)


def test_a_limit_of_concurrent_jobs_that_is_reserved_names_who_for() -> None:
    world = snapshot(
        nodes(a1=16),
        [gang("j1", 1, 16), gang("j2")],
        [running("r", "a1", slots=4)],
        policy_state={"j1": NOON - timedelta(seconds=301)},
        limits={"red": 100},
    )
    limited = TenantState("red", jobs_limit=2, jobs_used=1)
    message = why(plan(replace(world, tenants=(limited,))), "j2").message
    assert "the tenant runs 1 of at most 2 jobs at once and 1 is reserved for job j1" in message


def _two_heads_and_one_job_left(h1: int, second: str | None = "a100"):
    """Two overdue queue heads, j1 that needs 8 h200 and j2 that needs 8 GPUs, of a tenant that may run one more job."""
    since = NOON - timedelta(seconds=900)
    world = snapshot(
        nodes(a1=4, a2=4, h1=h1, h2=8),
        [gang("j1", 1, 8, slot_type="h200"), gang("j2", 2, 4, slot_type=second), gang("j3")],
        [running("r1", "a1", slots=1, tenant="green"), running("r2", "h2", slot_type="h200", tenant="green")],
        policy_state={"j1": since, "j2": since + timedelta(seconds=1)},
    )
    return replace(world, tenants=(TenantState("red", jobs_limit=3, jobs_used=2),))


def test_no_job_waits_for_what_is_reserved_for_itself_or_a_later_one() -> None:
    made = plan(_two_heads_and_one_job_left(h1=4))
    assert started(made) == []
    assert why(made, "j1").code is WaitReason.GANG_FRAGMENTED
    second, third = why(made, "j2"), why(made, "j3")
    assert (second.numbers["holder"], third.numbers["holder"]) == ("j1", "j1")
    assert "and 1 is reserved for job j1 ahead in the queue" in second.message
    assert "and 2 are reserved for job j1 ahead in the queue" in third.message


def test_the_first_of_two_heads_takes_the_last_job_that_the_limit_allows() -> None:
    made = plan(_two_heads_and_one_job_left(h1=8))
    assert started(made) == ["j1"]
    assert why(made, "j2").code is WaitReason.QUOTA_JOBS


def test_a_job_of_any_type_does_not_wait_for_its_own_reservation_on_another_type() -> None:
    for job in ("j1", "j2"):
        made = plan(_two_heads_and_one_job_left(h1=4, second=None))
        assert why(made, job).numbers.get("holder") != job


def test_a_head_that_waited_an_aging_time_climbs_over_the_next_class() -> None:
    urgent = gang("j2", 1, 8, tenant="green", priority=Priority.HIGH)
    world = snapshot(nodes(a1=8), [gang("j1", 1, 8), urgent])
    assert started(plan(world)) == ["j2"]
    waited = {"j1": NOON - timedelta(seconds=3600)}
    assert started(plan(replace(world, policy_state=waited))) == ["j1"]


def test_a_gang_that_needs_a_node_which_is_down_keeps_nothing() -> None:
    down = Node.with_slots("a2", "a100", 8, ready=False)
    world = snapshot(
        [*nodes(a1=8), down],
        [HEAD, gang("j2")],
        policy_state={"j1": NOON - timedelta(hours=2)},
        limits={"red": 100},
    )
    assert started(plan(world)) == ["j2"]


# Reasons and their arithmetic


def test_waiting_for_quota_shows_the_arithmetic() -> None:
    wait = why(
        plan(snapshot(nodes(a1=16), [gang("j1", 1, 4)], [running("r", "a1", slots=6)], limits={"red": 8})),
        "j1",
    )
    assert wait.code is WaitReason.QUOTA_GPUS
    assert wait.message == "Waiting for quota: 6 of 8 a100 GPUs in use, this job needs 4."
    assert wait.numbers == {
        "slot_type": "a100",
        "learners": 1,
        "slots": 4,
        "asked": 4,
        "limit": 8,
        "used": 6,
        "free": 10,
        "total": 16,
        "reserved": 0,
        "largest_block": 10,
        "largest_node": 16,
        "learners_fitting": 2,
        "nodes_down": 0,
        "jobs_limit": None,
        "jobs_used": 0,
        "position": 1,
        "nodes_ahead": 0,
        "scope": "tenant",
        "queue_head_since": "2026-01-01T12:00:00.000Z",
    }
    assert [(check["check"], check["ok"]) for check in wait.checks()] == [
        ("pool", True),
        ("max_quota", True),
        ("tenant", True),
        ("quota", False),
        ("jobs", None),
        ("fair_share", None),
        ("capacity", None),
        ("gang", None),
    ]


def test_a_fragmented_cluster_is_distinguished_from_a_full_one() -> None:
    busy = [running("r1", "a1", slots=5), running("r2", "a2", slots=5), running("r3", "a3", slots=0)]
    made = plan(snapshot(nodes(a1=8, a2=8, a3=8), [gang("j1", 2, 6)], busy))
    wait = why(made, "j1")
    assert wait.code is WaitReason.GANG_FRAGMENTED
    assert wait.message == (
        "Waiting for 2 × 6 at the same time: 14 a100 GPUs are free, but only 1 of 2 learners fit on nodes."
    )


@pytest.mark.parametrize(
    ("job", "code", "message"),
    [
        (
            gang("j1", slot_type="v100"),
            WaitReason.NO_MATCHING_POOL,
            "This cluster has no v100 nodes; choose another type.",
        ),
        (
            gang("j1", 1, 9),
            WaitReason.NO_MATCHING_POOL,
            "No node is large enough: a learner needs 9 a100 GPUs on one node, the largest node has 8."
            " Request at most 8 per learner.",
        ),
        (
            gang("j1", 3, 8),
            WaitReason.NO_MATCHING_POOL,
            "The cluster is too small: 3 × 8 a100 GPUs do not fit even if nothing else runs. Request fewer learners.",
        ),
        (
            gang("j1", 2, 8),
            WaitReason.EXCEEDS_MAX_QUOTA,
            "Larger than the tenant's quota: this job needs 16 a100 GPUs, the quota is 12."
            " Request fewer, or ask a platform admin for more quota.",
        ),
    ],
)
def test_what_can_never_start_says_what_to_change(job, code, message) -> None:
    wait = why(plan(snapshot(nodes(a1=8, a2=8), [job], limits={"red": 12})), "j1")
    assert (wait.code, wait.message) == (code, message)
    assert "position" not in wait.numbers


@pytest.mark.parametrize(
    ("kind", "of"),
    [("a100", "for a100 GPUs"), ("cpu", "for CPUs"), (None, "for any GPU type on which this job fits")],
)
def test_no_quota_row_means_no_quota_and_no_advice_to_ask_for_fewer(kind: str | None, of: str) -> None:
    there = (Node.with_slots("n1", kind or "a100", 8),)
    wait = why(plan(replace(snapshot(there, [gang("j1", slot_type=kind)]), quotas=())), "j1")
    assert wait.code is WaitReason.EXCEEDS_MAX_QUOTA
    assert wait.numbers["limit"] == 0
    assert wait.message == f"The tenant has no quota {of}, this job needs 1; ask a platform admin."
    check = check_of(wait.code)
    assert check is not None
    assert check.remedy_for(wait.numbers) is Remedy.ASK


def test_quota_for_a_type_on_which_the_job_cannot_run_is_not_denied() -> None:
    """Quota of h200, whose nodes are too small; room on a100, for which there is no quota."""
    world = snapshot(nodes(a1=8, h1=4), [gang("j1", 1, 8, slot_type=None)])
    quotas = tuple(replace(quota, limit=0) if quota.slot_type == "a100" else quota for quota in world.quotas)
    wait = why(plan(replace(world, quotas=quotas)), "j1")
    assert wait.message.startswith("The tenant has no quota for any GPU type on which this job fits")


def test_of_any_type_no_single_type_is_named_as_too_small() -> None:
    large = plan(snapshot(nodes(a1=8, h1=4), [gang("j1", 1, 16, slot_type=None)]))
    assert "needs 16 GPUs on one node, the largest node has 8" in why(large, "j1").message
    many = plan(snapshot(nodes(a1=8, h1=8), [gang("j1", 3, 8, slot_type=None)]))
    assert why(many, "j1").message == (
        "The cluster is too small: 3 × 8 GPUs of one type do not fit even if nothing else runs. Request fewer learners."
    )


def test_a_suspended_tenant_starts_nothing() -> None:
    made = plan(snapshot(nodes(a1=8), [gang("j1")], tenants=(TenantState("red", suspended=True),)))
    assert why(made, "j1").code is WaitReason.TENANT_SUSPENDED
    assert made.policy_state == {}


def test_the_jobs_limit_counts_the_starts_of_this_very_plan() -> None:
    made = plan(
        snapshot(
            nodes(a1=8),
            [gang("j1"), gang("j2")],
            tenants=(TenantState("red", jobs_limit=3, jobs_used=2),),
        )
    )
    assert started(made) == ["j1"]
    assert why(made, "j2").message == (
        "Waiting for another job to end: the tenant runs 3 of at most 3 jobs at once."
    )


def test_other_tenants_jobs_are_never_named() -> None:
    made = plan(_pool_with_a_waiting_head(gang("j2", tenant="blue"), since_s=300))
    wait = why(made, "j2")
    assert "j1" not in f"{wait.message}{wait.numbers}"
    assert "green" not in f"{wait.message}{wait.numbers}"
