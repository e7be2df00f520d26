"""Elastic runs leave nodes that take no more learners, with as many learners as find a place (fair_share)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler import world
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import (
    Gang,
    Level,
    Node,
    Plan,
    Profile,
    QuotaUse,
    Resize,
    Running,
    Snapshot,
    StepTimes,
    Stop,
    Topology,
)
from gpu_scheduler.policies.base import Policy
from gpu_scheduler.policies.fair_share import FairShare
from gpu_scheduler.policies.fifo import Fifo
from gpu_scheduler.simulation import Costs, NodeFailure, Outcome, Scenario, SimulatedJob, simulate
from gpu_scheduler.simulation.scenario import RunEnd
from tests.gpu_scheduler.elastic_runs import PERFECT, elastic, elastic_worlds, resizes, run
from tests.gpu_scheduler.test_opportunistic import idle
from tests.gpu_scheduler.worlds import NOON, gang, next_snapshot, nodes, overcommitted, running, snapshot


def cordon(machines: tuple[Node, ...], *names: str, **changes: Any) -> tuple[Node, ...]:
    return tuple(replace(node, cordoned=True, **changes) if node.name in names else node for node in machines)


def on_two(*, least: int = 1, **changes: Any) -> Running:
    """Two learners on each of two nodes."""
    return run("r1", "a1", "a1", "a2", "a2", least=least, most=4, **changes)


def test_a_run_shrinks_to_what_it_keeps_where_nothing_else_is_free() -> None:
    made = plan(snapshot(cordon(nodes(a1=2, a2=2), "a2"), [], [on_two()]))
    assert made.resizes == (Resize("r1", 2, leaves=("a2",)),)
    assert made.stops == ()


def test_a_run_keeps_its_size_where_it_finds_as_many_places() -> None:
    before = snapshot(cordon(nodes(a1=2, a2=2, a3=2), "a2"), [], [on_two()])
    made = plan(before)
    assert made.resizes == (Resize("r1", 4, leaves=("a2",)),)
    again = world.apply(world.apply(before, made), ended=["r1"])
    (start,) = plan(again).starts
    assert Counter(start.placement.nodes) == {"a1": 2, "a3": 2}


def test_a_run_may_go_elsewhere_as_a_whole() -> None:
    made = plan(snapshot(cordon(nodes(a1=4, a2=3), "a1"), [], [run("r1", *["a1"] * 4, most=4)]))
    assert made.resizes == (Resize("r1", 3, leaves=("a1",)),)


def test_a_run_whose_fewest_find_no_place_is_left_alone() -> None:
    machines = cordon(nodes(a1=2, a2=2), "a2")
    assert plan(snapshot(machines, [], [on_two(least=3)])).resizes == ()
    suspended = replace(snapshot(machines, [], [on_two()]), quotas=(QuotaUse("red", "a100", 0, 4),))
    assert plan(suspended).resizes == (), "its limits would not let it start again"


def test_only_elastic_runs_that_can_be_ordered_leave_and_only_for_nodes_that_are_up() -> None:
    machines = cordon(nodes(a1=2, a2=2, a3=4), "a2")
    for stays in (
        running("r1", "a1", "a1", "a2", "a2"),
        replace(on_two(), stopping=True),
        replace(on_two(), requeues=False),
        replace(on_two(), order=Stop("r1", "preempted")),
    ):
        assert plan(snapshot(machines, [], [stays])).resizes == ()
    down = tuple(replace(node, ready=node.name != "a1") for node in machines)
    assert plan(snapshot(down, [], [on_two()])).resizes == (), "it is lost"
    assert plan(replace(snapshot(machines, [], [on_two()]), policy=Fifo())).resizes == ()


def test_without_a_known_time_a_run_leaves_no_sooner_after_its_start_than_any_resize_and_loses_no_more() -> (
    None
):
    """A node may take no learners for a moment only, and that they came may be why: runs would go to and fro."""
    machines = cordon(nodes(a1=2, a2=2), "a2")
    goes = cordon(nodes(a1=2, a2=2), "a2", leaves_at=NOON + timedelta(seconds=60))
    for age_s, restart_s, leaves in (
        (59, 1.0, False),
        (60, 1.0, True),
        (179, 90.0, False),
        (180, 90.0, True),
    ):
        young = replace(on_two(), started_at=NOON - timedelta(seconds=age_s), restart_cost_s=restart_s)
        assert resizes(plan(snapshot(machines, [], [young]))) == ({"r1": 2} if leaves else {})
        assert resizes(plan(snapshot(goes, [], [young]))) == {"r1": 2}
    unsaved = replace(on_two(), saves_when_asked=False)
    assert resizes(plan(snapshot(machines, [], [unsaved]))) == {}, "an hour of work"
    assert resizes(plan(snapshot(goes, [], [unsaved]))) == {"r1": 2}, "it would lose that anyway"


@pytest.mark.parametrize(("save_s", "leaves"), [(60.0, True), (61.0, False), (None, True)])
def test_a_run_that_cannot_save_before_its_node_goes_trains_until_then(
    save_s: float | None, leaves: bool
) -> None:
    machines = cordon(nodes(a1=2, a2=2), "a2", leaves_at=NOON + timedelta(seconds=60))
    made = snapshot(machines, [], [replace(on_two(), checkpoint_cost_s=save_s)])
    assert resizes(plan(made)) == ({"r1": 2} if leaves else {})


def test_several_runs_do_not_count_on_the_same_places() -> None:
    machines = cordon(nodes(a1=4, a2=3), "a1")
    two = [run("r1", "a1", "a1", least=2, most=2 + 1), run("r2", "a1", "a1", least=2, most=3, priority=2)]
    assert resizes(plan(snapshot(machines, [], two))) == {"r2": 2}, "the higher class first"


def test_what_waits_comes_first_and_what_comes_later_does_not() -> None:
    machines = cordon(nodes(a1=2, a2=2, a3=2), "a2")
    before = snapshot(machines, [gang("j1", 2)], [on_two()])
    made = plan(before)
    assert [start.job for start in made.starts] == ["j1"]
    assert resizes(made) == {"r1": 2}

    alone = snapshot(machines, [], [on_two(least=3)])
    late = replace(world.apply(alone, plan(alone)), waiting=(gang("j2", 2),))
    assert plan(late).starts == (), "both places of a3 are kept while it saves"
    back = world.apply(late, ended=["r1"])
    starts = {start.job: start.placement.nodes for start in plan(back).starts}
    assert set(starts) == {"r1"}, "and it comes back first"
    assert len(starts["r1"]) == 4


def saving(machines: tuple[Node, ...], leaves: Running) -> Snapshot:
    """The world while this run saves to leave the nodes that are cordoned."""
    before = snapshot(machines, [], [leaves])
    made = plan(before)
    assert made.resizes[0].leaves
    return world.apply(before, made)


def with_arrivals(before: Snapshot, *waiting: Gang, beside: tuple[Running, ...] = ()) -> Snapshot:
    return replace(before, waiting=waiting, running=(*before.running, *beside))


def test_urgent_jobs_take_what_is_free_and_stop_nothing_for_what_a_run_needs_elsewhere() -> None:
    before = saving(cordon(nodes(a1=2, a2=2, a3=2, a4=2), "a2"), on_two(least=3))
    low = running("r9", "a4", "a4", priority=0)
    made = plan(with_arrivals(before, gang("j1", 2, priority=3), beside=(low,)))
    assert [start.placement.nodes for start in made.starts] == [("a3", "a3")]
    assert made.stops == ()
    held_up = gang("j1", 2, priority=3, slot_type="h200")
    others = plan(with_arrivals(before, held_up, gang("j2", 3)))
    assert others.starts == (), "one that waits for another type frees nothing of this"


def test_none_leaves_while_nothing_would_be_kept_for_it_unless_it_is_known_when_its_node_goes() -> None:
    """The urgent job waits for its quota for hours, and what comes meanwhile would have the run's places."""
    limits = {"red": 100, "none": 0}
    held = gang("j1", 1, tenant="none", priority=3)
    machines = cordon(nodes(a1=2, a2=2, a3=2), "a2")
    assert plan(snapshot(machines, [held], [on_two(least=3)], limits=limits)).resizes == ()
    known = cordon(machines, "a2", leaves_at=NOON + timedelta(hours=1))
    assert len(plan(snapshot(known, [held], [on_two(least=3)], limits=limits)).resizes) == 1


