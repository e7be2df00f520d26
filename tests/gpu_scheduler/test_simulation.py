"""The simulator: what happens is what a cluster would do with the same plans, to the second."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.drf import Drf
from bench.tiresias import Tiresias
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Plan, Profile, QuotaUse, Range, Snapshot, StepTimes, Stop
from gpu_scheduler.policies.base import Policy
from gpu_scheduler.policies.fair_share import FairShare
from gpu_scheduler.policies.fifo import Fifo, FifoBackfill
from gpu_scheduler.simulation import (
    Costs,
    NodeFailure,
    Outcome,
    Rate,
    RunEnd,
    Scenario,
    SimulatedJob,
    simulate,
)
from gpu_scheduler.simulation.engine import PLAN
from tests.gpu_scheduler.preempting import Preempting
from tests.gpu_scheduler.worlds import NOON, gang, nodes

EVERYDAY = settings(max_examples=40, deadline=None)
POLICIES: tuple[Policy, ...] = (
    Fifo(),
    FifoBackfill(),
    FairShare(60, 300),
    Preempting(60, 300),
    Tiresias(600),
    Drf(),
)


def job(
    name: str, at_s: float, work_s: float, learners: int = 1, slots: int = 1, **more: Any
) -> SimulatedJob:
    costs = more.pop("costs", Costs())
    arrives = NOON + timedelta(seconds=at_s)
    return SimulatedJob(gang(name, learners, slots, queued_at=arrives, **more), work_s, costs)


def scenario(on: Any, jobs: Any, policy: Policy, **more: Any) -> Scenario:
    tenants = ("red", "green", "blue")
    quotas = tuple(QuotaUse(tenant, "a100", 100, 0) for tenant in tenants)
    values: dict[str, Any] = {"quotas": quotas, "round_s": 0.0, "begin": NOON}
    return Scenario(on, tuple(jobs), policy=policy, **(values | more))


PROFILES = st.sampled_from(
    [
        Profile(),
        Profile(step_times=StepTimes(0.1, 1.0, 0.05, 0.01, 0.2, 0.02)),
        Profile(Range(64, 1024), StepTimes(0.01, 0.01, 0.05, 0.01, 0.2, 0.02), largest=2),
    ]
)


def elastic(job: SimulatedJob, more: int, profile: Profile | None = None) -> SimulatedJob:
    """The job with up to so many learners more."""
    least = job.gang.learners.min
    known = profile if more else None
    return replace(job, gang=replace(job.gang, learners=Range(least, least + more), elastic=known))


def stays(outcome: Outcome) -> dict[str, list[tuple[float, float]]]:
    """By job, when its runs began and ended, in seconds."""
    found: dict[str, list[tuple[float, float]]] = {}
    for run in outcome.runs:
        began, ended = ((at - NOON).total_seconds() for at in (run.began, run.ended))
        found.setdefault(run.gang.job, []).append((began, ended))
    return found


def test_strict_fifo_lets_nothing_past_the_first_job_that_waits() -> None:
    jobs = [job("a1", 0, 100, 1, 8), job("b2", 10, 50, 2, 8), job("c3", 20, 10)]
    assert stays(simulate(scenario(nodes(a1=8, a2=8), jobs, Fifo()))) == {
        "a1": [(0, 100)],
        "b2": [(100, 150)],
        "c3": [(150, 160)],
    }


def test_backfill_takes_reserved_slots_only_with_a_time_limit_that_ends_in_time() -> None:
    def jobs(limit_s: float | None) -> list[SimulatedJob]:
        return [
            job("a1", 0, 90, 1, 8, runs_at_most_s=100),
            job("b2", 10, 50, 2, 8),
            job("c3", 20, 10, runs_at_most_s=limit_s),
        ]

    on = nodes(a1=8, a2=8)
    assert stays(simulate(scenario(on, jobs(80), FifoBackfill())))["c3"] == [(20, 30)]
    for limit_s in (None, 81):
        found = stays(simulate(scenario(on, jobs(limit_s), FifoBackfill())))
        assert (found["b2"], found["c3"]) == ([(90, 140)], [(140, 150)])


def test_backfill_uses_slots_that_the_first_job_does_not_need() -> None:
    jobs = [job("a1", 0, 100, 1, 8), job("b2", 10, 50, 1, 8), job("c3", 20, 200, 1, 4)]
    on = nodes(a1=8, a2=4)
    assert stays(simulate(scenario(on, jobs, FifoBackfill())))["c3"] == [(20, 220)]
    assert stays(simulate(scenario(on, jobs, Fifo())))["c3"] == [(100, 300)]


def test_a_job_that_its_own_quota_holds_back_delays_its_own_tenant_only() -> None:
    quotas = (QuotaUse("red", "a100", 4, 0), QuotaUse("green", "a100", 8, 0))
    jobs = [
        job("r1", 0, 100, 1, 3),
        job("r2", 1, 100, 1, 2),
        job("r3", 2, 10, 1, 1),
        job("g4", 3, 10, 1, 5, tenant="green"),
    ]
    for policy in (Fifo(), FifoBackfill()):
        found = stays(simulate(scenario(nodes(a1=8), jobs, policy, quotas=quotas)))
        assert found == {"g4": [(3, 13)], "r1": [(0, 100)], "r2": [(100, 200)], "r3": [(100, 110)]}


def test_a_class_comes_before_an_earlier_arrival() -> None:
    jobs = [job("a1", 0, 10, 1, 8), job("b2", 1, 10, 1, 8), job("c3", 2, 10, 1, 8, priority=3)]
    assert stays(simulate(scenario(nodes(a1=8), jobs, Fifo())))["c3"] == [(10, 20)]


def test_a_stopped_job_saves_and_later_restores_and_loses_no_work() -> None:
    costs = Costs(start_s=3, restore_s=7, checkpoint_s=5)
    jobs = [
        job("low1", 0, 100, 1, 8, costs=costs, priority=0),
        job("top2", 40, 20, 1, 8, costs=costs, priority=3),
    ]
    outcome = simulate(scenario(nodes(a1=8), jobs, Preempting()))
    assert stays(outcome) == {"low1": [(0, 45), (68, 138)], "top2": [(45, 68)]}
    first, _, last = outcome.runs
    assert (first.end, first.work_s, first.lost_s) == (RunEnd.STOPPED, 37, 0)
    assert (last.end, last.work_s, last.lost_s) == (RunEnd.COMPLETED, 63, 0)


def test_a_lost_node_costs_the_work_since_the_last_checkpoint() -> None:
    costs = Costs(start_s=2, restore_s=4, checkpoint_every_s=10)
    failures = (NodeFailure(NOON + timedelta(seconds=37), "a1", 60),)
    outcome = simulate(scenario(nodes(a1=8), [job("a1", 0, 50, costs=costs)], Fifo(), failures=failures))
    assert stays(outcome) == {"a1": [(0, 37), (97, 121)]}
    assert [(run.end, run.work_s, run.lost_s) for run in outcome.runs] == [
        (RunEnd.NODE_FAILED, 30, 5),
        (RunEnd.COMPLETED, 20, 0),
    ]


def test_with_a_notice_what_can_save_in_time_leaves_first_and_loses_nothing() -> None:
    def revoked(save_s: float, notice_s: float) -> Outcome:
        costs = Costs(start_s=2, restore_s=4, checkpoint_s=save_s, checkpoint_every_s=10)
        failures = (NodeFailure(NOON + timedelta(seconds=37), "a1", 60, notice_s),)
        jobs = [job("a1", 0, 50, costs=costs), job("b1", 36, 10)]
        return simulate(scenario(nodes(a1=8), jobs, Fifo(), failures=failures))

    saved = revoked(5, 8)
    assert [(run.gang.job, run.end, run.work_s, run.lost_s) for run in saved.runs] == [
        ("a1", RunEnd.REVOKED, 27, 0),
        ("b1", RunEnd.COMPLETED, 10, 0),
        ("a1", RunEnd.COMPLETED, 23, 0),
    ]
    assert stays(saved) == {"a1": [(0, 34), (97, 124)], "b1": [(97, 107)]}, (
        "b1 does not start where it would be lost"
    )
    assert stays(revoked(5, 5))["a1"][0] == (0, 37), "just in time"
    assert revoked(5, 5).runs[0].end is RunEnd.REVOKED
    for save_s, notice_s in ((6, 5), (5, 0)):
        lost = revoked(save_s, notice_s).runs[0]
        assert (lost.end, lost.work_s, lost.lost_s) == (RunEnd.NODE_FAILED, 30, 5), "it saved by itself at 32"


def test_a_simulation_begins_with_its_first_event_and_a_notice_is_one() -> None:
    failures = (NodeFailure(NOON + timedelta(seconds=40), "a1", 60, 30),)
    outcome = simulate(scenario(nodes(a1=8), [job("a1", 20, 5)], Fifo(), failures=failures, begin=None))
    assert outcome.begin == NOON + timedelta(seconds=10)
    assert stays(outcome) == {"a1": [(100, 105)]}, "nothing starts after the notice"


def test_what_a_notice_drives_away_starts_at_once_where_there_is_room() -> None:
    """All learners of it leave, also those on other nodes; what runs elsewhere stays."""
    costs = Costs(restore_s=4, checkpoint_s=5)
    failures = (NodeFailure(NOON + timedelta(seconds=60), "a1", 60, 30),)
    jobs = [job("a2", 0, 100, 2, 8, costs=costs), job("b1", 0, 100, 1, 8, costs=costs)]
    outcome = simulate(scenario(nodes(a1=8, a2=8, a3=8, a4=8), jobs, Fifo(), failures=failures))
    (first, again), (other,) = (
        [run for run in outcome.runs if run.gang.job == name] for name in ("a2", "b1")
    )
    assert (first.end, "a1" in first.nodes, first.lost_s) == (RunEnd.REVOKED, True, 0)
    assert ("a1" in again.nodes, again.began) == (False, first.ended)
    assert other.end is RunEnd.COMPLETED


def test_a_notice_changes_nothing_for_what_saves_already() -> None:
    failures = (NodeFailure(NOON + timedelta(seconds=80), "a1", 60, 38),)
    costs = Costs(checkpoint_s=5)
    jobs = [
        job("low1", 0, 100, 1, 8, costs=costs, priority=0),
        job("top2", 40, 20, 1, 8, costs=costs, priority=3),
    ]
    run = simulate(scenario(nodes(a1=8), jobs, Preempting(), failures=failures)).runs[0]
    assert (run.gang.job, run.end, run.work_s) == ("low1", RunEnd.STOPPED, 40)
    assert run.ended == NOON + timedelta(seconds=45)


def test_a_node_with_two_notices_takes_jobs_after_the_second_loss_only_if_it_was_not_cordoned() -> None:
    at = [NOON + timedelta(seconds=s) for s in (20, 30)]
    failures = (NodeFailure(at[0], "a1", 5, 100), NodeFailure(at[1], "a1", 10, 12))
    outcome = simulate(scenario(nodes(a1=8), [job("a1", 1, 10)], Fifo(), failures=failures))
    assert stays(outcome) == {"a1": [(40, 50)]}, "back at 25, but a notice says that it is lost again"
    (cordoned,) = (replace(node, cordoned=True) for node in nodes(a1=8))
    assert simulate(scenario([cordoned], [job("a1", 1, 10)], Fifo(), failures=failures)).unfinished == ("a1",)


def test_a_rate_changes_with_what_is_done_also_over_a_stop() -> None:
    def rate(gang: Any, nodes: Any, done: float) -> Rate:
        return Rate(1.0, 30) if done < 30 else Rate(0.5, 60) if done < 60 else Rate(4.0)

    failures = (NodeFailure(NOON + timedelta(seconds=50), "a1", 50),)
    jobs = [job("a1", 0, 100, costs=Costs(checkpoint_every_s=10))]
    outcome = simulate(scenario(nodes(a1=8), jobs, Fifo(), rate=rate, failures=failures))
    assert stays(outcome) == {"a1": [(0, 50), (100, 100 + 40 + 10)]}, "30 s, 60 s and 10 s of computing"
    assert [(run.work_s, run.useful_s, run.lost_s) for run in outcome.runs] == [(40, 50, 0), (60, 50, 0)]


def test_an_elastic_job_grows_into_free_slots_and_shrinks_at_once_for_one_that_waits() -> None:
    profile = Profile(step_times=StepTimes(0.0, 1.0), largest=8)
    costs = Costs(restore_s=5, checkpoint_s=5)
    jobs = [elastic(job("a1", 0, 2000, costs=costs), 7, profile), job("b2", 200, 100, 4, costs=costs)]
    outcome = simulate(scenario(nodes(a1=8), jobs, FairShare()))
    runs = [(run.gang.job, len(run.nodes), (run.began - NOON).total_seconds()) for run in outcome.runs]
    sizes = [size for name, size, _ in runs if name == "a1"]
    assert sizes == [8, 4, 8]
    assert ("b2", 4, 205.0) in runs, "after the save of a1"
    grown = [began for name, size, began in runs if size == 8]
    assert grown == [0.0, 310.0], "measured before it started; as soon as the other has ended"


def test_what_is_learned_of_a_job_counts_in_the_next_plan() -> None:
    def known(gang: Any, nodes: tuple[str, ...], done: float) -> Profile:
        return Profile(step_times=StepTimes(0.0, 1.0), largest=len(nodes)) if nodes else Profile()

    jobs = [elastic(job("a1", 0, 1000), 7, Profile())]
    outcome = simulate(scenario(nodes(a1=8), jobs, FairShare(), known=known))
    assert [len(run.nodes) for run in outcome.runs] == [1, 2, 4, 8], "at most twice what it ran with"
    assert [len(run.nodes) for run in simulate(scenario(nodes(a1=8), jobs, FairShare())).runs] == [1]


def test_a_rate_says_how_fast_work_is_done_where() -> None:
    jobs = [job("a1", 0, 100, 1, 8), job("b2", 0, 100, 1, 8)]
    on = nodes(a1=8, a2=8)
    outcome = simulate(
        scenario(on, jobs, Fifo(), rate=lambda gang, nodes, done: Rate(2.0 if nodes == ("a2",) else 0.5))
    )
    assert stays(outcome) == {"b2": [(0, 50)], "a1": [(0, 200)]}


def test_plans_are_made_in_rounds() -> None:
    jobs = [job("a1", 1, 100, 1, 8), job("b2", 2, 10, 1, 8)]
    outcome = simulate(scenario(nodes(a1=8), jobs, Fifo(), round_s=60.0))
    assert stays(outcome) == {"a1": [(60, 160)], "b2": [(180, 190)]}
    assert outcome.plans == 2


@pytest.mark.parametrize("waits_s", [0.0, 20.0])
def test_a_job_leaves_that_has_not_started_by_then_and_only_such_a_one(waits_s: float) -> None:
    """With 0 it starts on what is free when it arrives, or leaves; it never does both."""
    jobs = [
        replace(job(name, at_s, 100, 1, 8), waits_at_most_s=waits_s)
        for name, at_s in (("a1", 0), ("b2", 10), ("c3", 200))
    ]
    outcome = simulate(scenario(nodes(a1=8), jobs, Fifo()))
    assert stays(outcome) == {"a1": [(0, 100)], "c3": [(200, 300)]}
    assert (outcome.left, outcome.unfinished) == (("b2",), ())
    assert outcome.end == NOON + timedelta(seconds=300)


def test_a_plan_at_the_very_time_at_which_a_job_would_leave_starts_it() -> None:
    jobs = [job("a1", 0, 100, 1, 8), replace(job("b2", 10, 5, 1, 8), waits_at_most_s=90.0)]
    assert stays(simulate(scenario(nodes(a1=8), jobs, Fifo())))["b2"] == [(100, 105)]
    late = [jobs[0], replace(jobs[1], waits_at_most_s=89.0)]
    assert simulate(scenario(nodes(a1=8), late, Fifo())).left == ("b2",)


def test_what_a_job_that_left_held_up_starts_then() -> None:
    jobs = [job("a1", 0, 100, 1, 4), replace(job("b2", 10, 5, 1, 8), waits_at_most_s=15.0), job("c3", 20, 5)]
    found = stays(simulate(scenario(nodes(a1=8), jobs, Fifo())))
    assert found == {"a1": [(0, 100)], "c3": [(25, 30)]}


def test_after_the_simulated_time_nothing_has_ended() -> None:
    jobs = [job("a1", 0, 100, 1, 8), job("b2", 10, 50, 1, 8), job("c3", 20, 50, 1, 8)]
    outcome = simulate(scenario(nodes(a1=8), jobs, Fifo(), until=NOON + timedelta(seconds=120)))
    assert stays(outcome) == {"a1": [(0, 100)], "b2": [(100, 120)]}
    assert [(run.end, run.work_s) for run in outcome.runs] == [(RunEnd.COMPLETED, 100), (RunEnd.CUT, 20)]
    assert (list(outcome.completed), outcome.unfinished) == (["a1"], ("c3",))
    assert outcome.end == NOON + timedelta(seconds=120)


def test_the_work_of_plans_is_bounded_however_much_waits() -> None:
    """Each job that comes is one more in each plan: the work is that of the square of their number, or the bound."""

    def made(number: int, work: int | None) -> tuple[Outcome, int]:
        spent = 0

        def planner(seen: Snapshot) -> Plan:
            nonlocal spent
            spent += PLAN + len(seen.nodes) + len(seen.waiting) + len(seen.running)
            return plan(seen, explained=False)

        jobs = [job(f"j{i}", i * 3600 / number, 60, 1, 8) for i in range(number)]
        until = NOON + timedelta(hours=1)
        return simulate(scenario(nodes(a1=8), jobs, Fifo(), until=until, work=work), planner), spent

    free, unbounded = made(600, None)
    bounded, spent = made(600, 30_000)
    assert unbounded > 150_000
    assert spent <= 30_000 + 700, "and the last plan"
    assert free.plans_late_s == 0 < bounded.plans_late_s < 300
    assert len(bounded.completed) > 0.6 * len(free.completed), "nodes are idle until the next plan"
    enough, _ = made(600, 2 * unbounded)
    assert (enough.runs, enough.plans_late_s) == (free.runs, 0)


def test_what_was_queued_before_the_simulated_time_keeps_its_turn() -> None:
    """Both come when it begins, the one that was queued first is second by name."""
    jobs = [
        replace(job("a1", -50, 10, 1, 8), arrives_at=NOON),
        replace(job("b2", -90, 10, 1, 8), arrives_at=NOON),
    ]
    assert stays(simulate(scenario(nodes(a1=8), jobs, Fifo(), begin=None))) == {
        "a1": [(10, 20)],
        "b2": [(0, 10)],
    }


def test_what_can_never_start_is_left_over() -> None:
    jobs = [job("a1", 0, 10, 1, 9), job("b2", 1, 10, 1, 8), job("c3", 2, 10, tenant="unknown")]
    outcome = simulate(scenario(nodes(a1=8), jobs, Fifo()))
    assert outcome.unfinished == ("a1", "c3")
    assert list(outcome.completed) == ["b2"]


def test_nothing_gives_nothing() -> None:
    outcome = simulate(scenario((), (), Fifo(), begin=None))
    assert (outcome.runs, outcome.plans) == ((), 0)


def test_a_scenario_that_means_nothing_is_refused_with_all_reasons() -> None:
    failures = (NodeFailure(NOON, "b9", 1),)
    with pytest.raises(ValueError, match=r"same name; jobs: a1 has no work; failures: no node b9"):
        scenario(nodes(a1=8), [job("a1", 0, 1), job("a1", 0, 0)], Fifo(), failures=failures)
    for notice_s in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="failures: a1 has less than no notice"):
            scenario(nodes(a1=8), [], Fifo(), failures=(NodeFailure(NOON, "a1", 1, notice_s),))
    for waits_s in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="jobs: a1 waits for less than no time"):
            scenario(nodes(a1=8), [replace(job("a1", 0, 1), waits_at_most_s=waits_s)], Fifo())
    for bound in ({"work": 5}, {"work": 0, "until": NOON}):
        with pytest.raises(ValueError, match="work: must be more than 0, and of a scenario with until"):
            scenario(nodes(a1=8), [], Fifo(), **bound)
    with pytest.raises(ValueError, match="checkpoint_every_s more than 0"):
        Costs(checkpoint_every_s=0)


def test_a_policy_that_stops_and_starts_forever_is_an_error() -> None:
    def stop_what_starts(snapshot: Snapshot) -> Plan:
        decided = plan(snapshot, explained=False)
        return replace(decided, stops=tuple(Stop(start.job, "preempted") for start in decided.starts))

    with pytest.raises(RuntimeError, match="does not come to rest"):
        simulate(scenario(nodes(a1=8), [job("a1", 0, 10)], Fifo()), stop_what_starts)


COSTS = st.builds(
    Costs,
    start_s=st.sampled_from([0, 3]),
    restore_s=st.sampled_from([0, 7.5]),
    checkpoint_s=st.sampled_from([0, 5, 70]),
    checkpoint_every_s=st.sampled_from([None, 20]),
)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Small clusters that lose nodes, jobs of several tenants, sizes and classes, and every policy."""
    on = nodes(**{f"a{i}": draw(st.integers(1, 8)) for i in range(draw(st.integers(1, 3)))})
    jobs = [
        job(
            f"j{i}",
            draw(st.integers(0, 300)),
            draw(st.sampled_from([1, 30, 100.25, 400])),
            draw(st.integers(1, 3)),
            draw(st.integers(1, 6)),
            costs=draw(COSTS),
            tenant=draw(st.sampled_from(["red", "green"])),
            priority=draw(st.integers(0, 3)),
            runs_at_most_s=draw(st.none() | st.sampled_from([100.0, 5000.0])),
        )
        for i in range(draw(st.integers(0, 8)))
    ]
    jobs = [elastic(each, draw(st.integers(0, 6)), draw(PROFILES)) for each in jobs]
    failures = tuple(
        NodeFailure(
            NOON + timedelta(seconds=draw(st.integers(0, 500))),
            draw(st.sampled_from(on)).name,
            draw(st.integers(0, 200)),
            draw(st.sampled_from([0, 30, 120])),
        )
        for _ in range(draw(st.integers(0, 3)))
    )
    policy = draw(st.sampled_from(POLICIES))
    quotas = tuple(QuotaUse(tenant, "a100", draw(st.integers(4, 24)), 0) for tenant in ("red", "green"))
    round_s = draw(st.sampled_from([0.0, 60.0]))
    return scenario(on, jobs, policy, failures=failures, quotas=quotas, round_s=round_s)


