"""What each size of an elastic gang is worth: the options among which slots are divided."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from gpu_scheduler.elastic.allocation import Option
from gpu_scheduler.elastic.performance import goodput
from gpu_scheduler.model import Gang, GrowthReason

EXPLORE = 2
"""A gang is tried with up to so many times the learners that it has run with: further the model only guesses."""


def sizes(least: int, most: int, per_node: int, *others: int) -> list[int]:
    """The sizes that are compared: powers of two on one node, then whole nodes, the ends of the range, and others.

    The former pack without gaps, and are few (Sia, Jayaram Subramanya et al., SOSP 2023).
    """
    found = {least, most, *others, *range(per_node, most + 1, per_node)}
    size = 1
    while size < per_node:
        found.add(size)
        size *= 2
    return sorted(each for each in found if least <= each <= most)


def believed(gang: Gang, learners: int) -> int:
    """The most learners for which something is known of the gang, which runs with so many now; that many if nothing is:
    then it grows only once it has been measured."""
    return min(most for _, most in bounds(gang, learners))


def bounds(gang: Gang, learners: int) -> Iterator[tuple[GrowthReason, int]]:
    """What bounds that, and how far it does; the first of equal ones is the reason."""
    profile = gang.elastic
    if profile is None or profile.step_times is None:
        yield GrowthReason.NOT_MEASURED, learners
        return
    yield GrowthReason.AT_MOST, gang.learners.max
    if profile.batch is not None:
        yield GrowthReason.BATCH, profile.batch.max
    yield GrowthReason.AT_MOST, EXPLORE * max(profile.largest, learners)
    if profile.most is not None:
        yield GrowthReason.FAILED_WITH_MORE, max(learners, profile.most)


def speed(gang: Gang, learners: int, nodes: int) -> float:
    """Its useful speed with so many learners on so many nodes, in any unit of its own.

    Never measured: in proportion to the learners.
    """
    if gang.elastic is None:
        return float(learners)
    known = goodput(gang.elastic, learners, nodes)
    return float(learners) if known is None else known


def proportional(
    gang: Gang, choices: Mapping[int, int], *, now: int, kept: float, weight: float, power: float = 0.0
) -> tuple[Option, ...]:
    """Options of fairness with this power p, at most 0, of the useful speed.

    p = 0 is proportional fairness: the logarithm of the speed, so that in proportion no gang gains less than others
    lose. Below, weight * -(speed / slowest)**p, as in Pollux (p = -1) and Sia (p = -0.5): the lower p, the more counts
    what brings a gang beyond its slowest size, and the less what comes after that. choices: on how many nodes each
    number of learners would be. now: the size that it has; kept: the part of its speed that a change to another one
    leaves it, for the time that it takes.
    """
    speeds = {learners: max(speed(gang, learners, nodes), 1e-12) for learners, nodes in choices.items()}
    slowest = min(speeds.values(), default=1.0)
    found = []
    for learners, value in speeds.items():
        value = max(value * (1.0 if learners == now else kept), 1e-12)
        worth = math.log(value) if power == 0 else -((value / slowest) ** power)
        found.append(Option(learners * gang.slots, weight * worth))
    return tuple(found)
