"""Why an elastic run gets no more learners: each reason, by the code that decided."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings

from gpu_scheduler.cycle import plan
from gpu_scheduler.model import (
    Growth,
    GrowthReason,
    Profile,
    Project,
    ProjectShare,
    QuotaUse,
    Range,
    Resize,
    Snapshot,
    StepTimes,
    Stop,
    TenantState,
)
from gpu_scheduler.policies.fair_share import FairShare
from gpu_scheduler.policies.fifo import Fifo
from gpu_scheduler.policies.per_pool import PerPool
from gpu_scheduler.policies.sizes import Resizes
from tests.gpu_scheduler.elastic_runs import FLAT, PERFECT, elastic_worlds, run
from tests.gpu_scheduler.worlds import NOON, gang, nodes, running, snapshot

Reason = GrowthReason


def growth(made: Snapshot, job: str = "r1") -> Growth:
    (found,) = (each for each in plan(made).growths if each.job == job)
    return found


def alone(*on: str, free: int = 8, **changes: Any) -> Snapshot:
    return snapshot(nodes(a1=free), [], [run("r1", *on, **changes)])


def limited(**limits: Any) -> Snapshot:
    made = alone("a1", "a1", user="u")
    return replace(made, quotas=(QuotaUse("red", "a100", 16, 2, **limits),))


def test_what_is_free_is_counted_against_the_next_size() -> None:
    found = growth(snapshot(nodes(a1=1, a2=1), [], [run("r1", "a1"), running("r2", "a2")]))
    assert (found.code, found.numbers["free"], found.numbers["needed"]) == (Reason.NOT_FREE, 0, 1)
    assert found.message == (
        "Runs with 1 of up to 8 learners: the next size needs 1 more a100 GPU; 0 are free."
    )


def test_what_waits_is_what_free_devices_are_kept_for() -> None:
    held = [run("r1", "a1"), running("r2", "a2")]
    found = growth(snapshot(nodes(a1=2, a2=2), [gang("j1", 1, 2)], held))
    assert (found.code, found.numbers["free"], found.numbers["kept"]) == (Reason.KEPT, 2, 2)
    assert found.message.endswith("2 are free, of which 2 are kept for other jobs.")


def test_the_quota_of_its_tenant() -> None:
    made = replace(alone("a1", "a1"), quotas=(QuotaUse("red", "a100", 2, 2),))
    found = growth(made)
    assert (found.code, found.numbers["left"]) == (Reason.QUOTA, 0)
    assert found.message.endswith("its tenant's quota has 0 left.")


def test_what_another_run_of_its_tenant_takes_of_the_quota_is_not_said_to_be_left() -> None:
    held = [run("r1", "a1"), run("r2", "a1")]
    made = replace(snapshot(nodes(a1=8), [], held), quotas=(QuotaUse("red", "a100", 3, 2),))
    found = [each for each in plan(made).growths if each.code in (Reason.QUOTA, Reason.OTHERS_GAIN)]
    assert [each.code for each in found] == [Reason.OTHERS_GAIN], plan(made).growths


def test_more_learners_that_are_no_faster_and_a_change_that_does_not_pay() -> None:
    flat = growth(alone("a1", profile=FLAT))
    assert (flat.code, flat.numbers["tried"], flat.numbers["times"]) == (Reason.NOT_FASTER, 2, 1.0)
    assert "2 learners would be 1.00 times as fast" in flat.message


def test_a_change_pays_only_within_its_time() -> None:
    small = replace(PERFECT, step_times=StepTimes(1.0, 0.05))
    made = alone("a1", profile=small, checkpoint_cost_s=100.0, restart_cost_s=100.0)
    found = growth(made)
    assert found.code in (Reason.NOT_WORTH, Reason.NOT_FASTER), found
    assert "times as fast" in found.message


def test_what_is_not_measured_is_said_not_to_be_known() -> None:
    found = growth(alone("a1", profile=Profile()))
    assert found.code is Reason.NOT_MEASURED
    assert "not known yet" in found.message


def test_a_run_that_started_a_short_time_ago_says_when_it_is_considered() -> None:
    made = alone("a1")
    young = replace(made, running=(replace(made.running[0], started_at=NOON - timedelta(seconds=30)),))
    found = growth(young)
    assert (found.code, found.numbers["until"]) == (
        Reason.SETTLING,
        "2026-01-01T12:00:30.000Z",
    )
    assert found.message == growth(replace(young, now=NOON + timedelta(seconds=5))).message, (
        "no new words each time"
    )


def test_work_that_a_change_would_lose() -> None:
    found = growth(alone("a1", saves_when_asked=False))
    assert found.code is Reason.COSTS
    assert (found.numbers["cost_s"], found.numbers["unsaved_since"]) == (30, "2026-01-01T11:00:00.000Z")
    assert found.message.endswith(
        "a change would cost about 30 s and the work since 2026-01-01 11:00:00 UTC, more than the 600 s in which it"
        " must pay."
    )


SLIGHTLY = replace(PERFECT, step_times=StepTimes(1.0, 0.3))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (alone("a1", saves_when_asked=False), Reason.COSTS),
        (
            alone(
                "a1",
                profile=SLIGHTLY,
                saves_when_asked=False,
                last_checkpoint_at=NOON - timedelta(seconds=400),
            ),
            Reason.NOT_WORTH,
        ),
    ],
    ids=["costs", "not_worth"],
)
def test_unsaved_work_that_grows_is_said_in_the_same_words_pass_after_pass(
    made: Snapshot, reason: GrowthReason
) -> None:
    first = growth(made)
    assert first.code is reason
    later = [growth(replace(made, now=NOON + timedelta(seconds=seconds))) for seconds in (1, 7, 20)]
    assert later == [first] * 3


@pytest.mark.parametrize(
    ("made", "reason", "most"),
    [
        (limited(gang_limit=2), Reason.JOB_LIMIT, 2),
        (limited(user_limit=2), Reason.USER_LIMIT, 2),
        (alone("a1", profile=replace(PERFECT, most=1)), Reason.FAILED_WITH_MORE, 1),
        (alone("a1", profile=replace(PERFECT, batch=Range(1, 1))), Reason.BATCH, 1),
        (alone("a1", "a1", free=2), Reason.NODES, 2),
        (
            replace(
                alone("a1", "a1", project="p"),
                projects=(Project("red", "p", shares=(ProjectShare("a100", 0, 2),)),),
            ),
            Reason.PROJECT_LIMIT,
            2,
        ),
    ],
    ids=["job", "user", "failed", "batch", "nodes", "project"],
)
def test_what_bounds_it(made: Snapshot, reason: GrowthReason, most: int) -> None:
    found = growth(made)
    assert (found.code, found.numbers["most"]) == (reason, most)


def test_a_tenant_that_could_not_start_it_again() -> None:
    made = replace(alone("a1"), tenants=(TenantState("red", suspended=True),))
    found = growth(made)
    assert found.code is Reason.CANNOT_RETURN
    assert "its tenant's limits, or its suspension," in found.message


@pytest.mark.parametrize("gone", [False, True], ids=["cordoned", "gone"])
def test_a_node_that_takes_no_learners_is_not_said_to_be_a_limit(gone: bool) -> None:
    """Its fewest find no place elsewhere, so it stays where it is."""
    held = run("r1", "a1", "a1", "a2", "a2", least=3)
    first, other = nodes(a1=2, a2=2)
    found = growth(snapshot((first,) if gone else (first, replace(other, cordoned=True)), [], [held]))
    assert found.code is Reason.NODE_CLOSED
    assert found.message.endswith(": one of its nodes takes no learners any more.")
    alone_there = growth(snapshot((), [], [held]))
    assert alone_there.code is Reason.NODE_CLOSED, "its type has no node"


def test_a_run_that_leaves_a_node_in_its_size_is_said_to_move() -> None:
    first, other, third = nodes(a1=1, a2=1, a3=1)
    machines = (first, replace(other, cordoned=True), third)
    found = growth(snapshot(machines, [], [run("r1", "a1", "a2")]))
    assert (found.code, found.message) == (
        Reason.MOVING,
        "Runs with 2 of up to 8 learners: it is being moved to other nodes.",
    )


def test_a_resize_that_is_decided_or_under_way() -> None:
    made = alone("a1")
    assert (growth(made).code, growth(made).numbers["to"]) == (Reason.RESIZING, 8)
    going = replace(made, running=(replace(made.running[0], order=Resize("r1", 4)),))
    assert growth(going).numbers["to"] == 4


def test_others_that_shrink_first_or_gain_more() -> None:
    held = [run("r1", *["a1"] * 6), run("r2", "a1", "a1")]
    first = snapshot(nodes(a1=8), [gang("j1", 1, 2)], held)
    assert growth(first, "r2").code is Reason.SHRINKING_FIRST
    full = snapshot(nodes(a1=8), [], [run("r1", *["a1"] * 7), run("r2", "a1")])
    assert (growth(full, "r2").code, growth(full, "r2").numbers["to"]) == (Reason.AFTER_OTHERS, 4)


def test_as_many_as_may_change_at_once() -> None:
    policy = FairShare(resizes=Resizes(at_once=0.0, at_least=1))
    made = snapshot(nodes(a1=4), [], [run("r1", "a1"), run("r2", "a1")], policy=policy)
    assert [growth(made, job).code for job in ("r1", "r2")] == [Reason.RESIZING, Reason.AT_ONCE]


def test_a_policy_that_resizes_nothing_explains_nothing_and_pools_explain_their_own() -> None:
    made = alone("a1", profile=FLAT)
    assert plan(replace(made, policy=Fifo())).growths == ()
    assert growth(replace(made, policy=PerPool(Fifo(), {"a100": FairShare()}))).code is Reason.NOT_FASTER
    assert plan(made, explained=False).growths == ()
    assert plan(alone(*["a1"] * 8)).growths == (), "it has its most"


@settings(deadline=None)
@given(elastic_worlds())
def test_every_run_that_could_have_more_has_a_reason_and_nothing_else_is_decided(made: Snapshot) -> None:
    decided = plan(made)
    could = {
        each.job
        for each in made.running
        if each.gang.elastic
        and len(each.nodes) < each.gang.learners.max
        and not each.stopping
        and each.requeues
        and not isinstance(each.order, Stop)
        and each.job not in {stop.job for stop in decided.stops}
    }
    assert {each.job for each in decided.growths} == could
    assert replace(decided, waits=()) == plan(made, explained=False)
    assert all(each.code is not Reason.UNKNOWN for each in decided.growths)
    grows = {each.job for each in decided.resizes}
    assert grows & could <= {each.job for each in decided.growths if each.code is Reason.RESIZING}
