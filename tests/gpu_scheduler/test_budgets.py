"""A hard GPU-hour budget holds its tenant's GPU jobs, and stops those that run; nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler import budgets, record
from gpu_scheduler.checks import NOT_QUEUED, Remedy, check_of
from gpu_scheduler.checks.words import hours_used
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import CPU_TYPE, QuotaUse, Resize, Snapshot, Stop, TenantState, WaitReason
from gpu_scheduler.policies.fifo import Fifo
from gpu_scheduler.simulation import Costs, Scenario, SimulatedJob, simulate
from tests.gpu_scheduler.elastic_runs import elastic, elastic_worlds
from tests.gpu_scheduler.test_cohorts import shared, sharing_worlds
from tests.gpu_scheduler.test_opportunistic import idle, idle_run
from tests.gpu_scheduler.worlds import NOON, TENANTS, gang, nodes, running, snapshot, worlds

EVERYDAY = settings(max_examples=150, deadline=None)
TURNS = NOON + timedelta(days=3)


def red(hours: float | None, used: float, *, hard: bool = True, **changes: object) -> TenantState:
    """used: in hours, too."""
    return TenantState(
        "red",
        budget_gpu_hours=hours,
        budget_is_hard=hard,
        used_gpu_s=used * 3600,
        month_ends=TURNS,
        **changes,
    )


def with_budgets(made: Snapshot, states: dict[str, TenantState]) -> Snapshot:
    """Each tenant's limits as they were, with the budget of this state."""
    found = {state.tenant: state for state in made.tenants}
    names = ("budget_gpu_hours", "budget_is_hard", "used_gpu_s", "month_ends")
    return replace(
        made,
        tenants=tuple(
            replace(
                found.get(tenant, TenantState(tenant)),
                **{name: getattr(states[tenant], name) for name in names},
            )
            if tenant in states
            else found.get(tenant, TenantState(tenant))
            for tenant in TENANTS
        ),
    )


def test_a_job_waits_for_the_next_month_and_says_so() -> None:
    made = snapshot(nodes(a1=8), [gang("j1", slots=4)], tenants=(red(100, 101.5),))
    (wait,) = plan(made).waits
    assert wait.code is WaitReason.BUDGET_EXHAUSTED
    assert wait.message == (
        "The tenant's GPU-hour budget is used up: 101.5 of 100 GPU-hours of this month are used. It starts after the"
        f" next month begins, {TURNS:%Y-%m-%d %H:%M} UTC, or when a platform admin raises the budget."
    )
    assert wait.numbers["budget_gpu_hours"] == 100
    assert wait.numbers["budget_used_gpu_hours"] == 101.5
    assert datetime.fromisoformat(wait.numbers["month_ends"]) == TURNS
    assert "position" not in wait.numbers
    check = check_of("BUDGET_EXHAUSTED")
    assert check is not None
    assert check.remedy is Remedy.ASK
    (failed,) = [one for one in wait.checks() if one["ok"] is False]
    assert (failed["check"], failed["used"], failed["limit"]) == ("budget", 102, 100)


def test_what_only_a_raise_starts_waits_for_no_month() -> None:
    made = snapshot(nodes(a1=8), [gang("j1", slots=4)], tenants=(red(0, 0),))
    for hours in (0, 3.9 / 60):
        (wait,) = plan(replace(made, tenants=(red(hours, 0),))).waits
        assert wait.code is WaitReason.BUDGET_EXHAUSTED
        assert "only after a platform admin raises the budget" in wait.message
        assert "month begins" not in wait.message
        assert wait.numbers["month_ends"] is None


def test_hours_are_rounded_so_that_the_sentence_is_true() -> None:
    found = [
        hours_used(*each) for each in ((99.99, 100), (100, 100), (100.01, 100), (0.01, 5), (0, 5), (1.3, 5))
    ]
    assert found == ["99.9", "100", "100.1", "less than 0.1", "0", "1.3"]


def test_whom_it_holds() -> None:
    waiting = [
        gang("gpu", slots=1),
        gang("cpu", slots=1, slot_type="cpu"),
        gang("other", slots=1, tenant="green"),
        idle("idle", slots=1),
    ]
    made = snapshot(nodes(a1=8, c1=8), waiting, tenants=(red(0, 0), TenantState("green")))
    assert {start.job for start in plan(made).starts} == {"cpu", "other", "idle"}
    for state in (red(0, 0, hard=False), red(None, 9), red(10, 1)):
        made = replace(made, tenants=(state, TenantState("green")))
        assert {start.job for start in plan(made).starts} == {"gpu", "cpu", "other", "idle"}


