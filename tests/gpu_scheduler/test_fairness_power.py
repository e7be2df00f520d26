"""Fairness of another power than the platform's: what sizes are worth, and how a plan divides by it."""

from __future__ import annotations

import pytest

from gpu_scheduler.cycle import plan
from gpu_scheduler.elastic.utility import proportional
from gpu_scheduler.policies.fair_share import FairShare
from gpu_scheduler.policies.sizes import Resizes
from tests.gpu_scheduler.elastic_runs import elastic, resizes, run
from tests.gpu_scheduler.worlds import nodes, snapshot

SIZES = {1: 1, 2: 1, 4: 1}


def worth(power: float, **changes: float) -> list[float]:
    given = {"now": 1, "kept": 1.0, "weight": 1.0} | changes
    found = proportional(elastic("e1", most=4), SIZES, power=power, **given)  # type: ignore[arg-type]
    return [option.utility for option in found]


def test_below_zero_each_size_counts_by_its_speed_beside_the_slowest() -> None:
    assert worth(-1) == pytest.approx([-1, -1 / 2, -1 / 4])
    assert worth(-0.5) == pytest.approx([-1, -(2**-0.5), -1 / 2])
    assert worth(-1, weight=3) == pytest.approx([-3, -3 / 2, -3 / 4])


def test_a_change_costs_the_part_of_the_speed_that_it_loses() -> None:
    assert worth(-1, kept=0.5) == pytest.approx([-1, -1, -1 / 2])


def test_with_a_lower_power_what_is_held_anyway_counts_less() -> None:
    """A run with four learners at least, and one with one: in proportion both gain the same by twice the learners;
    below that, the one that is at its slowest gains more."""
    held = [run("r1", *["a1"] * 4, least=1, most=16), run("r2", *["a1"] * 4, least=4, most=16)]

    def divided(power: float) -> dict[str, int]:
        policy = FairShare(resizes=Resizes(power=power))
        return resizes(plan(snapshot(nodes(a1=12), [], held, policy=policy)))

    assert divided(0) == {"r1": 8}, "of equals the first"
    assert divided(-2) == {"r2": 8}


@pytest.mark.parametrize("power", [0.5, float("nan")])
def test_a_power_above_zero_is_refused(power: float) -> None:
    with pytest.raises(ValueError, match="power must be at most 0"):
        Resizes(power=power)
