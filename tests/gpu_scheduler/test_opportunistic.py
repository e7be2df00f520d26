"""Opportunistic jobs run on what no other job can take, and others wait for them only to save."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler import record, world
from gpu_scheduler.cycle import plan
from gpu_scheduler.forecast import RunTime, forecast
from gpu_scheduler.model import (
    Gang,
    Level,
    Plan,
    QuotaUse,
    Running,
    Snapshot,
    StartReason,
    Stop,
    Topology,
    WaitReason,
)
from gpu_scheduler.opportunistic import next_event_at, without
from gpu_scheduler.policies.base import policy_of
from gpu_scheduler.policies.fair_share import FairShare
from gpu_scheduler.policies.fifo import FifoBackfill
from gpu_scheduler.simulation import Scenario, simulate
from gpu_scheduler.simulation.report import shares_received
from gpu_scheduler.simulation.scenario import Costs, SimulatedJob
from tests.gpu_scheduler.elastic_runs import elastic_worlds
from tests.gpu_scheduler.elastic_runs import run as elastic_run
from tests.gpu_scheduler.test_cohorts import shared, sharing_worlds
from tests.gpu_scheduler.worlds import (
    NOON,
    fitting,
    free_after,
    gang,
    nodes,
    overcommitted,
    racked_worlds,
    running,
    snapshot,
    worlds,
)

EVERYDAY = settings(max_examples=150, deadline=None)


def idle(job: str, learners: int = 1, slots: int = 1, **changes: object) -> Gang:
    return replace(gang(job, learners, slots, **changes), opportunistic=True)


def idle_run(job: str, *on: str, slots: int = 1, **changes: object) -> Running:
    made = running(job, *on, slots=slots, **changes)
    return replace(made, gang=replace(made.gang, opportunistic=True))


def started(made: Snapshot) -> dict[str, str]:
    return {start.job: start.reason.value for start in plan(made).starts}


def stopped(made: Snapshot) -> list[Stop]:
    return list(plan(made).stops)


def test_it_counts_against_no_quota_and_starts_after_all_others() -> None:
    quotas = (QuotaUse("red", "a100", 0, 0), QuotaUse("green", "a100", 8, 0))
    made = snapshot(nodes(a1=8), [idle("j1", slots=4), gang("j2", slots=4, tenant="green")], quotas=quotas)
    assert started(made) == {"j2": "guaranteed", "j1": "opportunistic"}
    after = world.apply(made, plan(made))
    assert [quota.used for quota in after.quotas] == [0, 4]
    assert [quota.used for quota in world.apply(after, ended=["j1", "j2"]).quotas] == [0, 0]
    full = replace(made, waiting=(idle("j1", slots=4), gang("j2", slots=5, tenant="green")))
    assert started(full) == {"j2": "guaranteed"}
    (wait,) = plan(full).waits
    assert (wait.code, wait.message) == (
        WaitReason.NOT_IDLE,
        "Runs on idle devices only: 3 of 8 a100 GPUs are idle; this job needs 4.",
    )


def test_it_leaves_at_once_for_a_job_that_may_run_and_that_says_what_it_waits_for() -> None:
    """Whatever its class, and without a lease: it started a second ago."""
    run = replace(idle_run("r1", "a1", slots=8), started_at=NOON - timedelta(seconds=1))
    made = snapshot(nodes(a1=8), [gang("j1", slots=2)], [run])
    assert stopped(made) == [Stop("r1", "preempted", "j1")]
    (wait,) = plan(made).waits
    assert (wait.code, wait.numbers["stopping_for_it"]) == (WaitReason.IDLE_LEAVING, 1)
    assert (
        wait.message
        == "Starts as soon as an opportunistic job has saved and left the 2 a100 GPUs that it starts on."
    )
    meanwhile = world.apply(made, plan(made))
    assert (stopped(meanwhile), started(meanwhile)) == ([], {})
    after = world.apply(meanwhile, ended=["r1"])
    assert started(after) == {"j1": "nominated"}
    assert plan(after).waits[0].job == "r1", "it does not come back onto what it left"


def test_it_stays_where_the_other_job_fits_beside_it_and_where_that_may_not_run() -> None:
    run = idle_run("r1", "a1", slots=4)
    beside = snapshot(nodes(a1=8, a2=8), [gang("j1", slots=8)], [run])
    assert (started(beside), stopped(beside)) == ({"j1": "guaranteed"}, [])
    refused = snapshot(nodes(a1=8), [gang("j1", slots=8)], [run], quotas=(QuotaUse("red", "a100", 7, 0),))
    assert stopped(refused) == []


def test_of_equal_starts_the_first_gets_what_is_free_and_the_last_waits_for_a_run_to_leave() -> None:
    made = snapshot(
        nodes(a1=8, a2=8), [gang("j1", slots=8), gang("j2", slots=8)], [idle_run("r1", "a1", slots=8)]
    )
    decided = plan(made)
    assert [(start.job, start.placement.nodes) for start in decided.starts] == [("j1", ("a2",))]
    assert stopped(made) == [Stop("r1", "preempted", "j2")]
    assert decided.waits[0].numbers["stopping_for_it"] == 1


def test_a_start_is_not_moved_onto_nodes_that_are_planned_for_another() -> None:
    """j1 would fit on what is left of a2 beside r2, but then nothing would be cleared for j2."""
    runs = [idle_run("r1", "a1", slots=8), idle_run("r2", "a2", slots=4)]
    made = snapshot(nodes(a1=8, a2=8), [gang("j1", slots=4, priority=2), gang("j2", slots=8)], runs)
    assert started(made) == {}
    assert {(stop.job, stop.for_job) for stop in stopped(made)} == {("r1", "j1"), ("r2", "j2")}


def test_a_start_is_not_moved_onto_nodes_that_are_avoided() -> None:
    """Neither onto free ones, nor onto those of a later start."""
    failed = replace(nodes(a2=8)[0], avoid_until=NOON + timedelta(hours=1))
    made = snapshot((*nodes(a1=8), failed), [gang("j1", slots=8)], [idle_run("r1", "a1", slots=8)])
    assert (started(made), [stop.job for stop in stopped(made)]) == ({}, ["r1"])
    two = replace(made, waiting=(*made.waiting, gang("j2", slots=8)))
    assert (started(two), [stop.for_job for stop in stopped(two)]) == ({"j2": "guaranteed"}, ["j1"])


def test_a_start_is_not_moved_onto_a_full_node() -> None:
    free, full = nodes(a1=8, a2=8)
    made = snapshot(
        [free, replace(full, full=True)],
        [gang("j1", 1, 6)],
        [idle_run("r1", "a1", slots=8), running("r2", "a2")],
    )
    assert (started(made), stopped(made)) == ({}, [Stop("r1", "preempted", "j1")])


@pytest.mark.parametrize("memory_mib", [None, 64])
@pytest.mark.parametrize("slots", [2, 5])
def test_a_run_leaves_a_full_node_for_a_job_that_starts_there_when_it_has(
    slots: int, memory_mib: int | None
) -> None:
    """Two of its slots are free, and of no use before that, but then: no second run has to leave."""
    [node] = nodes(a1=8)
    needy = gang("j1", 1, slots, memory_mib=memory_mib)
    busy = [idle_run("r1", "a1", slots=3), idle_run("r2", "a1", slots=3)]
    made = snapshot([replace(node, full=True)], [needy], busy)
    assert (started(made), len(stopped(made))) == ({}, 1)
    later = world.apply(world.apply(made, plan(made)), ended=[stopped(made)[0].job])
    assert started(later)["j1"] == "nominated"


def test_a_start_is_not_moved_out_of_the_domain_that_it_prefers() -> None:
    racks = {"a1": "r1", "a2": "r1", "a3": "r2", "a4": "r3"}
    machines = [replace(node, rack=racks[node.name]) for node in nodes(a1=4, a2=4, a3=4, a4=4)]
    near = gang("j1", 2, 4, topology=Topology(Level.RACK, required=False))
    made = snapshot(machines, [near], [idle_run("r1", "a1", slots=1)])
    assert (started(made), [stop.job for stop in stopped(made)]) == ({}, ["r1"])
    anywhere = replace(made, waiting=(replace(near, topology=None),))
    assert started(anywhere) == {"j1": "guaranteed"}


def test_a_start_is_not_moved_where_it_breaks_up_a_larger_room() -> None:
    """j1 would fill a1 up. On a2 it would keep j2 waiting for as long as it runs."""
    busy = [running("r", "a1", slots=3), idle_run("r1", "a1")]
    made = snapshot(nodes(a1=4, a2=4), [gang("j1")], busy)
    decided = plan(made)
    assert (leaving(decided), decided.starts) == ({"j1"}, ())
    come = world.apply(made, decided)
    come = replace(come, waiting=(*come.waiting, gang("j2", slots=4)))
    assert started(come) == {"j2": "guaranteed"}
    as_full = replace(made, nodes=nodes(a1=4, a2=1))
    assert [start.placement.nodes for start in plan(as_full).starts] == [("a2",)]


def test_no_more_runs_leave_where_room_is_being_cleared_already() -> None:
    """When r1 ends, a2 is the fuller node, and a plan places j1 there."""
    busy = [
        running("r1", "a1"),
        running("r2", "a2"),
        idle_run("o1", "a1", slots=2),
        idle_run("o2", "a2", slots=2),
    ]
    made = snapshot(nodes(a1=3, a2=3), [gang("j1", slots=2)], busy)
    decided = plan(made)
    assert [stop.job for stop in decided.stops] == ["o1"]
    later = world.apply(made, decided, ended=["r1"])
    assert [start.placement.nodes for start in plan(without(later)).starts] == [("a2",)]
    again = plan(later)
    assert (leaving(again), again.stops) == ({"j1"}, ())
    small = replace(made, waiting=(gang("j1"),))
    later = world.apply(small, plan(small), ended=["r1"])
    assert [start.placement.nodes for start in plan(later).starts] == [("a1",)], "there is room by now"


def test_the_least_loss_leaves_first_and_only_what_is_needed() -> None:
    runs = [
        idle_run("r1", "a1", slots=2),
        idle_run("r2", "a1", slots=2, last_checkpoint_at=NOON),
        idle_run("r3", "a1", slots=4, last_checkpoint_at=NOON - timedelta(seconds=1)),
    ]
    made = snapshot(nodes(a1=8), [gang("j1", slots=4)], runs)
    assert [stop.job for stop in stopped(made)] == ["r3"], "with r2 gone, too, nothing would be gained"


def test_a_borrower_has_them_leave_too() -> None:
    quotas = shared({"red": 0, "green": 8})
    made = snapshot(nodes(a1=8), [gang("j1", slots=2)], [idle_run("r1", "a1", slots=8)], quotas=quotas)
    assert [stop.job for stop in stopped(made)] == ["r1"]


def test_nothing_that_is_reserved_is_used() -> None:
    waiting = [gang("j1", 2, 8), idle("j2")]
    heads = {"j1": NOON - timedelta(hours=1)}
    made = snapshot(nodes(a1=8, a2=8), waiting, [running("r", "a1", tenant="green")], policy_state=heads)
    assert started(made) == {}
    assert started(replace(made, policy_state={})) == {"j2": "opportunistic"}


def test_the_tenant_with_the_lowest_share_by_weight_comes_first() -> None:
    quotas = (QuotaUse("red", "a100", 8, 0, weight=3), QuotaUse("green", "a100", 1, 0))
    waiting = [idle(f"{tenant}{n}", tenant=tenant, slots=2) for n in range(4) for tenant in ("green", "red")]
    made = snapshot(nodes(a1=8), waiting, quotas=quotas)
    assert [start.job for start in plan(made).starts] == ["green0", "red0", "red1", "red2"]
    first = replace(made, running=(idle_run("r1", "a1", slots=2, tenant="green"),))
    assert [start.job for start in plan(first).starts] == ["red0", "red1", "red2"]


def test_one_of_any_type_gets_the_type_of_which_most_is_idle_not_the_one_that_its_quota_has() -> None:
    """It uses neither, so what a start would borrow is no reason."""
    quotas = (
        QuotaUse("red", "a100", 0, 0, "lab"), QuotaUse("red", "h200", 8, 0, "lab"),
        QuotaUse("green", "a100", 8, 0, "lab"),
    )  # fmt: skip
    made = snapshot(
        nodes(a1=8, h1=8),
        [replace(idle("j1", slots=2), slot_type=None)],
        [running("r1", "h1", slots=4, slot_type="h200")],
        quotas=quotas,
    )
    (start,) = plan(made).starts
    assert start.placement.slot_type == "a100"


def test_a_quota_of_0_is_enough_and_without_one_it_says_so() -> None:
    made = snapshot(nodes(a1=8), [idle("j1")], quotas=(QuotaUse("red", "h200", 8, 0),))
    (wait,) = plan(made).waits
    assert (wait.code, "position" in wait.numbers) == (WaitReason.NO_QUOTA, False)
    assert wait.message == (
        "The tenant has no quota for a100 GPUs: without one, be it 0, its jobs cannot even use idle ones. Ask a"
        " platform admin."
    )
    assert started(replace(made, quotas=(QuotaUse("red", "a100", 0, 0),))) == {"j1": "opportunistic"}


def test_the_limits_of_users_count_it_for_itself_but_not_for_others() -> None:
    quotas = (QuotaUse("red", "a100", 8, 0, user_limit=4, gang_limit=4),)
    run = idle_run("r1", "a1", slots=4, user="ann")
    made = snapshot(
        nodes(a1=16), [gang("j1", slots=4, user="ann"), idle("j2", user="ann")], [run], quotas=quotas
    )
    assert started(made) == {"j1": "guaranteed"}
    assert {wait.job: wait.code for wait in plan(made).waits} == {"j2": WaitReason.USER_GPUS}
    large = replace(made, waiting=(idle("j3", slots=5, user="bea"), idle("j4", slots=4, user="bea")))
    assert started(large) == {"j4": "opportunistic"}


def test_its_position_is_behind_all_other_jobs_that_wait_for_the_same() -> None:
    quotas = (QuotaUse("red", "a100", 8, 8), QuotaUse("green", "a100", 8, 0))
    waiting = [
        gang("j1", slots=4),
        gang("j2", slots=8, tenant="green"),
        idle("j3", slots=8),
        idle("j4", slots=8, tenant="green"),
    ]
    made = snapshot(nodes(a1=8), waiting, [running("r", "a1", slots=8)], quotas=quotas)
    shown = {wait.job: (wait.numbers["position"], wait.numbers["nodes_ahead"]) for wait in plan(made).waits}
    assert shown == {"j2": (1, 0), "j1": (2, 1), "j3": (3, 1), "j4": (3, 2)}, (
        "j1 waits for its tenant's quota"
    )


def test_what_can_never_start_is_not_ahead_of_it_and_what_is_about_to_start_is() -> None:
    busy = [replace(idle_run("r1", "a1", slots=8), stopping=True)]
    waiting = [gang("j1", slots=9), gang("j2", slots=8), idle("j3", slots=8), idle("j4", tenant="green")]
    made = snapshot(nodes(a1=8), waiting, busy)
    decided = plan(made)
    assert {wait.job: wait.code for wait in decided.waits if wait.job in ("j1", "j2")} == {
        "j1": WaitReason.NO_MATCHING_POOL,
        "j2": WaitReason.IDLE_LEAVING,
    }
    shown = {wait.job: wait.numbers["position"] for wait in decided.waits if "position" in wait.numbers}
    assert shown == {"j4": 2, "j3": 3}


def test_what_is_reserved_is_said_to_be_kept() -> None:
    heads = {"j1": NOON - timedelta(hours=1)}
    waiting = [gang("j1", 2, 8), idle("j2")]
    made = snapshot(nodes(a1=8, a2=8), waiting, [running("r", "a1", tenant="green")], policy_state=heads)
    (wait,) = [wait for wait in plan(made).waits if wait.job == "j2"]
    assert (wait.numbers["free"], wait.numbers["kept"], wait.numbers["nodes_down"]) == (0, 15, 0)
    assert wait.message == (
        "Runs on idle devices only: 0 of 16 a100 GPUs are idle, 15 more are kept for jobs ahead; this job needs 1."
    )


def test_what_an_elastic_job_grows_by_is_kept() -> None:
    """It would find them there after its save, and wait for theirs."""
    grown = elastic_run("e", "a1", "a1", most=5)
    made = snapshot(nodes(a1=4, a2=4), [idle("j1", slots=3), idle("j2", slots=2)], [grown])
    first = plan(made)
    assert [(each.job, each.learners) for each in first.resizes] == [("e", 5)]
    assert [(start.job, start.placement.nodes) for start in first.starts] == [("j1", ("a2",))]
    assert [(wait.job, wait.numbers["kept"]) for wait in first.waits] == [("j2", 3)]
    saving = world.apply(made, first)
    assert started(saving) == {}
    after = world.apply(saving, ended=["e"])
    assert (started(after), stopped(after)) == ({"e": "nominated"}, [])


def test_the_simulator_runs_the_same_and_others_lose_no_more_than_its_save() -> None:
    """An hour of work beyond the quota, beside jobs that come every ten minutes and each take five."""
    costs = Costs(checkpoint_s=10)
    come = {f"g{n}": NOON + timedelta(minutes=10 * n) for n in range(1, 5)}
    others = [
        SimulatedJob(gang(job, slots=8, tenant="green", queued_at=at), 300, costs) for job, at in come.items()
    ]
    beyond = SimulatedJob(idle("r1", slots=8, queued_at=NOON), 3600, costs)
    quotas = (QuotaUse("red", "a100", 0, 0), QuotaUse("green", "a100", 8, 0))
    scenario = Scenario(nodes(a1=8), (beyond, *others), quotas, FairShare(), round_s=0)
    outcome = simulate(scenario)
    assert {outcome.first_started[job] - at for job, at in come.items()} == {timedelta(seconds=10)}
    assert outcome.completed["r1"] == NOON + timedelta(seconds=3600 + 4 * (10 + 300))
    assert set(shares_received(outcome, scenario, {"red": 8, "green": 8})) == {"green"}, "it is owed nothing"


def test_who_waits_for_one_to_leave_keeps_its_time_and_its_place() -> None:
    """j1 is overdue, and the run on its slots leaves already. j2, of a tenant that has less, comes meanwhile."""
    since = NOON - timedelta(hours=10)
    busy = (running("r", "a2"), replace(idle_run("o", "a1"), stopping=True))
    made = snapshot(nodes(a1=1, a2=1), [gang("j1")], busy, policy_state={"j1": since})
    for state in (made.policy_state, {}):
        before = replace(made, policy_state=state)
        first = plan(before)
        assert leaving(first) == {"j1"}
        assert first.policy_state["j1"] == state.get("j1", NOON), "its time as a queue head goes on"
        quotas = (*made.quotas, QuotaUse("green", "a100", 100, 0))
        come = replace(world.apply(before, first), quotas=quotas)
        come = replace(come, waiting=(*come.waiting, gang("j2", tenant="green", priority=2)))
        second = plan(come)
        assert leaving(second) == {"j1"}
        assert {wait.job: wait.code for wait in second.waits}["j2"] == WaitReason.INSUFFICIENT_CAPACITY
        assert started(world.apply(come, second, ended=["o"])) == {"j1": "guaranteed"}


def test_runs_that_leave_for_a_job_are_promised_to_it_whatever_the_state_says() -> None:
    order = Stop("o", "preempted", "j1")
    busy = (running("r", "a2"), replace(idle_run("o", "a1"), order=order))
    quotas = (QuotaUse("red", "a100", 100, 1), QuotaUse("green", "a100", 100, 0))
    waiting = [gang("j1"), gang("j2", tenant="green")]
    made = snapshot(nodes(a1=1, a2=1), waiting, busy, quotas=quotas)
    assert leaving(plan(made)) == {"j1"}
    assert leaving(plan(replace(made, running=(busy[0], replace(busy[1], order=None))))) == {"j2"}


def test_nothing_waits_for_a_run_that_does_not_leave_while_there_is_other_room() -> None:
    """The busier node is where j1 would start, if r1 left as it should have."""
    busy = [running("r", "a1", slots=4), replace(idle_run("r1", "a1", slots=4), stopping=True)]
    quotas = (QuotaUse("red", "a100", 8, 4, user_limit=8),)
    made = snapshot(nodes(a1=8, a2=8), [gang("j1", slots=4)], busy, quotas=quotas)

    def since(minutes: int) -> Snapshot:
        run = replace(busy[1], stopping_since=NOON - timedelta(minutes=minutes))
        return replace(made, running=(busy[0], run))

    assert leaving(plan(since(9))) == {"j1"}
    assert next_event_at(since(9)) == NOON + timedelta(minutes=1)
    assert [start.placement.nodes for start in plan(since(10)).starts] == [("a2",)]
    assert next_event_at(since(10)) is None
    full = replace(since(10), nodes=nodes(a1=8))
    assert [wait.code for wait in plan(full).waits] == [WaitReason.INSUFFICIENT_CAPACITY]
    assert started(world.apply(full, ended=["r1"])) == {"j1": "guaranteed"}


def test_forecasts_know_that_it_leaves_and_comes_back() -> None:
    run = idle_run("r1", "a1", slots=8, checkpoint_cost_s=30)
    made = snapshot(nodes(a1=8), [gang("j1", slots=8), idle("j2", slots=8)], [run])
    known = {"r1": RunTime((3600.0,)), "j1": RunTime((600.0,))}
    found = forecast(made, known)
    assert found["j1"].p50 == NOON + timedelta(seconds=30)
    back = 30 + 600  # in its old place, which is before j2's
    assert found["j2"].p50 == NOON + timedelta(seconds=back + 3600)


@st.composite
def idle_worlds(draw: st.DrawFn) -> Snapshot:
    """Any world, of which some jobs are opportunistic; they count in no quota."""
    made = draw(st.one_of(worlds(), sharing_worlds(), racked_worlds(), elastic_worlds()))
    runs = tuple(
        replace(run, gang=replace(run.gang, opportunistic=draw(st.booleans()))) for run in made.running
    )
    for minutes in draw(st.sampled_from([(), (), (1,), (1, 60)])):
        since = NOON - timedelta(minutes=minutes)
        at = draw(st.integers(0, 4))
        runs = tuple(
            replace(run, stopping=True, stopping_since=since) if n == at else run
            for n, run in enumerate(runs)
        )
    waiting = tuple(replace(each, opportunistic=draw(st.integers(0, 2)) == 0) for each in made.waiting)
    used: Counter[tuple[str, str]] = Counter()
    live: Counter[str] = Counter()
    for run in runs:
        if not run.gang.opportunistic:
            used[run.tenant, run.slot_type] += run.slots * len(run.nodes)
            live[run.tenant] += 1
    quotas = tuple(replace(each, used=used[each.tenant, each.slot_type]) for each in made.quotas)
    tenants = tuple(replace(each, jobs_used=live[each.tenant]) for each in made.tenants)
    policy = draw(st.sampled_from([made.policy, FifoBackfill()]))
    state = made.policy_state if policy is made.policy else {}
    return replace(
        made, running=runs, waiting=waiting, quotas=quotas, tenants=tenants, policy=policy, policy_state=state
    )


def of_others(made: Snapshot, decided: Plan) -> set[str]:
    gangs = {each.job: each for each in made.waiting}
    return {start.job for start in decided.starts if not gangs[start.job].opportunistic}


def own_state(made: Snapshot, decided: Plan) -> dict[str, object]:
    """What is carried over of jobs that started on an empty cluster, left out: those that wait keep theirs."""
    alone = {start.job for start in plan(without(made)).starts}
    return {key: value for key, value in decided.policy_state.items() if key.rpartition(":")[2] not in alone}


def leaving(decided: Plan) -> set[str]:
    return {wait.job for wait in decided.waits if wait.code is WaitReason.IDLE_LEAVING}


@EVERYDAY
@given(idle_worlds())
def test_all_other_jobs_are_decided_as_without_them(made: Snapshot) -> None:
    decided, alone = plan(made), plan(without(made))
    assert of_others(made, decided) | leaving(decided) == {start.job for start in alone.starts}
    idle_jobs = {run.job for run in made.running if run.gang.opportunistic}
    assert [stop for stop in decided.stops if stop.job not in idle_jobs] == list(alone.stops)
    assert decided.resizes == alone.resizes
    others = {wait.job: wait for wait in decided.waits}
    assert all(others[wait.job] == wait for wait in alone.waits)
    assert own_state(made, decided) == own_state(made, alone)
    if not leaving(decided):
        assert decided.policy_state == alone.policy_state


@EVERYDAY
@given(idle_worlds())
def test_no_node_is_overcommitted_and_each_waiting_job_is_explained(made: Snapshot) -> None:
    decided = plan(made)
    assert not overcommitted(made, decided)
    assert {start.job for start in decided.starts} | {wait.job for wait in decided.waits} == {
        each.job for each in made.waiting
    }
    assert len(decided.starts) + len(decided.waits) == len(made.waiting)
    gangs = {each.job: each for each in made.waiting}
    for start in decided.starts:
        assert (start.reason is StartReason.OPPORTUNISTIC) == gangs[start.job].opportunistic


@EVERYDAY
@given(idle_worlds())
def test_who_waits_for_them_starts_when_they_have_left_and_none_comes_back_onto_it(made: Snapshot) -> None:
    """One round of orders is enough: no cycle, and each job that leaves, leaves for a job that then starts."""
    decided = plan(made)
    waits = leaving(decided)
    for wait in decided.waits:
        assert wait.code is not WaitReason.IDLE_LEAVING or wait.numbers["stopping_for_it"] > 0
    on_the_way = {run.job for run in made.running if run.gang.opportunistic and (run.order or run.stopping)}
    gone = {stop.job for stop in decided.stops if stop.for_job in waits} | on_the_way
    ordered = world.apply(made, replace(decided, starts=()))
    again = plan(ordered)
    idle_jobs = {run.job for run in made.running if run.gang.opportunistic}
    assert not [stop for stop in again.stops if stop.job in idle_jobs], "one order is enough"
    after = world.apply(ordered, ended=gone)
    assert waits <= of_others(after, plan(after))


@EVERYDAY
@given(idle_worlds())
def test_none_waits_for_devices_that_are_idle(made: Snapshot) -> None:
    """Work conservation: nothing reserved, nothing leaving, and yet it waits for devices: then it does not fit."""
    decided = plan(made)
    if decided.reserved or decided.stops or leaving(decided):
        return
    free = free_after(made, decided)
    gangs = {each.job: each for each in made.waiting}
    for wait in decided.waits:
        job = gangs[wait.job]
        if not job.opportunistic or job.slot_type is None or wait.code is not WaitReason.NOT_IDLE:
            continue
        assert fitting(job, free, made, job.slot_type) < job.learners.min


@given(idle_worlds())
def test_records_keep_it(made: Snapshot) -> None:
    assert record.read(record.written(made), policy_of(made)) == made