def test_an_urgent_job_to_which_slots_are_promised_leaves_what_is_kept() -> None:
    before = saving(cordon(nodes(a1=2, a2=2, a3=2, a4=4), "a2"), on_two(least=3))
    stopped = running("r9", *["a4"] * 4, priority=0, order=Stop("r9", "preempted", "j1"))
    urgent = gang("j1", 4, priority=3)
    late = replace(with_arrivals(before, urgent, gang("j2", 2), beside=(stopped,)), promised={"j1": None})
    assert plan(late).starts == ()


@pytest.mark.parametrize("gone", [True, False])
def test_what_a_run_needs_elsewhere_is_kept_when_its_node_goes_before_it_has_saved(gone: bool) -> None:
    before = saving(cordon(nodes(a1=2, a2=2, a3=2), "a2"), on_two(least=3))
    left = tuple(
        replace(node, ready=node.name != "a2") for node in before.nodes if not (gone and node.name == "a2")
    )
    late = replace(with_arrivals(before, gang("j2", 2)), nodes=left)
    assert plan(late).starts == ()
    (start,) = plan(world.apply(late, ended=["r1"])).starts
    assert (start.job, Counter(start.placement.nodes)) == ("r1", {"a1": 2, "a3": 2})


def test_growth_that_was_ordered_before_a_cordon_keeps_nothing_from_what_waits() -> None:
    growing = replace(on_two(), order=Resize("r1", 6))
    machines = cordon(nodes(a1=2, a2=2, a3=4), "a2")
    made = plan(snapshot(machines, [gang("j1", 3), gang("j2", 2)], [growing]))
    assert [start.job for start in made.starts] == ["j2"], "two of a3 stand in for those of a2"
    assert plan(snapshot(machines, [idle("i1")], [growing])).starts == (), (
        "it comes before opportunistic ones"
    )