@EVERYDAY
@given(scenarios())
def test_no_node_and_no_quota_is_overcommitted_at_any_time(made: Scenario) -> None:
    changes = []
    for run in simulate(made).runs:
        for name in run.nodes:
            changes += [(run.began, name, run.gang.slots), (run.ended, name, -run.gang.slots)]
            changes += [
                (run.began, run.gang.tenant, run.gang.slots),
                (run.ended, run.gang.tenant, -run.gang.slots),
            ]
    most = {node.name: node.slots for node in made.nodes} | {each.tenant: each.limit for each in made.quotas}
    used: Counter[str] = Counter()
    for _, name, slots in sorted(changes, key=lambda change: (change[0], change[2])):
        used[name] += slots
        assert 0 <= used[name] <= most[name]


@EVERYDAY
@given(scenarios())
def test_gangs_run_whole_one_run_at_a_time_and_never_on_a_node_that_is_down(made: Scenario) -> None:
    last: dict[str, Any] = {}
    for run in simulate(made).runs:
        assert run.gang.learners.min <= len(run.nodes) <= run.gang.learners.max
        assert run.gang.queued_at <= run.began <= run.ended
        if run.gang.job in last:
            assert last[run.gang.job].ended <= run.began
            assert last[run.gang.job].end is not RunEnd.COMPLETED
        last[run.gang.job] = run
        for failure in made.failures:
            if failure.node in run.nodes:
                back = failure.at + timedelta(seconds=failure.down_s)
                assert run.ended <= failure.at or run.began >= back
                notice_at = failure.at - timedelta(seconds=failure.notice_s)
                assert run.began <= notice_at or run.began >= back, "nothing starts where it would be lost"


