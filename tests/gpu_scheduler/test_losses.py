"""What an order costs at most: by it runs are chosen, and with the decision it is stored."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import timedelta

import pytest

from gpu_scheduler import record
from gpu_scheduler.cycle import plan
from gpu_scheduler.losses import Loss, expected, lost_work_s
from gpu_scheduler.model import Plan, Resize, Stop
from tests.gpu_scheduler.test_preemption import run, urgent
from tests.gpu_scheduler.worlds import NOON, nodes, snapshot

HOUR_AGO, MINUTE_AGO = NOON - timedelta(hours=1), NOON - timedelta(minutes=1)


def test_a_plan_says_what_each_of_its_stops_costs() -> None:
    """r1 lacks a measured restart; r2 has saved a minute ago, on four slots."""
    runs = [run("r1", "a1"), run("r2", "a2", last_checkpoint_at=MINUTE_AGO, restart_cost_s=5.0)]
    seen = snapshot(nodes(a1=4, a2=4), [urgent()], [replace(each, started_at=HOUR_AGO) for each in runs])
    decided = plan(seen)
    assert expected(decided, seen) == {"r2": Loss("a100", 240.0, 20.0)}
    stored = record.decisions(decided, seen)["losses"]
    assert stored == {"r2": {"slot_type": "a100", "unsaved": 240.0, "restart": 20.0}}


def test_a_restart_that_was_never_measured_is_unknown_and_a_resize_costs_as_much_as_a_stop() -> None:
    one = replace(run("r1", "a1"), started_at=HOUR_AGO)
    seen = snapshot(nodes(a1=4), [], [one])
    for orders in (Plan(stops=(Stop("r1", "moved"),)), Plan(resizes=(Resize("r1", 2),))):
        assert expected(orders, seen) == {"r1": Loss("a100", 4 * 3600.0, None)}


@pytest.mark.parametrize("restart_s", [None, 0.0, 7.5])
@pytest.mark.parametrize(
    "saved_at", [None, MINUTE_AGO, NOON + timedelta(seconds=9), NOON - timedelta(days=2)]
)
def test_runs_are_compared_by_what_is_stored(saved_at: object, restart_s: float | None) -> None:
    one = replace(run("r1", "a1", last_checkpoint_at=saved_at, restart_cost_s=restart_s), started_at=HOUR_AGO)
    loss = expected(Plan(stops=(Stop("r1", "moved"),)), snapshot(nodes(a1=4), [], [one]))["r1"]
    assert lost_work_s(one, NOON) == loss.unsaved + (loss.restart or 0)
    assert 0 <= loss.unsaved <= 4 * 3600, (
        "what an earlier attempt saved, or a clock ahead of ours, is no matter"
    )
    assert asdict(loss)["restart"] == (None if restart_s is None else 4 * restart_s)