def test_others_shrink_for_what_waits_while_a_run_leaves_with_fewer() -> None:
    leaves = run("r1", "a1", "a2", "a2", "a2", least=2, most=4)
    before = saving(cordon(nodes(a1=1, a2=3, a3=2, a4=4), "a2"), leaves)
    assert before.running[0].order == Resize("r1", 4, leaves=("a2",))
    shrunk = replace(before.running[0], order=Resize("r1", 3, leaves=("a2",)))
    able = run("r2", *["a4"] * 4)
    made = plan(replace(with_arrivals(before, gang("j1", 2)), running=(shrunk, able)))
    assert made.resizes == (Resize("r2", 2, for_job="j1"),)


def test_a_run_that_shrinks_for_a_job_is_not_counted_twice_when_its_node_is_cordoned() -> None:
    gives = replace(run("r1", "a1", "a2", "a2", "a2", most=4), order=Resize("r1", 2, for_job="j1"))
    able = run("r2", "a4", "a4")
    machines = cordon(nodes(a1=1, a2=3, a3=3, a4=2), "a2")
    made = plan(snapshot(machines, [gang("j1", 2)], [gives, able], limits={"red": 6}))
    assert (resizes(made), made.starts) == ({}, ()), "its quota is what the job waits for"


def test_opportunistic_jobs_get_nothing_of_what_it_needs_elsewhere() -> None:
    machines = cordon(nodes(a1=2, a2=2, a3=3), "a2")
    before = snapshot(machines, [idle("i1"), idle("i2")], [on_two(least=3)])
    made = plan(before)
    assert (resizes(made), len(made.starts)) == ({"r1": 4}, 1), "one of the three of a3"
    assert plan(world.apply(before, made)).starts == (), "nor in the next plan"


def in_racks(machines: tuple[Node, ...], *of_x: str) -> tuple[Node, ...]:
    return tuple(replace(node, rack="x" if node.name in of_x else "y") for node in machines)