def test_a_job_starts_only_if_a_minute_of_it_is_left() -> None:
    """Else what a closed attempt counts less than it did while it ran would start jobs again and again."""
    made = snapshot(nodes(a1=8), [gang("j1", slots=4)], tenants=(red(1, 1 - 4 / 60),))
    assert plan(made).starts
    short = replace(made, tenants=(red(1, 1 - 3.9 / 60),))
    assert not plan(short).starts
    assert "nearly used up" in plan(short).waits[0].message


def test_one_minute_is_not_given_to_many_jobs() -> None:
    """Each job that a plan starts, and each that runs, keeps a minute of its own."""
    waiting = [gang(f"j{n}", slots=2) for n in range(4)]
    made = snapshot(nodes(a1=8), waiting, tenants=(red(1, 1 - 4 / 60),))
    decided = plan(made)
    assert [start.job for start in decided.starts] == ["j0", "j1"]
    assert {wait.code for wait in decided.waits} == {WaitReason.BUDGET_EXHAUSTED}
    again = replace(made, waiting=made.waiting[2:], running=(running("j0", "a1", slots=2),))
    assert [start.job for start in plan(again).starts] == ["j2"]
    beside = (
        running("cpu", "c1", slots=8, slot_type="cpu"),
        idle_run("idle", "a1", slots=2),
        running("other", "a1", slots=2, tenant="green"),
    )
    free = replace(made, nodes=nodes(a1=8, c1=8), running=beside)
    assert [start.job for start in plan(free).starts] == ["j0", "j1"], "these do not count"
    urgent = replace(again, running=(running("j0", "a1", slots=8, priority=0),))
    assert plan(urgent).stops == (), "nor is anything stopped for one that it holds"


def test_an_elastic_job_starts_no_larger_than_the_budget_lasts() -> None:
    known = elastic("j1", most=8)
    made = snapshot(nodes(a1=8), [known], tenants=(red(1, 0),))
    assert len(plan(made).starts[0].placement.nodes) == 8
    short = replace(made, tenants=(red(1, 1 - 3 / 60),))
    assert len(plan(short).starts[0].placement.nodes) == 3


def test_no_room_is_kept_for_an_elastic_job_that_cannot_start() -> None:
    """A job of green starts with as many learners as without those of red, which the budget or a suspension holds."""
    own, held = elastic("j1", tenant="green"), [elastic("h1"), gang("h2", slots=3)]
    for state in (red(5, 5), red(0, 0), TenantState("red", suspended=True)):
        alone = snapshot(nodes(a1=8), [own], tenants=(state, TenantState("green")))
        beside = replace(alone, waiting=(own, *held))
        assert len(plan(alone).starts[0].placement.nodes) == 8
        assert plan(beside).starts == plan(alone).starts


def without_held(made: Snapshot, tenant: str) -> Snapshot:
    return replace(
        made,
        waiting=tuple(each for each in made.waiting if each.tenant != tenant or each.slot_type == CPU_TYPE),
    )


@EVERYDAY
@given(elastic_worlds() | worlds() | sharing_worlds(), st.booleans())
def test_jobs_that_it_holds_change_nothing_for_others(made: Snapshot, suspended: bool) -> None:
    held = with_budgets(made, {"red": red(5, 5)})
    if suspended:
        held = replace(
            made,
            tenants=tuple(TenantState(tenant, suspended=tenant == "red") for tenant in TENANTS),
            waiting=tuple(
                each for each in made.waiting if each.tenant != "red" or each.slot_type != CPU_TYPE
            ),
        )
    with_them, without = plan(held), plan(without_held(held, "red"))
    assert with_them.starts == without.starts
    assert with_them.stops == without.stops
    assert with_them.resizes == without.resizes
    ours = {each.job for each in held.waiting if each.tenant != "red"}
    said = [[(w.job, w.code) for w in decided.waits if w.job in ours] for decided in (with_them, without)]
    assert said[0] == said[1]


