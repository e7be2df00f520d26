"""Divide slots among elastic gangs: each has options, a size with a utility; one option for each gang is taken.

``allocate`` climbs the upper concave hull of each gang's options, the steepest edge of all first. ``allocate_exactly``
is the dynamic program over all slots, for small clusters, for tests, and for a benchmark of published work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Option:
    """A size, in slots over all learners, and its utility."""

    slots: int
    utility: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """A gang and its options by size, the smallest first: that one it has whatever the others get.

    group: whose limit its further slots count in.
    """

    job: str
    options: tuple[Option, ...]
    group: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A size, in slots over all learners, that a gang was not given: for want of slots, or of its group's room."""

    slots: int
    of_group: bool


Allocation = Mapping[str, Option]


def allocate(
    candidates: Iterable[Candidate],
    slots: int,
    rooms: Mapping[str, int] | None = None,
    refused: dict[str, Refusal] | None = None,
) -> Allocation:
    """An option for each candidate, of at most so many slots in all; rooms: slots that a group can have in addition to
    the smallest options of its candidates, missing: no limit. refused: filled, by job, with the first step that was
    not given; a job that is not in it after that has no option of more utility than its own.

    The sum of utilities is at most one edge of one hull below the best possible where only slots are limited. If the
    smallest options do not fit, these are the answer. Deterministic; equal slopes go by job. O(n log n) in options.
    """
    ordered = sorted(candidates, key=lambda each: each.job)
    taken = {each.job: each.options[0] for each in ordered}
    free = slots - sum(option.slots for option in taken.values())
    left = dict(rooms or {})
    edges = sorted(
        (-(end.utility - start.utility) / (end.slots - start.slots), number, level, end)
        for number, each in enumerate(ordered)
        for level, (start, end) in enumerate(pairwise(hull(each.options)))
    )
    blocked: set[int] = set()
    for _, number, _, end in edges:
        candidate = ordered[number]
        if number in blocked:
            continue
        more = end.slots - taken[candidate.job].slots
        if more > free or more > left.get(candidate.group, more):
            blocked.add(number)
            if refused is not None:
                refused[candidate.job] = Refusal(end.slots, of_group=more <= free)
            continue
        free = _take(candidate, end, taken, free, left)
    for number in sorted(blocked):  # what is left, to those whose next edge was too long
        candidate = ordered[number]
        room = min(free, left.get(candidate.group, free)) + taken[candidate.job].slots
        best = max(
            (option for option in candidate.options if option.slots <= room),
            key=lambda option: (option.utility, -option.slots),
            default=taken[candidate.job],
        )
        if best.utility > taken[candidate.job].utility:
            free = _take(candidate, best, taken, free, left)
    return taken


def allocate_exactly(candidates: Iterable[Candidate], slots: int) -> Allocation:
    """The options with the greatest sum of utilities that fit; the smallest ones if even these do not.

    O(n * slots * options).
    """
    ordered = sorted(candidates, key=lambda each: each.job)
    best = [0.0] * (slots + 1)
    chosen: list[list[int]] = []
    for each in ordered:
        sums, choice = [-math.inf] * (slots + 1), [0] * (slots + 1)
        for number, option in enumerate(each.options):
            for have in range(option.slots, slots + 1):
                value = best[have - option.slots] + option.utility
                if value > sums[have]:
                    sums[have], choice[have] = value, number
        best = sums
        chosen.append(choice)
    have = max(range(slots + 1), key=lambda each: (best[each], -each))
    if best[have] == -math.inf:
        return {each.job: each.options[0] for each in ordered}
    taken = {}
    for each, choice in zip(reversed(ordered), reversed(chosen), strict=True):
        option = taken[each.job] = each.options[choice[have]]
        have -= option.slots
    return taken


def hull(options: Sequence[Option]) -> list[Option]:
    """The options on the upper concave hull, from the smallest to the one with the greatest utility."""
    found: list[Option] = []
    for option in options:
        if found and option.utility <= found[-1].utility:
            continue
        while len(found) > 1 and _slope(found[-2], found[-1]) <= _slope(found[-1], option):
            found.pop()
        found.append(option)
    return found


def _slope(start: Option, end: Option) -> float:
    return (end.utility - start.utility) / (end.slots - start.slots)


def _take(
    candidate: Candidate, option: Option, taken: dict[str, Option], free: int, left: dict[str, int]
) -> int:
    """Give the candidate this option in place of the one it has; what is free after that."""
    more = option.slots - taken[candidate.job].slots
    taken[candidate.job] = option
    if candidate.group in left:
        left[candidate.group] -= more
    return free - more
