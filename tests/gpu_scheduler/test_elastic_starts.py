"""With how many learners an elastic gang starts, and what a resize changes in the world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler import world
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Gang, Level, Plan, QuotaUse, Range, Resize, Snapshot, Stop, Topology
from tests.gpu_scheduler.test_plan_properties import EVERYDAY
from tests.gpu_scheduler.worlds import (
    gang,
    nodes,
    overcommitted,
    running,
    snapshot,
    usage_after,
    users_after,
    worlds,
)


def elastic(job: str, least: int, most: int, target: int | None = None, **changes: Any) -> Gang:
    return replace(gang(job, **changes), learners=Range(least, most), target=target)


def sizes(made: Plan) -> dict[str, int]:
    return {start.job: len(start.placement.nodes) for start in made.starts}


@pytest.mark.parametrize(("target", "size"), [(None, 2), (4, 4), (7, 6), (1, 2), (40, 6)])
def test_a_gang_starts_with_its_target_within_its_range(target: int | None, size: int) -> None:
    assert sizes(plan(snapshot(nodes(a1=8), [elastic("j1", 2, 6, target)]))) == {"j1": size}


def test_fewer_learners_start_where_the_target_does_not_fit() -> None:
    assert sizes(plan(snapshot(nodes(a1=3, a2=2), [elastic("j1", 1, 8, 8)]))) == {"j1": 5}
    busy = snapshot(nodes(a1=3), [elastic("j1", 1, 8, 8)], [running("r1", "a1", "a1")])
    assert sizes(plan(busy)) == {"j1": 1}
    assert sizes(plan(snapshot(nodes(a1=3), [elastic("j1", 4, 8, 8)]))) == {}, "all of its fewest, or none"


@pytest.mark.parametrize(
    "limit",
    [{"limit": 5}, {"gang_limit": 5}, {"user_limit": 5}, {"limit": 4, "cohort": "c", "borrowing_limit": 1}],
    ids=str,
)
def test_no_limit_is_exceeded_by_a_target(limit: dict[str, Any]) -> None:
    values: dict[str, Any] = {"limit": 100} | limit
    quotas = [QuotaUse("red", "a100", used=0, **values)]
    if "cohort" in limit:
        quotas.append(QuotaUse("green", "a100", 4, 0, cohort="c"))
    made = replace(snapshot(nodes(a1=9), [elastic("j1", 1, 9, 9, user="u")]), quotas=tuple(quotas))
    assert sizes(plan(made)) == {"j1": 5}


def test_a_target_stays_inside_the_domain_that_the_gang_requires() -> None:
    close = elastic("j1", 1, 8, 8, topology=Topology(Level.NODE, True))
    assert sizes(plan(snapshot(nodes(a1=3, a2=5), [close]))) == {"j1": 5}


def test_a_resized_run_waits_with_its_range_and_the_size_of_the_order_as_target() -> None:
    run = replace(running("r1", "a1", "a1"), gang=elastic("r1", 1, 4))
    before = snapshot(nodes(a1=4), [], [run])
    ordered = world.apply(before, Plan(resizes=(Resize("r1", 4),)))
    (back,) = world.apply(ordered, ended=["r1"]).waiting
    assert (back.learners, back.target) == (Range(1, 4), 4)
    assert sizes(plan(world.apply(ordered, ended=["r1"]))) == {"r1": 4}
    stopped = world.apply(before, Plan(stops=(Stop("r1", "preempted"),)))
    (back,) = world.apply(stopped, ended=["r1"]).waiting
    assert (back.learners, back.target) == (Range(1, 4), None)


@EVERYDAY
@given(worlds(), st.data())
def test_targets_break_no_node_and_no_limit(made: Snapshot, data: st.DataObject) -> None:
    grown = tuple(
        replace(
            each,
            learners=Range(each.learners.min, each.learners.min + data.draw(st.integers(0, 4))),
            target=data.draw(st.none() | st.integers(1, 8)),
        )
        for each in made.waiting
    )
    made = replace(made, waiting=grown)
    decided = plan(made)
    assert decided == plan(made)
    assert not overcommitted(made, decided)
    gangs = {each.job: each for each in made.waiting}
    for job, size in sizes(decided).items():
        least = gangs[job].learners.min
        assert least <= size <= min(gangs[job].learners.max, max(least, gangs[job].target or 0))
    assert {wait.job for wait in decided.waits} == gangs.keys() - sizes(decided).keys()
    held = {run.job for run in made.running}
    after = world.apply(made, decided)
    quotas = {(quota.tenant, quota.slot_type): quota for quota in made.quotas}
    used, _ = usage_after(made, decided)
    by_user, _ = users_after(made, decided)
    for run in after.running:
        if run.job not in held:
            quota = quotas[run.tenant, run.slot_type]
            assert used[run.tenant, run.slot_type] <= quota.limit
            assert quota.gang_limit is None or len(run.nodes) * run.slots <= quota.gang_limit
            assert (
                quota.user_limit is None
                or by_user[run.tenant, run.gang.user, run.slot_type] <= quota.user_limit
            )
