"""Limits for one user and for one job: who waits for them, what they hold back, and what they do not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Explanation, Plan, Priority, Snapshot, TenantState, WaitReason
from gpu_scheduler.policies.fair_share import OF_USER
from tests.gpu_scheduler.worlds import NOON, gang, next_snapshot, nodes, running, snapshot


def limited(
    world: Snapshot, *, jobs: int | None = None, max_time_s: int | None = None, **limits: Any
) -> Snapshot:
    """The same world with these limits in tenant red."""
    quotas = tuple(
        replace(quota, **limits) if (quota.tenant, quota.slot_type) == ("red", "a100") else quota
        for quota in world.quotas
    )
    state = TenantState("red", jobs_used=len(world.running), user_jobs_limit=jobs, max_time_s=max_time_s)
    return replace(world, quotas=quotas, tenants=(state,))


def why(made: Plan, job: str) -> Explanation:
    return next(wait for wait in made.waits if wait.job == job)


def started(made: Plan) -> list[str]:
    return [start.job for start in made.starts]


def test_a_user_at_the_limit_waits_and_no_other_user_of_the_tenant_does() -> None:
    world = snapshot(
        nodes(a1=16),
        [gang("j1", 1, 3, user="alice"), gang("j2", 1, 3, user="carol")],
        [running("r", "a1", slots=6, user="alice")],
        policy_state={"j1": NOON - timedelta(hours=3)},  # even when its starvation timeout is over
    )
    made = plan(limited(world, user_limit=8))
    assert started(made) == ["j2"]
    wait = why(made, "j1")
    assert wait.code is WaitReason.USER_GPUS
    assert wait.message == (
        "Waiting for a job of alice to end: alice uses 6 of 8 a100 GPUs that one user can have, this job needs 3."
    )
    assert {name: wait.numbers[name] for name in ("user_used", "user_limit", "asked", "holder")} == {
        "user_used": 6,
        "user_limit": 8,
        "asked": 3,
        "holder": "alice",
    }


def test_the_limit_counts_the_starts_of_this_very_plan() -> None:
    waiting = [gang(f"j{n}", 1, 2, user="alice") for n in range(4)]
    assert started(plan(limited(snapshot(nodes(a1=16), waiting), user_limit=5))) == ["j0", "j1"]
    assert started(plan(limited(snapshot(nodes(a1=16), waiting), jobs=3))) == ["j0", "j1", "j2"]


def test_a_user_with_too_many_jobs_waits_for_one_to_end() -> None:
    world = snapshot(nodes(a1=16), [gang("j1", user="alice")], [running("r", "a1", user="alice")])
    wait = why(plan(limited(world, jobs=1)), "j1")
    assert wait.code is WaitReason.USER_JOBS
    assert "alice runs 1 of at most 1 jobs that one user can run at once" in wait.message


def test_a_large_job_is_not_starved_by_its_own_users_small_ones() -> None:
    """Once its timeout is over, the user's later jobs leave it what it needs; those of others do not."""
    world = snapshot(
        nodes(a1=32),
        [
            gang("j1", 1, 6, user="alice"),
            gang("j2", 1, 2, user="alice"),
            gang("j3", 1, 2, user="carol"),
        ],
        [running("r", "a1", slots=4, user="alice")],
        policy_state={"j1": NOON - timedelta(seconds=301)},
    )
    made = plan(limited(world, user_limit=8))
    assert started(made) == ["j3"]
    assert why(made, "j2").message == (
        "Waiting its turn: of 8 a100 GPUs that one user can have, alice uses 4 and 6 are reserved for job j1 ahead in"
        " the queue; this job needs 2."
    )
    fresh = plan(limited(replace(world, policy_state={}), user_limit=8))
    assert started(fresh) == ["j2", "j3"]


def test_a_job_that_no_user_or_no_job_may_be_has_no_place_in_the_queue() -> None:
    world = snapshot(nodes(a1=16), [gang("j1", 2, 4, user="alice")])
    wait = why(plan(limited(world, user_limit=7)), "j1")
    assert (wait.code, "position" in wait.numbers) == (WaitReason.EXCEEDS_USER_LIMIT, False)
    wait = why(plan(limited(world, gang_limit=7)), "j1")
    assert (wait.code, "position" in wait.numbers) == (WaitReason.EXCEEDS_MAX_GANG, False)
    assert "this job needs 8 a100 GPUs over all learners, at most 7 are allowed" in wait.message
    assert started(plan(limited(world, user_limit=8, gang_limit=8))) == ["j1"]


def test_a_job_of_any_type_gets_one_whose_limit_allows_it() -> None:
    world = snapshot(nodes(a1=16, h1=4), [gang("j1", 1, 4, slot_type=None, user="alice")])
    made = plan(limited(world, gang_limit=2))
    assert [start.placement.slot_type for start in made.starts] == ["h200"]