def test_what_runs_is_stopped_once_and_not_what_is_just_ending() -> None:
    runs = [
        running("r1", "a1", generation=7),
        running("ends", "a1", stopping=True),
        running("halts", "a1", requeues=False, stopping=True),
        running("ordered", "a1", order=Stop("ordered", "preempted", "j9")),
        running("resized", "a1", order=Resize("resized", 1)),
        running("cpu", "c1", slot_type="cpu"),
        idle_run("idle", "a1"),
        running("other", "a1", tenant="green"),
    ]
    on = nodes(a1=8, c1=8)
    made = snapshot(on, [], runs, tenants=(red(100, 100), TenantState("green")))
    (stop,) = plan(made).stops
    assert stop == Stop("r1", "budget_exhausted", None, 7)
    later = replace(made, running=(replace(runs[0], order=stop), *runs[1:]))
    assert plan(later).stops == ()
    assert plan(replace(made, tenants=(red(100.1, 100), TenantState("green")))).stops == ()


def test_nothing_is_kept_or_stopped_for_a_job_that_it_holds() -> None:
    """Urgent or a lender's: it would start nothing."""
    urgent = gang("j1", slots=8, priority=3)
    made = snapshot(
        nodes(a1=8),
        [urgent, gang("j2", slots=2, tenant="green")],
        [running("r1", "a1", slots=4, tenant="green", priority=0)],
    )
    assert plan(made).stops, "without a budget it would be stopped"
    made = with_budgets(made, {"red": red(5, 5)})
    decided = plan(made)
    assert decided.stops == ()
    assert [start.job for start in decided.starts] == ["j2"]
    assert decided.reserved == ()


def test_what_it_lent_stays_lent() -> None:
    quotas = shared({"red": 4, "green": 4}, {"green": 8})
    lent = [running("r1", "a1", slots=4, tenant="green"), running("r2", "a1", slots=4, tenant="green")]
    made = snapshot(nodes(a1=8), [gang("j1", slots=4)], lent, quotas=quotas)
    assert [stop.reason for stop in plan(made).stops] == ["reclaimed"]
    held = plan(with_budgets(made, {"red": red(5, 5)}))
    assert (held.stops, held.waits[0].code) == ((), WaitReason.BUDGET_EXHAUSTED)


def test_a_run_that_leaves_for_its_budget_is_not_stopped_for_another_job_too() -> None:
    run = running("r1", "a1", slots=8, priority=0)
    made = snapshot(nodes(a1=8), [gang("j1", slots=8, tenant="green", priority=3)], [run])
    assert plan(made).stops == (Stop("r1", "preempted", "j1"),)
    assert plan(with_budgets(made, {"red": red(5, 5)})).stops == (Stop("r1", "budget_exhausted"),)


def test_when_it_changes_by_itself() -> None:
    run, waits = running("r1", "a1", "a1", slots=2), gang("j1", slots=1)
    ask = budgets.next_event_at
    assert ask(snapshot(nodes(a1=8), [waits], [run], tenants=(TenantState("red"),))) is None
    assert ask(snapshot(nodes(a1=8), [], [run], tenants=(red(10, 2),))) == NOON + timedelta(hours=2), "8 by 4"
    assert ask(snapshot(nodes(a1=8), [waits], [run], tenants=(red(10, 10),))) == TURNS
    assert ask(snapshot(nodes(a1=8), [], [run], tenants=(red(1e9, 0),))) == TURNS
    assert ask(snapshot(nodes(a1=8), [], [], tenants=(red(10, 2),))) is None


@EVERYDAY
@given(worlds() | sharing_worlds(), st.data())
def test_no_gpu_job_of_a_tenant_at_its_hard_budget_starts(made: Snapshot, data: st.DataObject) -> None:
    states = {
        "red": red(data.draw(st.sampled_from([0, 1, 50])), data.draw(st.sampled_from([50, 51.5]))),
        "green": replace(red(10, 60, hard=False), tenant="green"),
    }
    held = with_budgets(made, states)
    decided = plan(held)
    gangs = {each.job: each for each in held.waiting}
    for start in decided.starts:
        assert gangs[start.job].tenant != "red" or start.placement.slot_type == CPU_TYPE
    free = {
        run.job
        for run in held.running
        if run.tenant == "red"
        and run.slot_type != CPU_TYPE
        and not run.stopping
        and run.order is None
        and run.requeues
    }
    ordered = [stop.job for stop in decided.stops] + [resize.job for resize in decided.resizes]
    assert len(ordered) == len(set(ordered)), "one order for a job"
    assert {stop.job for stop in decided.stops if stop.reason == "budget_exhausted"} == free
    assert not any(
        stop.for_job in gangs
        and gangs[stop.for_job].tenant == "red"
        and gangs[stop.for_job].slot_type != CPU_TYPE
        for stop in decided.stops
    )
    again = record.read(record.written(held), held.policy)
    assert plan(again) == decided, "decided the same from its record"


