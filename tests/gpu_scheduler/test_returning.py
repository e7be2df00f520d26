"""Jobs that come while a run halts in order to grow: neither they nor the run wait for longer than needed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Gang, Priority, QuotaUse, Resize, Snapshot
from gpu_scheduler.policies import returning
from gpu_scheduler.policies.fair_share import FairShare
from gpu_scheduler.simulation import Costs, Rate, Scenario, SimulatedJob, simulate
from tests.gpu_scheduler.elastic_runs import PERFECT, elastic, elastic_worlds, run
from tests.gpu_scheduler.test_shrinking import on, sizes
from tests.gpu_scheduler.worlds import NOON, gang, next_snapshot, nodes, running, snapshot

LIMITS = {"red": 100, "green": 100}


def growing(*newcomers: Gang, limits: dict[str, int] = LIMITS, **changes: Any) -> Snapshot:
    """A run of 4 learners that halts in order to have 8, and the jobs that came since then."""
    made = run("e1", *on("a1", 4), **changes)
    held = replace(made, order=Resize("e1", 8), stopping=True)
    return snapshot(nodes(a1=8), newcomers, [held], limits=limits)


def back(made: Snapshot) -> dict[str, int]:
    """What starts once the run has released its slots."""
    decided = plan(made)
    return sizes(decided) | sizes(plan(next_snapshot(made, decided, after_s=5, ended=["e1"])))


def test_what_fits_beside_the_run_starts_at_once() -> None:
    assert sizes(plan(growing(gang("j1", 4, tenant="green")))) == {"j1": 4}
    assert back(growing(gang("j1", 4, tenant="green"))) == {"j1": 4, "e1": 4}


def test_what_needs_a_part_of_what_the_run_had_starts_together_with_it() -> None:
    """Else it would wait until the run has started, settled, and halted again."""
    assert back(growing(gang("j1", 6, tenant="green"))) == {"j1": 6, "e1": 2}
    assert back(growing(gang("j1", 6))) == {"j1": 6, "e1": 2}  # of the same tenant


def test_what_comes_between_the_halt_and_the_start_starts_with_the_run() -> None:
    made = growing()
    halted = next_snapshot(made, plan(made), after_s=5, ended=["e1"])
    assert sizes(plan(halted)) == {"e1": 8}
    late = [gang("j1", 2), gang("j2", 1), gang("j3", 9)]
    assert sizes(plan(replace(halted, waiting=(*halted.waiting, *late)))) == {"j1": 2, "j2": 1, "e1": 5}


def test_the_run_has_its_fewest_learners_whatever_comes() -> None:
    few = [gang(f"j{n}", 1, tenant="green") for n in range(20)]
    assert back(growing(*few))["e1"] == 1
    assert len(back(growing(*few))) == 8
    assert back(growing(*few, least=3))["e1"] == 3


def test_nothing_is_left_to_what_cannot_start_beside_it() -> None:
    assert back(growing(gang("j1", 8, tenant="green"))) == {"e1": 8}  # it would need the fewest, too
    assert back(growing(gang("j1", 6, tenant="green"), limits={"red": 100, "green": 5})) == {"e1": 8}
    assert back(growing(gang("j1", 6), limits={"red": 6})) == {"e1": 6}


def test_nothing_is_left_to_what_would_borrow() -> None:
    made = growing(gang("j1", 6, tenant="green"), limits={"red": 8, "green": 2})
    cohort = tuple(replace(quota, cohort="lab") for quota in made.quotas)
    assert back(replace(made, quotas=cohort))["e1"] == 8
    made = growing(gang("j1", 6, tenant="green"), limits={"red": 2, "green": 6})
    cohort = tuple(replace(quota, cohort="lab") for quota in made.quotas)
    assert back(replace(made, quotas=cohort)) == {"j1": 6, "e1": 2}  # it takes back what it lends


def test_nothing_is_left_to_what_would_borrow_beside_those_before_it() -> None:
    held = replace(run("e1", *on("a1", 4)), order=Resize("e1", 8), stopping=True)
    made = snapshot(nodes(a1=10), [], [held], limits={"red": 8})
    halted = next_snapshot(made, plan(made), after_s=5, ended=["e1"])
    late = [gang("j1", 3, tenant="green"), gang("j2", 3, tenant="green")]
    limits = {"red": 8, "green": 4, "blue": 4}
    lent = tuple(QuotaUse(tenant, "a100", limit, 0, cohort="lab") for tenant, limit in limits.items())
    found = plan(replace(halted, waiting=(*halted.waiting, *late), quotas=lent))
    assert sizes(found) == {"j1": 3, "e1": 7}


def test_where_many_come_back_at_once_none_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trial places all of them."""
    monkeypatch.setattr(returning, "LOOKED_AT", 0)
    first, second = run("e1", *on("a1", 4)), run("e2", *on("a1", 4), tenant="green")
    held = [replace(each, order=Resize(each.gang.job, 8), stopping=True) for each in (first, second)]
    made = snapshot(nodes(a1=16), [gang("j1", 10, tenant="green")], held, limits=LIMITS)
    assert sizes(plan(next_snapshot(made, plan(made), after_s=5, ended=["e1", "e2"]))) == {"e1": 8, "e2": 8}