def test_a_time_limit_is_needed_and_no_longer_than_allowed() -> None:
    jobs = [
        gang("j1", runs_at_most_s=7200),
        gang("j2", runs_at_most_s=7201),
        gang("j3"),
    ]
    made = plan(limited(snapshot(nodes(a1=16), jobs), max_time_s=7200))
    assert started(made) == ["j1"]
    assert why(made, "j2").code is why(made, "j3").code is WaitReason.EXCEEDS_MAX_TIME
    assert why(made, "j3").message == (
        "Jobs of this tenant can run for 2h at most, and this job has no time limit. Resubmit it with time_limit: 2h or"
        " less, or ask a platform admin to raise the limit."
    )


def test_nothing_is_stopped_for_an_urgent_job_that_its_user_may_not_have() -> None:
    """Not for one above the limit, nor for the second of two that only together are."""
    low = [running(f"r{n}", "a1", slots=4, user="carol") for n in range(2)]
    low = [replace(run, gang=replace(run.gang, priority=Priority.LOW)) for run in low]
    urgent = [gang(f"j{n}", 1, 4, user="alice", priority=Priority.URGENT) for n in range(2)]
    world = snapshot(nodes(a1=8), urgent, low)
    assert len(plan(limited(world, user_limit=8)).stops) == 2
    assert len(plan(limited(world, user_limit=4)).stops) == 1
    assert len(plan(limited(world, jobs=1)).stops) == 1
    assert plan(limited(world, user_limit=3)).stops == ()


def test_a_large_job_is_not_starved_by_its_own_users_small_ones_that_run_one_at_a_time() -> None:
    """Each small one would let another user's job onto the nodes of the large one, before the next small one comes."""
    world = snapshot(
        nodes(a1=8, a2=2),
        [gang("j1", 1, 6, user="alice"), gang("j2", 1, 2, user="alice"), gang("j3", 1, 8, user="carol")],
        [running("r", "a1", slots=8, user="carol")],
        policy_state={"j1": NOON - timedelta(hours=3)},
    )
    world = limited(world, jobs=1)
    made = plan(world)
    assert started(made) == []
    wait = why(made, "j2")
    assert wait.code is WaitReason.USER_JOBS
    assert wait.message == (
        "Waiting its turn: alice runs 0 of at most 1 jobs that one user can run at once, and 1 is reserved for job j1"
        " ahead in the queue."
    )
    assert (wait.numbers["user_jobs_reserved"], wait.numbers["holder"]) == (1, "j1")
    assert started(plan(next_snapshot(world, made, after_s=60, ended=["r"]))) == ["j1"]


def test_a_place_among_the_users_jobs_is_kept_while_one_of_them_runs() -> None:
    """The large job waits for its user's own, then for nodes: the user's later jobs leave it its place all the time."""
    world = snapshot(
        nodes(a1=8, a2=2),
        [gang("j1", 1, 6, user="alice"), gang("j2", 1, 2, user="alice")],
        [running("r1", "a1", slots=8, user="carol"), running("r2", "a2", slots=2, user="alice")],
        policy_state={f"{OF_USER}j1": NOON - timedelta(hours=3)},
    )
    world = limited(world, jobs=1)
    made = plan(world)
    assert why(made, "j1").code is WaitReason.USER_JOBS
    world = next_snapshot(world, made, after_s=60, ended=["r2"])
    made = plan(world)
    assert started(made) == []
    assert why(made, "j1").code is WaitReason.INSUFFICIENT_CAPACITY
    assert why(made, "j2").numbers["user_jobs_reserved"] == 1
    assert started(plan(next_snapshot(world, made, after_s=60, ended=["r1"]))) == ["j1"]


def test_a_job_that_its_users_own_held_back_for_hours_has_not_risen_over_other_tenants() -> None:
    """Nor does it go first in its class: it was no queue head of its tenant."""
    held_back = gang("j1", 1, 4, user="alice", priority=Priority.LOW)
    world = snapshot(nodes(a1=8), [held_back], [running("r", "a1", slots=6, user="alice")])
    world = limited(world, user_limit=8)
    made = plan(world)
    assert why(made, "j1").code is WaitReason.USER_GPUS
    later = next_snapshot(world, made, after_s=3 * 3600, ended=["r"])
    for priority in (Priority.HIGH, Priority.LOW):
        other = gang("j2", 1, 6, tenant="green", priority=priority, queued_at=NOON - timedelta(hours=2))
        quotas = (*later.quotas, *snapshot((), [other]).quotas)
        made = plan(replace(later, waiting=(held_back, other), quotas=quotas))
        assert started(made) == ["j2"]
        assert why(made, "j1").numbers["queue_head_since"].startswith("2026-01-01T15:00"), (
            "it is one only now"
        )
