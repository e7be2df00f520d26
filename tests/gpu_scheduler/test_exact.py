"""The exact solver that plans are measured against: right by looking at all ways, and never worse than a plan."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import against_exact, exact
from gpu_scheduler.cycle import plan
from gpu_scheduler.elastic.allocation import allocate, allocate_exactly
from gpu_scheduler.model import Resources, Snapshot
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
        list(exact.by_class(made, {made.waiting[n].job for n in way}).values())
        for way in ways
        if can_start(made, way)
    ]
    assert best.are_best
    assert list(best.slots.values()) == max(possible)
    assert best.slots == exact.by_class(made, best.jobs)
    assert can_start(made, numbers(made, best.jobs))
    decided = plan(made)
    mine = exact.by_class(made, {start.job for start in decided.starts})
    assert list(mine.values()) <= list(best.slots.values())
    assert all(room[0] >= 0 for room in free_after(made, decided).values())


def numbers(made: Snapshot, jobs: Collection[str]) -> tuple[int, ...]:
    return tuple(n for n, gang in enumerate(made.waiting) if gang.job in jobs)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_one_gang_alone_starts_in_a_plan_just_if_it_does_in_both_exact_answers(seed: int) -> None:
    """The limits are the same: placing the learners of one gang is never a matter of luck."""
    made = against_exact.starts(3, 6, seed)
    for gang in made.waiting:
        alone = replace(made, waiting=(gang,))
        started = {start.job for start in plan(alone).starts}
        assert started == exact.starts(alone, LIMIT_S).jobs == exact.in_order(alone, LIMIT_S).jobs


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_in_order_a_gang_waits_only_for_those_that_had_their_turn(seed: int) -> None:
    made = against_exact.starts(3, 6, seed)
    found = exact.in_order(made, LIMIT_S)
    assert found.are_best
    assert can_start(made, numbers(made, found.jobs))
    for n, gang in enumerate(made.waiting):
        assert gang.job in found.jobs or not can_start(made, (*numbers(made, found.jobs), n))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_where_placing_is_no_matter_of_luck_the_order_is_that_of_the_plan(seed: int) -> None:
    made = against_exact.starts(3, 12, seed)
    of_one = tuple(replace(gang, resources=Resources(1), priority=1) for gang in made.waiting)
    few = tuple(replace(node, allocatable=Resources(5)) for node in made.nodes[:1])
    made = replace(made, waiting=of_one, nodes=few, running=())
    assert {start.job for start in plan(made).starts} == exact.in_order(made, LIMIT_S).jobs


def test_figures_are_shares_of_the_best() -> None:
    division = against_exact.measure_division(10, 2, 1)
    assert 0 < division["quality_least"] <= division["quality_p50"] <= 1 + 1e-4
    starts = against_exact.measure_starts(3, 6, 2, 1)
    assert 0 < starts["highest_class_by_most"] <= 1
    assert starts["highest_class_by_most"] <= starts["highest_class_by_in_order"]
    assert starts["instances"] == starts["proved"] == 2
    assert starts["time_ratio"] > 1