def test_an_urgent_job_starts_whatever_the_run_has_left() -> None:
    urgent = gang("j1", 8, tenant="green", priority=Priority.URGENT)
    assert back(growing(urgent)) == {"j1": 8}


def test_two_runs_that_come_back_leave_each_other_their_place() -> None:
    first, second = run("e1", *on("a1", 4)), run("e2", *on("a1", 4), tenant="green")
    held = [
        replace(first, order=Resize("e1", 8), stopping=True),
        replace(second, order=Resize("e2", 8), stopping=True),
    ]
    made = snapshot(nodes(a1=16), [gang("j1", 10, tenant="green")], held, limits=LIMITS)
    after = next_snapshot(made, plan(made), after_s=5, ended=["e1", "e2"])
    found = sizes(plan(after))
    assert found.keys() == {"j1", "e1", "e2"}
    assert sum(found.values()) == 16


@settings(max_examples=60, deadline=None)
@given(elastic_worlds(), st.integers(1, 6), st.integers(0, 3))
def test_whatever_runs_who_is_back_has_no_less_than_before_or_others_have_started(
    made: Snapshot, learners: int, priority: int
) -> None:
    decided = plan(made)
    if not decided.resizes:
        return
    ended = [each.job for each in decided.resizes]
    after = next_snapshot(made, decided, after_s=1, ended=ended)
    alone = plan(after)
    newcomer = gang("new", learners, tenant="green", priority=min(priority, Priority.HIGH))
    both = plan(replace(after, waiting=(*after.waiting, newcomer)))
    least = {each.job: each.gang.learners.min for each in made.running}
    for job, size in sizes(alone).items():
        if job in ended:  # nothing takes its place
            assert sizes(both)[job] >= min(size, least[job])
            if "new" not in sizes(both):
                assert sizes(both)[job] == size


@pytest.mark.parametrize("halt_s", [1, 5])
def test_in_time_a_newcomer_waits_for_one_restart_at_most(halt_s: int) -> None:
    costs = Costs(start_s=5, restore_s=5, checkpoint_s=halt_s)

    def job(made: Any, after_s: float, work_s: float) -> SimulatedJob:
        return SimulatedJob(replace(made, queued_at=NOON + timedelta(seconds=after_s)), work_s, costs)

    def simulated(came_s: float) -> Any:
        jobs = [job(gang("f1", 4), 0, 100), job(elastic("e1"), 1, 4 * 3600)]
        jobs.append(job(gang("j1", 6), came_s, 600))
        return simulate(
            Scenario(
                nodes(a1=8),
                tuple(jobs),
                (QuotaUse("red", "a100", 100, 0),),
                FairShare(),
                rate=lambda made, at, done: Rate(float(len(at)) if made.elastic else 1.0),
                known=lambda made, at, done: PERFECT,
                round_s=0,
            )
        )

    halted = next(each.ended for each in simulated(9000).runs if each.gang.job == "e1")
    came_s = (halted - NOON).total_seconds() - halt_s / 2
    outcome = simulated(came_s)
    waited = outcome.first_started["j1"] - (NOON + timedelta(seconds=came_s))
    assert waited.total_seconds() <= halt_s
    began = [each for each in outcome.runs if each.gang.job == "e1"]
    assert (began[0].ended, len(began[0].nodes)) == (halted, 4)
    assert len(began[1].nodes) == 2
    assert began[1].began == halted


def test_a_running_job_that_is_not_elastic_is_no_matter() -> None:
    made = snapshot(nodes(a1=8), [gang("j1", 4)], [running("r1", *on("a1", 4))], limits=LIMITS)
    assert sizes(plan(made)) == {"j1": 4}
