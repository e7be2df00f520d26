"""Which elastic gangs shrink for a waiting job, and what becomes of both."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings

from gpu_scheduler.checks import Scope
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import (
    Level,
    Node,
    Plan,
    Priority,
    QuotaUse,
    Resize,
    Snapshot,
    Stop,
    Topology,
    WaitReason,
)
from gpu_scheduler.policies.fair_share import FairShare
from gpu_scheduler.policies.preemption import borrowed
from gpu_scheduler.policies.room import RoomMade
from gpu_scheduler.simulation import Costs, Rate, Scenario, SimulatedJob, simulate
from tests.gpu_scheduler.elastic_runs import PERFECT, elastic, elastic_worlds, resizes, run
from tests.gpu_scheduler.worlds import NOON, gang, next_snapshot, nodes, running, snapshot

FULL = {"a1": 8, "a2": 8}


def on(name: str, learners: int = 8) -> list[str]:
    return [name] * learners


def carried_out(made: Snapshot, decided: Plan) -> Plan:
    """The next plan, once every run has done what it was ordered to."""
    busy = [each.job for each in made.running if each.order is not None]
    ordered = [each.job for each in (*decided.stops, *decided.resizes)]
    return plan(next_snapshot(made, decided, after_s=1, ended=[*busy, *ordered]))


def sizes(decided: Plan) -> dict[str, int]:
    return {start.job: len(start.placement.nodes) for start in decided.starts}


def test_whole_nodes_are_freed_where_the_job_needs_them() -> None:
    """Eight slots have to be given up, all on one node: the learners that stay go to the other one."""
    made = snapshot(nodes(**FULL), [gang("j1", 1, 8)], [run("r1", *on("a1")), run("r2", *on("a2"))])
    decided = plan(made)
    assert resizes(decided) == {"r1": 4, "r2": 4}
    assert {each.for_job for each in decided.resizes} == {"j1"}
    assert sizes(carried_out(made, decided)) == {"j1": 1, "r1": 4, "r2": 4}


def test_nothing_shrinks_where_that_frees_no_place() -> None:
    """Slots enough are given up, but a learner that cannot move is left on each node."""
    held = [run("r1", *on("a1", 7)), run("r2", *on("a2", 7)), running("f1", "a1"), running("f2", "a2")]
    assert resizes(plan(snapshot(nodes(**FULL), [gang("j1", 1, 8)], held))) == {}
    assert resizes(plan(snapshot(nodes(**FULL), [gang("j1", 1, 6)], held))) != {}


def test_only_runs_shrink_whose_slots_are_needed() -> None:
    """The largest run holds what is worth the least, but not where the job fits."""
    rack = [Node.with_slots("a1", "a100", 8), Node.with_slots("a2", "a100", 4)]
    placed = [replace(node, rack=node.name) for node in rack]
    required = gang("j1", 2, topology=Topology(Level.RACK, required=True))
    held = [run("r1", *on("a1")), run("r2", *on("a2", 4))]
    assert resizes(plan(snapshot(placed, [required], held))) == {"r1": 6}
    fixed = [running("f1", *on("a1")), run("r2", *on("a2", 4))]
    assert resizes(plan(snapshot(placed, [required], fixed))) == {"r2": 2}


def test_a_slot_of_a_run_that_is_leaving_is_not_asked_for_again() -> None:
    leaving = replace(running("f1", *on("a1")), stopping=True)
    made = snapshot(nodes(**FULL), [gang("j1", 8), gang("j2", 2)], [leaving, run("r2", *on("a2"))])
    decided = plan(made)
    assert [(each.job, each.learners, each.for_job) for each in decided.resizes] == [("r2", 6, "j2")]


def test_who_runs_shrink_for_is_offered_their_slots_first_and_so_are_they() -> None:
    """Also before a job of a higher class that came meanwhile, as with the slots of a job that was stopped."""
    made = snapshot(nodes(a1=8), [gang("j1", 3)], [run("r1", *on("a1"))])
    decided = plan(made)
    assert resizes(decided) == {"r1": 5}
    assert decided.waits[0].message.endswith("An elastic job shrinks for it.")
    assert decided.waits[0].numbers["resizing_for_it"] == 1
    after = next_snapshot(made, decided, after_s=1, ended=["r1"])
    assert after.promised == {
        "j1": after.now - timedelta(seconds=1) + timedelta(seconds=60),
        "r1": after.promised["j1"],
    }
    late = replace(after, waiting=(*after.waiting, gang("j2", 8, priority=Priority.HIGH)))
    assert sizes(plan(late)) == {"j1": 3, "r1": 5}
    urgent = replace(after, waiting=(*after.waiting, gang("j2", 5, priority=Priority.URGENT)))
    assert sizes(plan(urgent)) == {"j1": 3, "j2": 5}, "it would stop r1"


def test_what_shrinks_already_is_known_in_the_next_plan() -> None:
    shrinking = replace(run("r1", *on("a1")), order=Resize("r1", 5, for_job="j1"))
    made = snapshot(nodes(**FULL), [gang("j1", 3), gang("j2", 2)], [shrinking, run("r2", *on("a2"))])
    decided = plan(made)
    assert [(each.job, each.for_job) for each in decided.resizes] == [("r2", "j2")]
    assert decided.waits[0].numbers["resizing_for_it"] == 1


def test_nothing_is_stopped_for_what_starts_once_others_have_shrunk() -> None:
    urgent = gang("j1", 4, priority=Priority.URGENT)
    held = [run("r1", *on("a1"), priority=Priority.LOW), running("f2", *on("a2"), priority=Priority.LOW)]
    decided = plan(snapshot(nodes(**FULL), [urgent], held))
    assert (resizes(decided), decided.stops) == ({"r1": 4}, ())
    larger = plan(
        snapshot(nodes(**FULL), [replace(urgent, learners=replace(urgent.learners, min=9, max=9))], held)
    )
    assert resizes(larger) == {}
    assert {stop.job for stop in larger.stops} == {"r1", "f2"}


def test_a_borrower_shrinks_before_it_is_stopped() -> None:
    quotas = tuple(QuotaUse(tenant, "a100", 8, used, "lab") for tenant, used in (("red", 0), ("green", 16)))
    held = [run("r1", *on("a1"), tenant="green"), run("r2", *on("a2"), tenant="green")]
    made = replace(snapshot(nodes(**FULL), [gang("j1", 6)], held), quotas=quotas)
    decided = plan(made)
    assert decided.stops == ()
    assert sum(8 - size for size in resizes(decided).values()) >= 6
    assert sizes(carried_out(made, decided))["j1"] == 6
    full = tuple(replace(quota, used=8) for quota in quotas)
    own = [run("r1", *on("a1"), tenant="green"), running("f1", *on("a2"))]
    assert resizes(plan(replace(made, quotas=full, running=tuple(own)))) == {}, "what is green's own stays"


def test_nothing_is_stopped_for_a_job_that_waits_for_one_of_its_own_tenant() -> None:
    """The stopped run would queue, start again and be stopped again: what it leaves is reserved for the other job."""
    held = [running("r1", *on("a1"), priority=Priority.LOW), running("r2", *on("a2"), priority=Priority.LOW)]
    leased = [held[0], replace(held[1], started_at=NOON - timedelta(seconds=5))]
    first, second = gang("j1", 16, priority=Priority.URGENT), gang("j2", 4, priority=Priority.URGENT)
    made = snapshot(
        nodes(**FULL),
        [first, second],
        leased,
        limits={"red": 20},
        policy_state={"j1": NOON - timedelta(hours=1)},
    )
    decided = plan(made)
    assert [(wait.job, wait.code, wait.numbers["scope"]) for wait in decided.waits[1:]] == [
        ("j2", WaitReason.FAIR_SHARE, Scope.TENANT)
    ]
    assert decided.stops == ()
    alone = plan(replace(made, waiting=(second,), policy_state={}))
    assert [(stop.job, stop.for_job) for stop in alone.stops] == [("r1", "j2")], "nothing is reserved"


def test_a_borrower_to_which_slots_are_promised_comes_before_the_longest_waiting_borrower() -> None:
    """Else what was freed for it goes to the other, which is stopped for it again."""
    limits = {"red": 0, "green": 0, "blue": 8}
    quotas = tuple(QuotaUse(tenant, "a100", limit, 0, "lab") for tenant, limit in limits.items())
    waiting = [gang("j1", 8), gang("j2", 8, tenant="green")]
    since = {"j2": NOON - timedelta(hours=1)}
    made = replace(snapshot(nodes(a1=8), waiting, policy_state=since), quotas=quotas)
    assert sizes(plan(made)) == {"j2": 8}
    assert sizes(plan(replace(made, promised={"j1": None}))) == {"j1": 8}


def test_a_run_that_restarts_slowly_is_left_alone_for_longer() -> None:
    def shrinks(started_s: float, **costs: float) -> bool:
        at = NOON - timedelta(seconds=started_s)
        held = replace(run("r1", *on("a1")), started_at=at, **costs)
        return bool(plan(snapshot(nodes(a1=8), [gang("j1")], [held])).resizes)

    assert shrinks(20)
    assert not shrinks(199, restart_cost_s=90.0, checkpoint_cost_s=10.0)
    assert shrinks(200, restart_cost_s=90.0, checkpoint_cost_s=10.0)


def test_the_end_of_a_lease_is_an_event_while_jobs_wait() -> None:
    young = replace(run("r1", *on("a1")), started_at=NOON - timedelta(seconds=5))
    made = snapshot(nodes(a1=8), [gang("j1")], [young])
    assert FairShare().next_event_at(made) == NOON + timedelta(seconds=15)


def test_a_run_that_grows_does_not_lose_its_place_to_what_waits() -> None:
    """When it halts to take the two slots that are free, six are: as many as the other job has waited for."""
    costs = Costs(start_s=5, restore_s=5, checkpoint_s=1)

    def job(made: Any, work_s: float) -> SimulatedJob:
        return SimulatedJob(made, work_s, costs)

    def after(made: Any, seconds: float) -> Any:
        return replace(made, queued_at=NOON + timedelta(seconds=seconds))

    scenario = Scenario(
        nodes(a1=8),
        (
            job(after(gang("f1", 2), 0), 36_000),
            job(after(gang("f2", 2), 0), 100),
            job(after(elastic("e1"), 1), 4 * 3600),
            job(after(gang("j1", 6), 50), 600),
        ),
        (QuotaUse("red", "a100", 100, 0),),
        FairShare(),
        rate=lambda made, at, done: Rate(float(len(at)) if made.elastic else 1.0),
        known=lambda made, at, done: PERFECT,
    )
    outcome = simulate(scenario)
    held = [len(each.nodes) for each in outcome.runs if each.gang.job == "e1"]
    assert held == [4, 6]
    assert outcome.completed["e1"] < outcome.first_started["j1"]


def test_a_stop_of_one_policy_and_a_resize_of_another_are_not_both_given() -> None:
    held = replace(run("r1", *on("a1")), order=Stop("r1", "preempted", "j1"))
    decided = plan(snapshot(nodes(a1=8), [gang("j1", 2, priority=Priority.URGENT)], [held]))
    assert (decided.stops, decided.resizes) == ((), ())


@settings(max_examples=300, deadline=None)
@given(elastic_worlds())
def test_nothing_is_ordered_in_vain(made: Snapshot) -> None:
    """Once all that was ordered has happened, who runs shrink for starts, and so does each of these runs, those that
    grow with what they were to have. A run on borrowed slots may lose them to those who lend them."""
    decided = plan(made)
    lent = borrowed(made)
    for_others = {each.for_job for each in decided.resizes if each.for_job}
    started = sizes(carried_out(made, decided))
    assert for_others <= started.keys()
    runs = {each.job: each for each in made.running}
    for each in decided.resizes:
        assert each.job in started or each.job in lent
        if each.learners > len(runs[each.job].nodes):
            assert started[each.job] == each.learners


@settings(max_examples=300, deadline=None)
@given(elastic_worlds())
def test_each_run_that_shrinks_for_another_job_is_needed(made: Snapshot) -> None:
    decided = plan(made)
    for spared in decided.resizes:
        if spared.for_job is None:
            continue
        rest = replace(decided, resizes=tuple(each for each in decided.resizes if each is not spared))
        assert (
            not ({each.for_job for each in decided.resizes} - {None}) <= sizes(carried_out(made, rest)).keys()
        )


def test_runs_shrink_for_so_many_jobs_at_a_time() -> None:
    held = [run(f"r{n:02}", *on("a1", 2)) for n in range(20)]
    waiting = [gang(f"j{n}") for n in range(20)]
    made = snapshot(nodes(a1=40), waiting, held)
    decided = plan(made)
    assert {each.for_job for each in decided.resizes} == {f"j{n}" for n in range(16)}
    under_way = next_snapshot(made, decided, after_s=1)
    assert plan(under_way).resizes == ()
    some = [each.job for each in decided.resizes if each.for_job in ("j0", "j1", "j2")]
    freed = next_snapshot(made, decided, after_s=1, ended=some)
    again = plan(freed)
    assert {"j0", "j1", "j2"} <= {start.job for start in again.starts}
    assert {each.for_job for each in again.resizes} == {"j16", "j17", "j18"}


def test_jobs_of_one_tenant_that_nothing_helps_do_not_keep_others_waiting() -> None:
    held = [run(f"r{n}", *on(f"a{n}"), tenant="blue") for n in (1, 2)]
    early = NOON - timedelta(hours=2)
    hopeless = [gang(f"j{n}", 3, 5 + n % 3, queued_at=early, user=f"u{n}") for n in range(12)]
    made = snapshot(nodes(**FULL), [*hopeless, gang("j99", tenant="green")], held)
    assert {each.for_job for each in plan(made).resizes} == {"j99"}


def test_a_large_job_takes_few_checks_among_many_runs() -> None:
    """Counted in checks of room, which each take as long as there are nodes."""
    many = 150
    held = [run(f"r{n:03}", *on(f"a{n:03}")) for n in range(many)]
    machines = nodes(**{f"a{n:03}": 8 for n in range(many)})
    made = snapshot(machines, [gang("j1", 100, 8)], held, limits={"red": 5000})
    asked = Counter[str]()

    def counted(self: RoomMade) -> bool:
        asked["suffices"] += 1
        return suffices(self)

    suffices = RoomMade.suffices
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoomMade, "suffices", counted)
        decided = plan(made)
    assert len(decided.resizes) == many
    assert asked["suffices"] < 30


@settings(max_examples=100, deadline=None)
@given(elastic_worlds())
def test_in_whatever_order_runs_and_nodes_are_listed(made: Snapshot) -> None:
    decided = plan(made)
    other = plan(replace(made, nodes=made.nodes[::-1], running=made.running[::-1]))
    assert resizes(other) == resizes(decided)
    assert other.starts == decided.starts
