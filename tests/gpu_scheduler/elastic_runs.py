"""Elastic gangs, waiting and running, for the tests of plans."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from gpu_scheduler.model import Gang, Plan, Profile, Range, Running, Snapshot, StepTimes, Stop
from tests.gpu_scheduler.worlds import NOON, gang, nodes, running, snapshot

PERFECT = Profile(step_times=StepTimes(0.0, 1.0), largest=64)
"""Twice the learners train twice as fast."""
FLAT = Profile(step_times=StepTimes(1.0, 0.0), largest=64)
"""More learners train no faster."""


def run(
    job: str, *on: str, least: int = 1, most: int = 8, profile: Profile = PERFECT, **changes: Any
) -> Running:
    """A run with a learner on each of these nodes, which started an hour ago."""
    made = running(job, *on, **changes)
    return replace(made, gang=replace(made.gang, learners=Range(least, most), elastic=profile))


def elastic(job: str, profile: Profile = PERFECT, *, least: int = 1, most: int = 8, **changes: Any) -> Gang:
    return replace(gang(job, least, **changes), learners=Range(least, most), elastic=profile)


def resizes(made: Plan) -> dict[str, int]:
    return {each.job: each.learners for each in made.resizes}


@st.composite
def elastic_worlds(draw: st.DrawFn) -> Snapshot:
    on = tuple(draw(st.lists(st.integers(1, 10), min_size=1, max_size=3)))
    machines = nodes(**{f"a{n}": size for n, size in enumerate(on)})
    free = {node.name: node.slots for node in machines}
    profiles = st.sampled_from([PERFECT, PERFECT, FLAT, Profile(), replace(PERFECT, largest=2)])
    busy = []
    for number in range(draw(st.integers(0, 5))):
        slots = draw(st.integers(1, 2))
        places = [name for name, left in free.items() for _ in range(left // slots)]
        taken = places[: draw(st.integers(0, 8))]
        if not taken:
            continue
        for name in taken:
            free[name] -= slots
        made = running(
            f"r{number}",
            *taken,
            slots=slots,
            tenant=draw(st.sampled_from(["red", "green"])),
            priority=draw(st.integers(0, 3)),
            user=draw(st.sampled_from(["alice", "carol"])),
        )
        least = draw(st.integers(1, len(taken)))
        learners = Range(least, len(taken) + draw(st.integers(0, 6)))
        known = draw(st.one_of(st.none(), profiles, profiles))
        made = replace(
            made,
            gang=replace(made.gang, learners=learners if known else Range.fixed(len(taken)), elastic=known),
            started_at=NOON - timedelta(seconds=draw(st.sampled_from([5, 30, 90, 4000, 9000]))),
            order=draw(st.sampled_from([None] * 6 + [Stop(f"r{number}", "preempted")])),
        )
        busy.append(made)
    waiting = []
    for number in range(draw(st.integers(0, 3))):
        each = gang(
            f"j{number}",
            draw(st.integers(1, 5)),
            draw(st.integers(1, 3)),
            tenant=draw(st.sampled_from(["red", "green"])),
            priority=draw(st.integers(0, 3)),
            user=draw(st.sampled_from(["alice", "carol"])),
        )
        known = draw(st.none() | profiles)
        if known is not None:
            learners = Range(each.learners.min, each.learners.min + draw(st.integers(0, 5)))
            each = replace(each, learners=learners, elastic=known)
        waiting.append(each)
    limits = {"red": draw(st.sampled_from([0, 8, 12, 100])), "green": draw(st.sampled_from([4, 100, 100]))}
    made = snapshot(machines, waiting, busy, limits=limits)
    cohort, user_limit = draw(st.sampled_from(["", "lab"])), draw(st.sampled_from([None, None, 6, 12]))
    quotas = tuple(replace(quota, cohort=cohort, user_limit=user_limit) for quota in made.quotas)
    return replace(made, quotas=quotas)