@EVERYDAY
@given(scenarios())
def test_work_is_conserved_over_stops_and_failures(made: Scenario) -> None:
    """What is kept adds up to the job's work, and every second of a run is accounted for."""
    outcome = simulate(made)
    jobs = {each.gang.job: each for each in made.jobs}
    kept: Counter[str] = Counter()
    for run in outcome.runs:
        costs, first = jobs[run.gang.job].costs, run.began == outcome.first_started[run.gang.job]
        kept[run.gang.job] += run.work_s
        other_s = (run.ended - run.began).total_seconds() - run.useful_s - run.lost_s
        start_s = costs.start_s if first else costs.restore_s
        if run.end is RunEnd.COMPLETED:
            assert other_s == pytest.approx(start_s, abs=1e-5)
        else:
            assert -1e-5 <= other_s <= start_s + costs.checkpoint_s + 1e-5
        assert run.lost_s == 0 or run.end is RunEnd.NODE_FAILED
        if run.end is RunEnd.REVOKED:
            gone = [each for each in made.failures if each.node in run.nodes and run.ended <= each.at]
            assert any(each.at - run.ended <= timedelta(seconds=each.notice_s) for each in gone)
    for name in outcome.completed:
        assert kept[name] == pytest.approx(jobs[name].work_s, abs=1e-4)


@EVERYDAY
@given(scenarios())
def test_every_job_that_fits_an_empty_cluster_and_its_quota_ends(made: Scenario) -> None:
    limits = {quota.tenant: quota.limit for quota in made.quotas}
    fits = {
        each.gang.job
        for each in made.jobs
        if each.gang.asked <= limits[each.gang.tenant]
        and sum(node.slots // each.gang.slots for node in made.nodes) >= each.gang.learners.min
    }
    outcome = simulate(made)
    assert outcome.completed.keys() == fits
    assert set(outcome.unfinished) == {each.gang.job for each in made.jobs} - fits


@EVERYDAY
@given(scenarios(), st.randoms(use_true_random=False))
def test_the_same_scenario_has_the_same_outcome_in_whatever_order_it_is_listed(
    made: Scenario, chance: random.Random
) -> None:
    def shuffled(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(chance.sample(items, len(items)))

    again = replace(
        made, jobs=shuffled(made.jobs), nodes=shuffled(made.nodes), failures=shuffled(made.failures)
    )
    one, other = simulate(made), simulate(again)
    assert one == simulate(made)
    assert one.completed == other.completed
    assert stays(one) == stays(other)
