"""How long an opportunistic job that others made leave stays away: otherwise it could save and start all day.

It comes back at once after one stop, and waits after further ones that come soon after each other and soon after its
starts. What it does not take meanwhile is there for other opportunistic jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpu_scheduler.backoff import doubling_s
from gpu_scheduler.clearing import YIELDED
from gpu_scheduler.model import Explanation, Gang, Running, Snapshot, Stop, WaitReason, timestamp

Yielded = Mapping[str, tuple[datetime, ...]]
"""Snapshot.yielded: by job, when it left, the oldest first."""
SHORT = timedelta(minutes=10)
"""Only a run that computed for less, its save included, counts: a longer one was worth its start and its save, and of
those there are six in an hour at most."""
WINDOW = timedelta(hours=1)
"""Stops that are this close together count together."""
FREE, FIRST_S, MOST_S = 1, 60.0, 1800.0
COUNTS_FOR = WINDOW + timedelta(seconds=MOST_S)
"""A stop that is older than this changes nothing."""
MOST_STOPS = 7
"""More that count never fit into a window: the rests of a job between eight are 0 + 1 + 2 + 4 + 8 + 16 + 30 minutes at
least."""
AHEAD = timedelta(minutes=1)
"""A time may be later than the snapshot's by this: it was written while the rows were read. One that is later still was
written before the clock was set back, and does not count: a job would rest until the clock is there again."""


@dataclass(frozen=True, slots=True)
class Rest:
    """until: when it ends. stops: how often the job had to leave within a window."""

    until: datetime
    stops: int


def counts(computing_since: datetime | None, left_at: datetime) -> bool:
    """Whether a stop does. computing_since: None if its program had not begun."""
    return computing_since is None or left_at - computing_since < SHORT


def rest_of(left_at: Sequence[datetime]) -> Rest:
    """After a job left at these times; of none of them there is no rest, so there is at least one."""
    last = max(left_at)
    stops = sum(at > last - WINDOW for at in left_at)
    return Rest(last + timedelta(seconds=doubling_s(stops, free=FREE, first_s=FIRST_S, most_s=MOST_S)), stops)


def resting(snapshot: Snapshot) -> dict[str, Rest]:
    """The waiting opportunistic jobs that stay away now, MOST_S and AHEAD at most."""
    found = {}
    for gang in snapshot.waiting if snapshot.yielded else ():
        if not gang.opportunistic:
            continue
        left_at = [at for at in snapshot.yielded.get(gang.job, ()) if at <= snapshot.now + AHEAD]
        if left_at and (rest := rest_of(left_at)).until > snapshot.now:
            found[gang.job] = rest
    return found


def next_end(snapshot: Snapshot) -> datetime | None:
    """When the next of them may start again."""
    return min((rest.until for rest in resting(snapshot).values()), default=None)


def after(snapshot: Snapshot, released: Iterable[Running]) -> Yielded:
    """Snapshot.yielded once these runs have released their slots now."""
    left = [run.job for run in released if _yielded(run) and counts(_computing_since(run), snapshot.now)]
    if not left:
        return snapshot.yielded
    since = snapshot.now - COUNTS_FOR
    kept = {job: tuple(at for at in times if at > since) for job, times in snapshot.yielded.items()}
    noted = {**kept, **{job: (*kept.get(job, ()), snapshot.now) for job in left}}
    return {job: times for job, times in noted.items() if times}


def _yielded(run: Running) -> bool:
    return run.gang.opportunistic and isinstance(run.order, Stop) and run.order.reason == YIELDED


def _computing_since(run: Running) -> datetime:
    """At the earliest. Of one that a plan started, nothing is known of what its start takes."""
    return run.computes_after or run.started_at + timedelta(seconds=run.restart_cost_s or 0.0)


def explained(gang: Gang, rest: Rest) -> Explanation:
    """Why it does not start on what is idle."""
    message = (
        f"Runs on idle devices only, and left them to other jobs {rest.stops} times within an hour, each time soon"
        f" after its start: it starts no earlier than {rest.until:%Y-%m-%d %H:%M:%S} UTC, so that it does not save and"
        " start again all the time."
    )
    numbers = {
        "learners": gang.learners.min,
        "slots": gang.slots,
        "asked": gang.asked,
        "stops": rest.stops,
        "rests_until": timestamp(rest.until),
    }
    return Explanation(gang.job, WaitReason.IDLE_BACKOFF, message, numbers)
