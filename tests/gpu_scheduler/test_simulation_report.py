"""The figures of an outcome, from small outcomes that can be computed by hand; and fairness under a flood."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from bench import flood
from gpu_scheduler.policies.fair_share import FairShare
from gpu_scheduler.policies.fifo import Fifo
from gpu_scheduler.simulation import Costs, NodeFailure, simulate
from gpu_scheduler.simulation.report import (
    completion_times,
    finish_time_ratios,
    jain,
    lost_slot_s,
    percentile,
    report,
    shares_received,
    violations_s,
)
from tests.gpu_scheduler.preempting import Preempting
from tests.gpu_scheduler.test_simulation import job, scenario
from tests.gpu_scheduler.worlds import NOON, nodes


def test_jain_is_1_for_equals_and_1_by_n_for_a_single_owner() -> None:
    assert jain([3, 3, 3]) == pytest.approx(1)
    assert jain([5, 0, 0, 0]) == pytest.approx(0.25)
    assert math.isnan(jain([]))


def test_a_percentile_is_one_of_the_values() -> None:
    assert [percentile([4, 1, 3, 2], share) for share in (0, 0.5, 0.51, 1)] == [1, 2, 3, 4]
    assert math.isnan(percentile([], 0.5))


def test_times_waits_and_utilization() -> None:
    """The cluster is full until 300 s, half full until 400 s; the second job waits 200 s, the third 280 s."""
    jobs = [job("a1", 0, 200, 1, 8), job("b2", 0, 100, 1, 8), job("c3", 20, 100, 1, 4, tenant="green")]
    made = scenario(nodes(a1=8), jobs, Fifo())
    outcome = simulate(made)
    assert completion_times(outcome, made) == {"a1": 200, "b2": 300, "c3": 380}
    found = report(outcome, made, {"red": 4, "green": 4})
    assert (found.jobs, found.unfinished, found.stops) == (3, 0, 0)
    assert found.average_s == pytest.approx(880 / 3)
    assert (found.median_s, found.p99_s, found.makespan_s) == (300, 380, 400)
    assert found.average_wait_s == pytest.approx(480 / 3)
    assert found.utilization == pytest.approx((8 * 300 + 4 * 100) / (8 * 400))
    assert found.utilization_while_waiting == pytest.approx(1)


def test_a_tenant_below_its_guarantee_beyond_the_grace_period_is_a_violation() -> None:
    """green waits from 100 s to 1000 s for its 4 slots, while red has 8; the first 300 s are grace. It then gets its
    slots for 100 s of the 1000 s in which it asks for them."""
    jobs = [
        job("r1", 0, 1000, 1, 8),
        job("g2", 100, 50, 1, 4, tenant="green"),
        job("r3", 99, 50, 1, 4),
        job("g4", 100, 50, 1, 8, tenant="green"),
    ]
    made = scenario(nodes(a1=8), jobs, Fifo())
    outcome = simulate(made)
    nominal = {"red": 4.0, "green": 4.0}
    assert violations_s(outcome, made, nominal) == {"green": 600}
    shares = shares_received(outcome, made, nominal)
    assert shares["red"] == 1
    assert shares["green"] == pytest.approx(0.1)


def test_a_wait_for_the_next_round_is_none() -> None:
    made = scenario(nodes(a1=8), [job("a1", 30, 100)], Fifo(), round_s=60.0)
    outcome = simulate(made)
    assert shares_received(outcome, made, {"red": 8}) == {"red": 1}
    assert violations_s(outcome, made, {"red": 8}) == {}


def test_lost_slots_are_saves_restores_and_lost_work_but_no_first_starts() -> None:
    costs = Costs(start_s=3, restore_s=7, checkpoint_s=5)
    jobs = [
        job("low1", 0, 100, 1, 8, costs=costs, priority=0),
        job("top2", 40, 20, 1, 8, costs=costs, priority=3),
    ]
    made = scenario(nodes(a1=8), jobs, Preempting())
    assert lost_slot_s(simulate(made), made) == pytest.approx(8 * (5 + 7))
    failures = (NodeFailure(NOON + timedelta(seconds=23), "a1", 0),)
    lost = scenario(nodes(a1=8), [job("a1", 0, 50, 1, 2, costs=costs)], Fifo(), failures=failures)
    assert lost_slot_s(simulate(lost), lost) == pytest.approx(2 * (20 + 7))


def test_ratios_compare_jobs_that_ended_in_both() -> None:
    assert finish_time_ratios({"a1": 30, "b2": 5}, {"a1": 20, "c3": 1}) == {"a1": 1.5}


def test_a_flood_of_small_jobs_delays_no_other_tenant_by_half() -> None:
    """One tenant queues more than the cluster can do at once, three others work as usual; bench.flood is the long form
    with the figures. First come, first served fails the same test."""
    made = flood.scenario(hours=3, policy=FairShare())
    fair = flood.figures(made)
    assert fair["worst_regular_tenant_ratio"] <= 1.5
    assert fair["jain"] >= 0.95
    assert flood.figures(replace(made, policy=Fifo()))["worst_regular_tenant_ratio"] > 1.5