def within_a_rack(each: Running) -> Running:
    return replace(each, gang=replace(each.gang, topology=Topology(Level.RACK, required=True)))


def test_a_run_that_requires_a_rack_leaves_for_one_that_holds_all_of_it() -> None:
    machines = in_racks(nodes(a1=2, a2=2, a3=3), "a1", "a2")
    made = plan(snapshot(cordon(machines, "a2"), [], [within_a_rack(on_two())]))
    assert resizes(made) == {"r1": 3}, "not two of x and two of y"


def test_all_that_a_run_needs_in_another_rack_is_kept_while_it_saves() -> None:
    machines = cordon(in_racks(nodes(a1=2, a2=2, a3=2, a4=2), "a1", "a2"), "a2")
    before = saving(machines, within_a_rack(on_two(least=3)))
    late = with_arrivals(before, gang("j2", 2))
    assert plan(late).starts == ()
    first, *_ = plan(world.apply(late, ended=["r1"])).starts
    assert (first.job, Counter(first.placement.nodes)) == ("r1", {"a3": 2, "a4": 2})


def test_what_a_run_needs_in_its_own_rack_is_kept_when_the_first_of_its_nodes_is_gone() -> None:
    machines = cordon(in_racks(nodes(a1=2, a2=2, a3=2, a4=4), "a1", "a2", "a3"), "a1")
    before = saving(machines, within_a_rack(on_two(least=3)))
    late = replace(with_arrivals(before, gang("j2", 4)), nodes=before.nodes[1:])
    (start,) = plan(late).starts
    assert Counter(start.placement.nodes) == {"a4": 4}


def test_the_size_is_the_fastest_of_those_that_find_a_place() -> None:
    """Across nodes it is slower than with two learners on one."""
    slow = Profile(step_times=StepTimes(0.0, 1.0, 0.0, 0.0, 9.0, 0.0), largest=8)
    machines = cordon(nodes(a1=2, a2=4, a3=1), "a2")
    made = plan(snapshot(machines, [], [run("r1", *["a2"] * 4, most=4, profile=slow)]))
    assert resizes(made) == {"r1": 2}
    perfect = plan(snapshot(machines, [], [run("r1", *["a2"] * 4, most=4)]))
    assert resizes(perfect) == {"r1": 3}


def test_a_move_to_the_same_size_is_void_unless_it_leaves_a_node() -> None:
    each = on_two()
    assert world.ordered(each, Resize("r1", 4)).order is None
    assert world.ordered(each, Resize("r1", 4, leaves=("a2",))).order is not None


@st.composite
def cordoned_worlds(draw: st.DrawFn) -> Snapshot:
    made = draw(elastic_worlds())
    machines = tuple(
        replace(node, cordoned=draw(st.booleans()), rack=draw(st.sampled_from(["x", "x", "y"])))
        for node in made.nodes
    )
    rack_of = {node.name: node.rack for node in machines}
    busy = tuple(
        within_a_rack(run) if len({rack_of[name] for name in run.nodes}) == 1 and draw(st.booleans()) else run
        for run in made.running
    )
    return replace(made, nodes=machines, running=busy)


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[Gang, ...]:
    """What comes while runs save; nothing that is urgent."""
    return tuple(
        gang(
            f"k{number}",
            draw(st.integers(1, 4)),
            draw(st.integers(1, 2)),
            tenant=draw(st.sampled_from(["red", "green"])),
            priority=draw(st.integers(0, 2)),
            queued_at=NOON,
        )
        for number in range(draw(st.integers(0, 3)))
    )


