"""Stops and resizes from the plan through the world to the forecast, driven by a policy that gives such orders."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler import world
from gpu_scheduler.cycle import plan
from gpu_scheduler.forecast import Basis, RunTime, WhyNone, forecast
from gpu_scheduler.model import (
    Placement,
    Plan,
    Priority,
    Range,
    Resize,
    Running,
    Snapshot,
    Start,
    Stop,
    TenantState,
)
from gpu_scheduler.policies.base import Policy
from gpu_scheduler.policies.fair_share import FairShare
from tests.gpu_scheduler.preempting import Preempting
from tests.gpu_scheduler.worlds import NOON, gang, next_snapshot, nodes, running, snapshot, worlds

EVERYDAY = settings(max_examples=150, deadline=None)


def low(job: str, *on: str, slots: int = 8, least: int | None = None, **changes: object) -> Running:
    """A run of low priority; least: the fewest learners to which it can shrink."""
    run = running(job, *on, slots=slots, **changes)
    learners = Range(len(on) if least is None else least, len(on))
    return replace(run, gang=replace(run.gang, priority=Priority.LOW, learners=learners))


def full(*runs: Running, **changes: object) -> Snapshot:
    """Two nodes of eight, and an urgent job that needs one of them."""
    urgent = gang("j1", 1, 8, tenant="green", priority=Priority.URGENT)
    return snapshot(nodes(a1=8, a2=8), [urgent], runs, policy=Preempting(), **changes)


@st.composite
def mixed_worlds(draw: st.DrawFn) -> Snapshot:
    """Worlds whose runs have priorities and can shrink, under a policy that stops and resizes."""
    made = draw(worlds())
    runs = []
    for run in made.running:
        least = draw(st.integers(1, len(run.nodes)))
        learners = Range(least, len(run.nodes))
        runs.append(
            replace(
                run, gang=replace(run.gang, learners=learners, priority=draw(st.integers(0, 3))), generation=1
            )
        )
    return replace(made, running=tuple(runs), policy=Preempting(300, 3600))


def overcommitted(state: Snapshot) -> dict[str, int]:
    """Slots above what a node has allocatable, by node."""
    used: Counter[str] = Counter()
    for run in state.running:
        for name in run.nodes:
            used[name] += run.slots
    return {node.name: used[node.name] - node.slots for node in state.nodes if used[node.name] > node.slots}


def test_an_urgent_job_stops_the_least_important_run_and_gets_its_node() -> None:
    before = full(low("r1", "a1"), replace(low("r2", "a2"), gang=gang("r2", 1, 8)))
    made = plan(before)
    assert made.stops == (Stop("r1", "preempted", "j1"),)
    ordered = world.apply(before, made)
    assert [run.order for run in ordered.running] == [Stop("r1", "preempted", "j1"), None]
    assert plan(ordered).stops == ()

    freed = next_snapshot(ordered, Plan(policy_state=ordered.policy_state), after_s=9, ended=["r1"])
    assert [(job.job, job.queued_at) for job in freed.waiting][1:] == [
        ("r1", before.running[0].gang.queued_at)
    ]
    again = plan(freed)
    assert [start.job for start in again.starts] == ["j1"]
    assert again.stops == ()


def test_a_run_that_can_shrink_is_resized_and_starts_again_in_the_new_size() -> None:
    before = full(low("r1", "a1", "a2", least=1))
    made = plan(before)
    assert (made.stops, made.resizes) == ((), (Resize("r1", 1),))
    freed = world.apply(world.apply(before, made), ended=["r1"])
    starts = {start.job: start.placement.nodes for start in plan(freed).starts}
    assert sorted(starts) == ["j1", "r1"]
    assert len(starts["r1"]) == 1


@pytest.mark.parametrize(
    ("pending", "order", "wins"),
    [
        (None, Stop("r1", "preempted", None, 2), "order"),
        (None, Stop("r1", "preempted", None, 1), "pending"),
        (None, Resize("r1", 2, 2), "pending"),
        (Resize("r1", 1, 2), Stop("r1", "preempted", None, 2), "order"),
        (Stop("r1", "preempted", None, 2), Resize("r1", 1, 2), "pending"),
        (Resize("r1", 1, 1), Resize("r1", 3, 2), "order"),
        (Resize("r1", 1, 2), Resize("r1", 3, 1), "pending"),
    ],
    ids=[
        "first",
        "older than the intent",
        "it has that size",
        "stop over resize",
        "resize under stop",
        "newer",
        "older",
    ],
)
def test_which_of_two_orders_wins(pending: Stop | Resize | None, order: Stop | Resize, wins: str) -> None:
    run = replace(low("r1", "a1", "a2"), order=pending, generation=2)
    assert world.ordered(run, order).order == (order if wins == "order" else pending)


def test_a_stop_replaces_a_resize_that_is_being_carried_out() -> None:
    run = replace(low("r1", "a1", "a2"), order=Resize("r1", 1), stopping=True)
    stop = Stop("r1", "preempted")
    assert world.ordered(run, stop).order == stop
    assert world.ordered(run, Resize("r1", 3)).order == run.order
    assert world.ordered(replace(run, requeues=False), stop).order == run.order


def test_a_run_that_is_stopping_takes_no_order_and_does_not_queue_again() -> None:
    before = full(replace(low("r1", "a1"), stopping=True), low("r2", "a2"))
    assert world.ordered(before.running[0], Stop("r1", "preempted")).order is None
    after = world.apply(before, ended=["r1"])
    assert [job.job for job in after.waiting] == ["j1"]


def test_the_forecast_follows_a_stop_to_the_start_that_it_is_for() -> None:
    before = full(replace(low("r1", "a1"), checkpoint_cost_s=20), low("r2", "a2"))
    known = {job: RunTime((1000.0,), Basis.PROGRESS) for job in ("r1", "r2")}
    assert forecast(before, known)["j1"].p50 == NOON + timedelta(seconds=20)
    patient = replace(before, policy=FairShare(lease_s=9e9))
    assert forecast(patient, known)["j1"].p50 == NOON + timedelta(seconds=1000)


def test_the_forecast_lets_a_stopped_run_finish_later() -> None:
    """r1 has 1,000 s left, saves for 20 s, waits until j1 has ended 100 s later, and needs 10 s to restart."""
    second = gang("j2", 2, 8, priority=Priority.LOW, queued_at=NOON)
    stopped = replace(low("r1", "a1"), checkpoint_cost_s=20, restart_cost_s=10)
    before = full(stopped, low("r2", "a2"))
    before = replace(before, waiting=(*before.waiting, second), policy=Preempting(9e9, 0))
    known = {
        "r1": RunTime((1000.0,), Basis.PROGRESS),
        "r2": RunTime((500.0,), Basis.PROGRESS),
        "j1": RunTime((100.0,), Basis.HISTORY),
    }
    assert forecast(before, known)["j2"].p50 == NOON + timedelta(seconds=20 + 100 + 1000 + 10)


def test_the_forecast_knows_the_orders_that_are_stored() -> None:
    """r1 was ordered to stop before the forecast: it saves for 20 s; r2 runs for 500 s."""
    stopped = replace(low("r1", "a1"), checkpoint_cost_s=20, order=Stop("r1", "preempted", "j1"))
    before = replace(full(stopped, low("r2", "a2")), policy=FairShare(9e9, 0))
    known = {"r1": RunTime((1000.0,), Basis.PROGRESS), "r2": RunTime((500.0,), Basis.PROGRESS)}
    start = forecast(before, known)["j1"]
    assert (start.p50, start.basis) == (NOON + timedelta(seconds=20), ())
    assert forecast(before, {})["j1"].p50 == NOON + timedelta(seconds=20)


def test_when_a_stopped_run_of_unknown_length_ends_again_stays_unknown() -> None:
    """j2 needs both nodes: r1 saves within a minute, r2 ends after 30 s; but r1 then runs again before j2."""
    stopped = replace(low("r1", "a1"), order=Stop("r1", "preempted"))
    late = gang("j2", 2, 8, queued_at=NOON, priority=Priority.LOW)
    before = snapshot(nodes(a1=8, a2=8), [late], [stopped, low("r2", "a2")], policy=FairShare(9e9, 0))
    known = {"r2": RunTime((90.0,), Basis.PROGRESS)}
    assert forecast(before, known)["j2"].why_none is WhyNone.UNKNOWN_END
    long = known | {"r1": RunTime((1000.0,), Basis.PROGRESS)}
    assert forecast(before, long)["j2"].p50 == NOON + timedelta(seconds=60 + 940 + 60)


def test_a_run_that_its_owner_halts_does_not_queue_again_after_an_order() -> None:
    halting = replace(low("r1", "a1"), order=Stop("r1", "preempted", "j1"), stopping=True, requeues=False)
    after = world.apply(full(halting, low("r2", "a2")), ended=["r1"])
    assert [job.job for job in after.waiting] == ["j1"]
    assert set(after.promised) == {"j1"}


def test_freed_slots_are_promised_until_the_last_run_stopped_for_the_job_has_left() -> None:
    """j1 needs both nodes. r1 leaves at once, r2 only after 90 s; j2, queued earlier, waits for one node."""
    stops = [
        replace(low(job, node), order=Stop(job, "preempted", "j1"))
        for job, node in (("r1", "a1"), ("r2", "a2"))
    ]
    waiting = [gang("j1", 2, 8, queued_at=NOON), gang("j2", 1, 8)]
    state = snapshot(nodes(a1=8, a2=8), waiting, stops, policy=FairShare(9e9, 0))
    state = world.apply(state, ended=["r1"])
    assert state.promised == {"j1": None}
    state = replace(state, now=NOON + timedelta(seconds=90))
    assert not plan(state).starts, "the promise must not end before r2 has left"
    state = world.apply(state, ended=["r2"])
    assert state.promised == {"j1": NOON + timedelta(seconds=90 + Policy.promise_s)}
    assert [start.job for start in plan(state).starts] == ["j1"]


def test_a_promise_ends_with_the_start_and_with_its_minute() -> None:
    made = replace(full(), waiting=(gang("j1"),), promised={"j1": NOON + timedelta(seconds=5), "j2": NOON})
    assert world.apply(made).promised.keys() == {"j1"}
    started = Plan(starts=(Start("j1", Placement("a100", ("a1",))),))
    assert world.apply(made, started).promised == {}


def test_a_promise_is_bounded_once_no_run_is_stopped_for_the_job_any_more() -> None:
    stops = [
        replace(low(job, node), order=Stop(job, "preempted", "j1"))
        for job, node in (("r1", "a1"), ("r2", "a2"))
    ]
    state = world.apply(snapshot(nodes(a1=8, a2=8), [gang("j1", 2, 8)], stops), ended=["r1"])
    finished = replace(state, running=tuple(replace(run, order=None) for run in state.running))
    assert world.apply(finished, ended=["r2"]).promised == {"j1": NOON + timedelta(seconds=Policy.promise_s)}


@pytest.mark.parametrize(
    ("order", "promised"),
    [
        (Stop("r1", "reclaimed", "j1"), {"j1"}),
        (Stop("r1", "evicted"), {"r1"}),
        (Resize("r1", 1, for_job="j1"), {"j1", "r1"}),
    ],
)
def test_what_was_promised_to_a_run_before_it_was_stopped_for_another_job_is_not_any_more(
    order: Stop | Resize, promised: set[str]
) -> None:
    made = replace(full(replace(low("r1", "a1"), order=order)), promised={"r1": NOON + timedelta(seconds=30)})
    assert world.apply(made, ended=["r1"]).promised.keys() == promised


def test_what_apply_changes_and_what_it_leaves_alone() -> None:
    before = full(
        replace(low("r1", "a1"), ends_by=NOON + timedelta(seconds=70)),
        low("r2", "a2"),
        tenants=(TenantState("red", jobs_limit=3, jobs_used=2),),
        policy_state={"j1": NOON},
    )
    assert world.apply(before) == before
    assert world.apply(before, ended=["unknown"]) == before
    assert world.apply(before, Plan(stops=(Stop("unknown", "preempted"),))).running == before.running

    gone = world.apply(before, ended=["r1"])
    assert [run.job for run in gone.running] == ["r2"]
    assert [job.job for job in gone.waiting] == ["j1"], "it ended without an order"
    assert gone.tenants == (TenantState("red", jobs_limit=3, jobs_used=1),)
    assert [quota.used for quota in gone.quotas if (quota.tenant, quota.slot_type) == ("red", "a100")] == [8]
    assert (gone.policy_state, gone.now) == ({"j1": NOON}, NOON)

    ordered = world.apply(before, Plan(stops=(Stop("r1", "preempted"),)))
    assert ordered.policy_state == {}, "that of the plan"
    assert (ordered.quotas, ordered.tenants) == (before.quotas, before.tenants), "it still holds its slots"
    later = world.apply(replace(ordered, now=NOON + timedelta(seconds=30)), ended=["r1"])
    assert [(job.job, job.runs_at_most_s) for job in later.waiting] == [("j1", None), ("r1", 40)]
    assert later.promised == {}, "it was stopped for no job"


def test_a_start_holds_its_slots_and_counts_in_quota_and_jobs() -> None:
    limited = gang("j1", 2, 4, tenant="green", runs_at_most_s=50.0)
    before = snapshot(nodes(a1=4, a2=4), [limited, gang("j2")], tenants=(TenantState("green"),))
    decided = plan(before)
    after = world.apply(before, replace(decided, starts=decided.starts[:1]))
    assert [job.job for job in after.waiting] == ["j2"]
    (run,) = after.running
    assert (run.gang, run.nodes, run.started_at) == (limited, ("a1", "a2"), NOON)
    assert run.ends_by == NOON + timedelta(seconds=50)
    assert after.tenants == (TenantState("green", jobs_used=1),)
    assert [quota.used for quota in after.quotas if (quota.tenant, quota.slot_type) == ("green", "a100")] == [
        8
    ]


@EVERYDAY
@given(mixed_worlds(), st.data())
def test_no_order_breaks_a_gang_a_node_or_a_count(made: Snapshot, data: st.DataObject) -> None:
    """Ten plans are carried out; what was ordered, and by chance other runs, end in between."""
    state = made
    for _ in range(10):
        decided = plan(state)
        assert decided == plan(state)
        after = world.apply(state, decided)
        assert not overcommitted(after)
        for run in after.running:
            assert run.gang.learners.min <= len(run.nodes) <= run.gang.learners.max
        for order in (*decided.stops, *decided.resizes):
            run = next(run for run in state.running if run.job == order.job)
            assert run.order is None
            assert not run.stopping
        live: Counter[str] = Counter(run.tenant for run in after.running)
        held: Counter[tuple[str, str]] = Counter()
        for run in after.running:
            held[run.tenant, run.slot_type] += run.slots * len(run.nodes)
        assert all(quota.used == held[quota.tenant, quota.slot_type] for quota in after.quotas)
        assert all(tenant.jobs_used == live[tenant.tenant] for tenant in after.tenants)
        jobs = [job.job for job in (*after.waiting, *after.running)]
        assert len(jobs) == len(set(jobs))
        ended = [
            run.job for run in after.running if run.order is not None or data.draw(st.integers(0, 4)) == 0
        ]
        back = {run.job for run in after.running if run.order is not None}
        state = world.apply(replace(after, now=after.now + timedelta(seconds=60)), ended=ended)
        assert back <= {job.job for job in state.waiting}
