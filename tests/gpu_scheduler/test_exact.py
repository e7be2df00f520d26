"""The exact solver that plans are measured against: right by looking at all ways, and never worse than a plan."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import against_exact, exact
from gpu_scheduler.cycle import plan
from gpu_scheduler.elastic.allocation import allocate, allocate_exactly
from gpu_scheduler.model import Snapshot
from tests.gpu_scheduler.worlds import free_after

LIMIT_S = 30.0


def test_a_division_is_as_good_as_the_dynamic_program_says() -> None:
    made = against_exact.division(12, 3)
    without_rooms = exact.division(made.candidates, made.slots, {}, LIMIT_S)
    best = allocate_exactly(made.candidates, made.slots)
    assert without_rooms.is_best
    assert against_exact.gain(made, without_rooms.values) == pytest.approx(
        against_exact.gain(made, best), rel=1e-5
    )
    bounded = exact.division(made.candidates, made.slots, made.rooms, LIMIT_S)
    ours = allocate(made.candidates, made.slots, made.rooms)
    assert (
        0
        < against_exact.gain(made, ours)
        <= against_exact.gain(made, bounded.values) + 1e-4
        <= against_exact.gain(made, without_rooms.values) + 2e-4
    )


def test_rooms_of_groups_bind() -> None:
    made = against_exact.division(12, 3)
    none = exact.division(made.candidates, made.slots, {f"tenant-{n}": 0 for n in range(10)}, LIMIT_S)
    assert against_exact.gain(made, none.values) == pytest.approx(0)


def can_start(made: Snapshot, chosen: tuple[int, ...]) -> bool:
    """Whether these gangs, by number, fit on the nodes together, by trying all ways; and their tenants' quotas."""
    used: dict[str, int] = {}
    for n in chosen:
        gang = made.waiting[n]
        used[gang.tenant] = used.get(gang.tenant, 0) + gang.asked
    limits = {quota.tenant: quota.limit - quota.used for quota in made.quotas}
    if any(slots > limits[tenant] for tenant, slots in used.items()):
        return False
    learners = sorted(
        (made.waiting[n].slots for n in chosen for _ in range(made.waiting[n].learners.min)), reverse=True
    )

    def fit(left: tuple[int, ...], need: list[int]) -> bool:
        if not need:
            return True
        return any(
            fit((*left[:at], has - need[0], *left[at + 1 :]), need[1:])
            for at, has in enumerate(left)
            if has >= need[0] and has not in left[:at]
        )

    return fit(tuple(exact.free_slots(made).values()), learners)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_starts_are_the_best_of_all_ways_and_no_plan_beats_them(seed: int) -> None:
    made = against_exact.starts(3, 6, seed)
    best = exact.starts(made, LIMIT_S)
    ways = itertools.chain.from_iterable(itertools.combinations(range(6), size) for size in range(7))
    possible = [
        [
            exact.by_class(made, {made.waiting[n].job for n in way})[each]
            for each in sorted(best.slots, reverse=True)
        ]
        for way in ways
        if can_start(made, way)
    ]
    assert best.are_best
    assert list(best.slots.values()) == max(possible)
    decided = plan(made)
    mine = exact.by_class(made, {start.job for start in decided.starts})
    assert [mine[each] for each in best.slots] <= list(best.slots.values())
    assert all(room[0] >= 0 for room in free_after(made, decided).values())


def test_figures_are_shares_of_the_best() -> None:
    division = against_exact.measure_division(10, 2, 1)
    assert 0 < division["quality_least"] <= division["quality_p50"] <= 1 + 1e-4
    starts = against_exact.measure_starts(3, 6, 2, 1)
    assert 0 < starts["highest_class_share"] <= 1
    assert starts["instances"] == starts["proved"] == 2
    assert starts["time_ratio"] > 1