@settings(max_examples=300, deadline=None)
@given(cordoned_worlds(), arrivals(), st.booleans())
def test_runs_that_leave_come_back_off_those_nodes_with_their_fewest_learners_at_least(
    before: Snapshot, late: tuple[Gang, ...], goes: bool
) -> None:
    """If all of them save at the same time, whatever comes meanwhile, and also if those nodes go before that."""
    made = plan(before)
    off = {node.name for node in before.nodes if node.cordoned}
    leaving = {each.job: each for each in made.resizes if each.leaves}
    by_job = {each.job: each for each in before.running}
    for job, order in leaving.items():
        assert set(order.leaves) == off & set(by_job[job].nodes)
        assert order.learners in by_job[job].gang.learners
        assert order.learners <= len(by_job[job].nodes)
    assert not overcommitted(before, made)
    after = world.apply(replace(before, waiting=()), replace(made, starts=()))
    starts = [each for each in made.starts if each.job not in leaving]
    after = world.apply(
        replace(after, waiting=before.waiting), Plan(tuple(starts), policy_state=after.policy_state)
    )
    if leaving:
        left = tuple(replace(node, ready=node.ready and not (goes and node.cordoned)) for node in after.nodes)
        after = replace(after, nodes=left, waiting=(*after.waiting, *late))
        if not any(each.priority == 3 for each in after.waiting):
            after = world.apply(after, plan(after))
    gone = [each.job for each in after.running if each.order is not None]
    back = next_snapshot(after, Plan(policy_state=after.policy_state), after_s=5, ended=gone)
    if any(each.priority == 3 for each in back.waiting):
        return  # one that is urgent comes before all others
    again = {start.job: start.placement.nodes for start in plan(back).starts}
    for job in leaving:
        assert job in again
        assert not off & set(again[job])
        assert len(again[job]) >= by_job[job].gang.learners.min


@settings(max_examples=150, deadline=None)
@given(cordoned_worlds())
def test_leaving_comes_to_an_end(before: Snapshot) -> None:
    """Each run leaves once: then it is on no such node."""
    for _ in range(3):
        made = plan(before)
        leaving = [each.job for each in made.resizes if each.leaves]
        before = world.apply(before, made)
        gone = [each.job for each in before.running if each.order is not None]
        before = next_snapshot(before, Plan(policy_state=before.policy_state), after_s=61, ended=gone)
    assert leaving == []


# In the simulation


def outcome_of(policy: Policy, *, save_s: float = 5) -> Outcome:
    """An elastic job on both nodes; a notice for one of them at 70 s; at 80 s one of a higher class that fits on the
    other node."""
    costs = Costs(restore_s=4, checkpoint_s=save_s, checkpoint_every_s=1000)
    trains = replace(elastic("e1", PERFECT, least=2, most=4, queued_at=NOON), target=4)
    comes = gang("j1", 2, priority=2, queued_at=NOON + timedelta(seconds=80))
    jobs = (SimulatedJob(trains, 400.0, costs), SimulatedJob(comes, 1000.0, costs))
    lost = NodeFailure(NOON + timedelta(seconds=100), "a2", 1000, 30)
    quotas = (QuotaUse("red", "a100", 100, 0),)
    return simulate(Scenario(nodes(a1=2, a2=2), jobs, quotas, policy, failures=(lost,), round_s=60))


def test_with_a_notice_an_elastic_job_keeps_its_place_on_the_other_nodes() -> None:
    """The plan is made at the notice, not in the next round, when the other job is there, too."""
    runs = outcome_of(FairShare()).runs
    first, second = (each for each in runs if each.gang.job == "e1")
    assert (first.end, first.ended, first.lost_s) == (RunEnd.REVOKED, NOON + timedelta(seconds=75), 0)
    assert Counter(first.nodes) == {"a1": 2, "a2": 2}
    assert (second.nodes, second.began) == (("a1", "a1"), NOON + timedelta(seconds=120))
    assert second.end is RunEnd.COMPLETED
    stopped = [each for each in outcome_of(Fifo()).runs if each.gang.job == "e1"]
    assert stopped[0].end is RunEnd.REVOKED
    assert stopped[1].began > NOON + timedelta(seconds=1000), "a policy that resizes nothing"


def test_without_time_to_save_it_trains_until_the_node_is_lost() -> None:
    first = next(each for each in outcome_of(FairShare(), save_s=31).runs if each.gang.job == "e1")
    assert (first.end, first.ended) == (RunEnd.NODE_FAILED, NOON + timedelta(seconds=100))