@EVERYDAY
@given(worlds() | sharing_worlds())
def test_soft_budgets_and_those_with_much_left_change_no_plan(made: Snapshot) -> None:
    states = {
        "red": red(1, 60, hard=False),
        "green": replace(red(10**6, 60), tenant="green"),
        "blue": replace(red(None, 60), tenant="blue"),
    }
    before, after = plan(with_budgets(made, {})), plan(with_budgets(made, states))
    assert (before.starts, before.stops, before.resizes) == (after.starts, after.stops, after.resizes)
    assert [(wait.job, wait.code) for wait in before.waits] == [(wait.job, wait.code) for wait in after.waits]
    assert WaitReason.BUDGET_EXHAUSTED in NOT_QUEUED


# While time is moved through: in forecasts and in the simulator


def test_what_is_used_follows_time_and_begins_again_with_the_month() -> None:
    held = [running("r1", "a1", "a1"), running("r2", "c1", slot_type="cpu"), idle_run("i1", "a1")]
    made = snapshot(nodes(a1=8, c1=1), [], held, tenants=(red(100, 10), TenantState("green")))
    same, other = budgets.after(made, NOON)
    assert (same, other) == made.tenants
    later, other = budgets.after(made, NOON + timedelta(hours=3))
    assert (later.used_gpu_s / 3600, later.month_ends, other) == (16, TURNS, TenantState("green"))
    turned = budgets.after(made, TURNS + timedelta(hours=2))[0]
    assert (turned.used_gpu_s / 3600, turned.month_ends) == (4, datetime(2026, 2, 1, 12, tzinfo=TURNS.tzinfo))
    twice = budgets.after(made, TURNS + timedelta(days=31))[0]
    assert twice.month_ends == datetime(2026, 3, 1, 12, tzinfo=TURNS.tzinfo)


def test_a_budget_is_used_up_at_the_time_that_was_said_whatever_is_rounded() -> None:
    made = snapshot(nodes(a1=8), [], [running("r1", *["a1"] * 7)], tenants=(red(100, 100 - 1 / 3),))
    at = budgets.next_event_at(made)
    assert at is not None
    (state,) = budgets.after(made, at)
    assert state.used_gpu_s >= 100 * 3600


def test_a_simulation_stops_at_the_end_of_a_budget_and_continues_with_the_next_month() -> None:
    """Eight GPUs use ten GPU-hours up in 4500 s. What is left of the job runs when the month turns."""
    costs = Costs(checkpoint_s=10)
    jobs = [
        SimulatedJob(gang("j1", 1, 8, queued_at=NOON), 10_000.0, costs),
        SimulatedJob(gang("j2", 1, 8, queued_at=NOON, tenant="green"), 100.0, costs),
    ]
    quotas = tuple(QuotaUse(tenant, "a100", 8, 0) for tenant in ("red", "green"))
    made = Scenario(nodes(a1=8), tuple(jobs), quotas, Fifo(), (red(100, 90),), round_s=0)
    outcome = simulate(made)
    found = [((run.began - NOON).total_seconds(), run.gang.job, run.work_s) for run in outcome.runs]
    turns_s = (TURNS - NOON).total_seconds()
    assert found == [(0, "j1", 4500), (4510, "j2", 100), (turns_s, "j1", 5500)]
    never = replace(made, tenants=(red(0.1, 0.1),))
    assert simulate(never).unfinished == ("j1",), "no month has enough for a minute of it"


@pytest.mark.parametrize(("budget_s", "completes"), [(72, False), (130, True)])
def test_a_simulation_without_an_end_waits_for_no_month_that_brings_nothing(
    budget_s: float, completes: bool
) -> None:
    """Each month's restart takes 100 s of the budget."""
    long = SimulatedJob(gang("j1", queued_at=NOON), 400.0, Costs(restore_s=100, checkpoint_s=1))
    budget = red(budget_s / 3600, 0)
    made = Scenario(nodes(a1=1), (long,), (QuotaUse("red", "a100", 8, 0),), Fifo(), (budget,), round_s=0)
    outcome = simulate(made)
    assert outcome.unfinished == (() if completes else ("j1",))
    assert (len(outcome.runs) > 5) == completes
