"""The places for learners on a node, and when each is free: what a reservation is chosen by."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from gpu_scheduler.model import Need, Resize, Room, Running
from gpu_scheduler.rooms import plus

NOW, NEVER = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
"""When a place is free that is free already, or of which it is not known."""


IN_SIGHT = timedelta(days=1)
"""An end that is further away counts as not known. It is a time limit, which says how long a run may last: one of
90 days is no reason to wait for its nodes rather than for those of a run without one. Of what runs in the Philly trace
at any time, half ends within a day (49 % of the runs, 40 % of the GPUs)."""


def is_in_sight(end: datetime, now: datetime) -> bool:
    """Whether an end is near enough to be waited for."""
    return end - now <= IN_SIGHT


LEAVES_WITHIN = timedelta(minutes=10)
"""A run that was asked to stop longer ago may never leave: nothing waits for it as long as there is other room."""


def is_stuck(run: Running, now: datetime) -> bool:
    """Whether it counts as one that holds its slots, however long."""
    return run.stopping_since is not None and now - run.stopping_since >= LEAVES_WITHIN


def known_end(run: Running, now: datetime) -> datetime | None:
    """When it has certainly released its slots; None: not known, or not in sight.

    One that was ordered to stop leaves now, whatever its time limit: a job that ends before that limit does not end in
    time. One that is being resized comes back, and one that is stuck may never leave.
    """
    if isinstance(run.order, Resize) or is_stuck(run, now):
        return None
    end = now if run.stopping or run.order is not None else run.ends_by
    return end if end is not None and is_in_sight(end, now) else None


class Place(NamedTuple):
    """Of one learner on a node; sorted, the first to be free comes first.

    unknown: which part of it waits for runs whose end is not known. at: when all of it is free. missing: which part is
    lacking now. avoided: whether the node is. nth: which of its node's places it is.
    """

    unknown: float
    at: datetime
    missing: float
    avoided: bool
    node: str
    nth: int


def places(
    node: str, free: Room, need: Need, most: int, ends: Iterable[tuple[datetime, Need]], *, avoided: bool
) -> Iterator[Place]:
    """So many places of this node, the first to be free first. ends: when what of it is certainly released."""
    now = parts(free, need)
    steps = [(NOW, now)]
    for end, released in sorted(ends):
        free = plus(free, released)
        steps.append((end, parts(free, need)))
    last, step = steps[-1][1], 0
    for nth in range(1, most + 1):
        while step < len(steps) and steps[step][1] < nth:
            step += 1
        at = steps[step][0] if step < len(steps) else NEVER
        unknown, missing = (min(1.0, max(0.0, nth - fitting)) for fitting in (last, now))
        yield Place(unknown, at, missing, avoided, node, nth)


def soonest(domains: Iterable[Collection[Place]], learners: int) -> Sequence[Place]:
    """So many places of one of these domains: the fewest wait for runs whose end is not known, then all are free the
    soonest, then the least is lacking. At least one domain has so many."""
    choices = [heapq.nsmallest(learners, domain) for domain in domains if len(domain) >= learners]
    return min(
        choices,
        key=lambda chosen: (
            sum(place.unknown for place in chosen),
            max(place.at for place in chosen),
            sum(place.missing for place in chosen),
            chosen,
        ),
    )


def parts(room: Room, need: Need) -> float:
    """How many learners fit, with the fraction of the next one that does."""
    slots, cpus, memory = need
    fitting = room[0] / slots
    if cpus and room[1] < fitting * cpus:
        fitting = room[1] / cpus
    if memory and room[2] < fitting * memory:
        fitting = room[2] / memory
    return fitting
