"""How long an opportunistic job that others made leave stays away: otherwise it could save and start all day.

It comes back at once after one stop, and waits after further ones that come soon after each other. What it does not
take meanwhile is there for other opportunistic jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpu_scheduler.backoff import doubling_s
from gpu_scheduler.clearing import YIELDED
from gpu_scheduler.model import Explanation, Gang, Running, Snapshot, Stop, WaitReason

Yielded = Mapping[str, tuple[datetime, ...]]
"""Snapshot.yielded: by job, when it left, the oldest first."""
WINDOW = timedelta(hours=1)
"""Stops that are this close together count together."""
FREE, FIRST_S, MOST_S = 1, 60.0, 1800.0
COUNTS_FOR = WINDOW + timedelta(seconds=MOST_S)
"""A stop that is older than this changes nothing."""
MOST_STOPS = 7
"""More of one job never fit into a window: its rests between eight are 0 + 1 + 2 + 4 + 8 + 16 + 30 minutes at least."""


@dataclass(frozen=True, slots=True)
class Rest:
    """until: when it ends. stops: how often the job had to leave within a window."""

    until: datetime
    stops: int


def rest_of(left_at: Sequence[datetime]) -> Rest:
    """After a job left at these times; of none of them there is no rest, so there is at least one."""
    last = max(left_at)
    stops = sum(at > last - WINDOW for at in left_at)
    return Rest(last + timedelta(seconds=doubling_s(stops, free=FREE, first_s=FIRST_S, most_s=MOST_S)), stops)


def resting(snapshot: Snapshot) -> dict[str, Rest]:
    """The waiting opportunistic jobs that stay away now."""
    found = {}
    for gang in snapshot.waiting if snapshot.yielded else ():
        left_at = snapshot.yielded.get(gang.job)
        if gang.opportunistic and left_at and (rest := rest_of(left_at)).until > snapshot.now:
            found[gang.job] = rest
    return found


def next_end(snapshot: Snapshot) -> datetime | None:
    """When the next of them may start again."""
    return min((rest.until for rest in resting(snapshot).values()), default=None)


def after(snapshot: Snapshot, released: Iterable[Running]) -> Yielded:
    """Snapshot.yielded once these runs have released their slots now."""
    left = [
        run.job
        for run in released
        if run.gang.opportunistic and isinstance(run.order, Stop) and run.order.reason == YIELDED
    ]
    if not left:
        return snapshot.yielded
    since = snapshot.now - COUNTS_FOR
    kept = {job: tuple(at for at in times if at > since) for job, times in snapshot.yielded.items()}
    return {**kept, **{job: (*kept.get(job, ()), snapshot.now) for job in left}}


def explained(gang: Gang, rest: Rest) -> Explanation:
    """Why it does not start on what is idle."""
    message = (
        f"Runs on idle devices only, and left them to other jobs {rest.stops} times within an hour: it starts no"
        f" earlier than {rest.until:%Y-%m-%d %H:%M:%S} UTC, so that it does not save and start again all the time."
    )
    numbers = {
        "learners": gang.learners.min,
        "slots": gang.slots,
        "asked": gang.asked,
        "stops": rest.stops,
        "rests_until": rest.until.isoformat(),
    }
    return Explanation(gang.job, WaitReason.IDLE_BACKOFF, message, numbers)
