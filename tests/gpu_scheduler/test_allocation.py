"""Slots divided among elastic gangs, against all ways to do it."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.elastic.allocation import Candidate, Option, allocate, allocate_exactly, hull


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    found = []
    for number in range(draw(st.integers(0, 5))):
        sizes = sorted(draw(st.sets(st.integers(1, 9), min_size=1, max_size=4)))
        options = tuple(Option(size, draw(st.integers(-20, 20)) / 4) for size in sizes)
        found.append(Candidate(f"j{number}", options, draw(st.sampled_from(("red", "green")))))
    return found


def best_sum(given_: list[Candidate], slots: int) -> float:
    """By looking at all ways; -inf if none fits."""
    ways = itertools.product(*(each.options for each in given_))
    fitting = [way for way in ways if sum(option.slots for option in way) <= slots]
    return max((sum(option.utility for option in way) for way in fitting), default=-math.inf)


def longest_edge(given_: list[Candidate]) -> float:
    return max(
        (
            end.utility - start.utility
            for each in given_
            for start, end in itertools.pairwise(hull(each.options))
        ),
        default=0.0,
    )


@given(candidates(), st.integers(0, 30))
def test_the_exact_division_is_the_best_of_all(made: list[Candidate], slots: int) -> None:
    taken = allocate_exactly(made, slots)
    best = best_sum(made, slots)
    if best == -math.inf:
        assert taken == {each.job: each.options[0] for each in made}
        return
    assert sum(option.slots for option in taken.values()) <= slots
    assert sum(option.utility for option in taken.values()) == pytest.approx(best)


@given(candidates(), st.integers(0, 30))
def test_the_quick_division_is_at_most_one_edge_worse(made: list[Candidate], slots: int) -> None:
    taken = allocate(made, slots)
    smallest = {each.job: each.options[0] for each in made}
    if sum(option.slots for option in smallest.values()) > slots:
        assert taken == smallest
        return
    assert sum(option.slots for option in taken.values()) <= slots
    for each in made:
        assert taken[each.job] in each.options
        assert taken[each.job].utility >= each.options[0].utility, "no gang loses by getting more"
    # The best that keeps for each at least its smallest option's utility is on the hulls' side of this bound.
    assert (
        sum(option.utility for option in taken.values()) >= best_sum(made, slots) - longest_edge(made) - 1e-9
    )
    assert allocate(list(reversed(made)), slots) == taken


@given(candidates(), st.integers(0, 30), st.integers(0, 9))
def test_a_group_gets_no_more_than_its_room(made: list[Candidate], slots: int, room: int) -> None:
    taken = allocate(made, slots, {"red": room})
    more = sum(taken[each.job].slots - each.options[0].slots for each in made if each.group == "red")
    assert more <= room


@given(candidates(), st.integers(0, 30))
def test_more_slots_never_help_less_by_the_exact_division(made: list[Candidate], slots: int) -> None:
    def value(count: int) -> float:
        return sum(option.utility for option in allocate_exactly(made, count).values())

    if best_sum(made, slots) > -math.inf:
        assert value(slots + 1) >= value(slots) - 1e-9


def test_the_steepest_edges_come_first() -> None:
    steep = Candidate("a", (Option(1, 0), Option(2, 10), Option(4, 12)))
    flat = Candidate("b", (Option(1, 0), Option(2, 3), Option(4, 8)))
    taken = allocate([steep, flat], 6)
    assert {job: option.slots for job, option in taken.items()} == {"a": 2, "b": 4}
