"""An opportunistic job that others often make leave stays away for a while, and says until when."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler import record, rests, world
from gpu_scheduler.cycle import plan
from gpu_scheduler.forecast import RunTime, forecast
from gpu_scheduler.idle import next_event_at
from gpu_scheduler.model import Snapshot, StartReason, WaitReason
from gpu_scheduler.policies.base import policy_of
from gpu_scheduler.simulation import Scenario, simulate
from gpu_scheduler.simulation.scenario import Costs, RunEnd, SimulatedJob
from tests.gpu_scheduler.test_opportunistic import idle, idle_run, idle_worlds, started
from tests.gpu_scheduler.worlds import NOON, gang, next_snapshot, nodes, snapshot

MINUTE = timedelta(minutes=1)
OFTEN = tuple(NOON - minutes * MINUTE for minutes in (40, 20, 1))
"""Three times, the last a minute ago: it rests for two."""


def rest_minutes(*minutes: int) -> float:
    return (rests.rest_of([NOON + each * MINUTE for each in minutes]).until - NOON) / MINUTE - max(minutes)


def test_it_comes_back_at_once_and_stays_away_longer_after_each_further_stop() -> None:
    at = [0, 1, 3, 6, 11, 20, 37, 38]
    assert [rest_minutes(*at[:count]) for count in range(1, 9)] == [0, 1, 2, 4, 8, 16, 30, 30]
    assert rest_minutes(0, 1, 59) == 2
    assert rest_minutes(0, 1, 60) == 1, "the first is an hour ago"
    assert rest_minutes(0, 70) == 0


def test_it_says_until_when_and_what_it_leaves_is_there_for_another() -> None:
    made = replace(snapshot(nodes(a1=8), [idle("j1", slots=8), idle("j2", slots=8)]), yielded={"j1": OFTEN})
    decided = plan(made)
    assert [(start.job, start.reason) for start in decided.starts] == [("j2", StartReason.OPPORTUNISTIC)]
    (wait,) = decided.waits
    assert (wait.job, wait.code) == ("j1", WaitReason.IDLE_BACKOFF)
    assert wait.message == (
        "Runs on idle devices only, and left them to other jobs 3 times within an hour: it starts no earlier than"
        " 2026-01-01 12:01:00 UTC, so that it does not save and start again all the time."
    )
    assert wait.numbers["rests_until"] == "2026-01-01T12:01:00+00:00"
    assert next_event_at(made) == NOON + MINUTE
    later = replace(made, now=NOON + MINUTE)
    assert (started(later), next_event_at(later)) == ({"j1": "opportunistic"}, None)


def test_a_stop_to_leave_is_noted_with_its_time_and_no_other_end() -> None:
    made = replace(
        snapshot(
            nodes(a1=8, a2=8), [gang("j1", slots=8), gang("j2", slots=8)], [idle_run("r1", "a1", slots=8)]
        ),
        yielded={"r1": (NOON - timedelta(hours=2), NOON - 10 * MINUTE)},
    )
    ordered = world.apply(made, plan(made))
    assert world.apply(ordered, ended=["r1"]).yielded == {"r1": (NOON - 10 * MINUTE, NOON)}
    assert world.apply(made, ended=["r1"]).yielded == made.yielded, "it ended by itself"


def test_forecasts_and_simulations_wait_for_it() -> None:
    alone = replace(snapshot(nodes(a1=8), [idle("j1", slots=8)]), yielded={"j1": OFTEN})
    assert forecast(alone, {"j1": RunTime((60.0,))})["j1"].p50 == NOON + MINUTE
    beside = replace(alone, nodes=nodes(a1=8, a2=8), running=(idle_run("r1", "a2"),))
    assert forecast(beside, {"r1": RunTime((3600.0,))})["j1"].p50 == NOON + MINUTE
    jobs = [
        SimulatedJob(
            replace(gang(f"j{n}", slots=8), queued_at=NOON + n * 4 * MINUTE), 60.0, Costs(checkpoint_s=1)
        )
        for n in range(1, 9)
    ]
    long = SimulatedJob(replace(idle("j0", slots=8), queued_at=NOON), 1800.0, Costs(checkpoint_s=1))
    quotas = snapshot(nodes(a1=8), [gang("x")]).quotas
    made = Scenario(nodes(a1=8), (long, *jobs), quotas, policy_of(alone), begin=NOON)
    outcome = simulate(made)
    runs = [run for run in outcome.runs if run.gang.job == "j0"]
    assert runs[-1].end is RunEnd.COMPLETED
    assert 2 < len(runs) <= rests.MOST_STOPS + 1


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=20, max_size=40))
def test_starts_are_bounded_however_others_come_and_go(visits: list[tuple[int, int]]) -> None:
    """visits: how many minutes another job stays away after the last one, once it could disturb, and how long it runs.
    When they no longer come it starts within the longest rest."""
    made = snapshot(nodes(a1=8), [idle("j0", slots=8)], limits={"red": 8})
    starts: list[datetime] = []
    pending, away, ends = list(visits), visits[0][0], dict[str, datetime]()
    quiet_since = None
    for minute in range(24 * 60):
        visitor = any(not each.gang.opportunistic for each in made.running) or any(
            not each.opportunistic for each in made.waiting
        )
        if pending and not visitor:
            if away:
                away -= 1
            else:
                came = gang(f"j{minute + 1}", slots=8, queued_at=made.now)
                made = replace(made, waiting=(*made.waiting, came))
        elif not pending and not visitor and quiet_since is None:
            quiet_since = made.now
        decided = plan(made)
        for start in decided.starts:
            if start.job == "j0":
                starts.append(made.now)
            else:
                _, lasts = pending.pop(0)
                ends[start.job] = made.now + lasts * MINUTE
                away = pending[0][0] if pending else 0
        if quiet_since is not None and any(run.job == "j0" for run in made.running):
            break
        ordered = {run.job for run in made.running if run.order is not None}
        after = made.now + MINUTE
        over = {
            job for job, end in ends.items() if end <= after and any(run.job == job for run in made.running)
        }
        made = next_snapshot(made, decided, after_s=60, ended=ordered | over)
    assert quiet_since is not None
    assert starts[-1] <= quiet_since + timedelta(seconds=rests.MOST_S) + MINUTE
    for first in starts:
        in_an_hour = [at for at in starts if first <= at < first + rests.WINDOW]
        assert len(in_an_hour) <= rests.MOST_STOPS + 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=40))
def test_no_window_has_more_stops_than_is_claimed(runs: list[int]) -> None:
    """It runs for so many minutes each time, and starts as soon as it may."""
    left: list[datetime] = []
    for minutes in runs:
        start = rests.rest_of(left).until if left else NOON
        left.append(start + minutes * MINUTE)
    for first in left:
        assert sum(first <= at < first + rests.WINDOW for at in left) <= rests.MOST_STOPS


def rests_by_the_book(made: Snapshot) -> dict[str, datetime]:
    """Until when each opportunistic job of those that wait stays away, worked out in another way."""
    minutes = {1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 6: 16}
    found = {}
    for job in made.waiting:
        times = sorted(made.yielded.get(job.job, ()))
        if not job.opportunistic or not times:
            continue
        close = len([at for at in times if times[-1] - at < timedelta(hours=1)])
        until = times[-1] + minutes.get(close, 30) * MINUTE
        if made.now < until:
            found[job.job] = until
    return found


@st.composite
def often_stopped(draw: st.DrawFn) -> Snapshot:
    made = draw(idle_worlds())
    ago = st.lists(st.integers(0, 5000), min_size=1, max_size=8)
    return replace(
        made,
        yielded={
            job.job: tuple(NOON - timedelta(seconds=s) for s in sorted(draw(ago), reverse=True))
            for job in made.waiting
            if draw(st.booleans())
        },
    )


@settings(max_examples=150, deadline=None)
@given(often_stopped())
def test_only_those_that_left_too_often_rest_and_all_else_is_decided_as_without_them(made: Snapshot) -> None:
    """So work is conserved but for the rest that the job itself names."""
    decided, away = plan(made), rests_by_the_book(made)
    resting = {wait.job: wait for wait in decided.waits if wait.code is WaitReason.IDLE_BACKOFF}
    assert {job: wait.numbers["rests_until"] for job, wait in resting.items()} == {
        job: until.isoformat() for job, until in away.items()
    }
    others = tuple(job for job in made.waiting if job.job not in away)
    alone = plan(replace(made, waiting=others, yielded={}))
    assert (decided.starts, decided.stops, decided.resizes) == (alone.starts, alone.stops, alone.resizes)
    assert [wait for wait in decided.waits if wait.job not in away] == list(alone.waits)
    ends = [next_event_at(made), *away.values()]
    assert not away or (ends[0] is not None and ends[0] <= min(away.values()))


@given(often_stopped())
def test_records_keep_it_and_those_of_before_are_read(made: Snapshot) -> None:
    text = record.written(made)
    assert record.read(text, policy_of(made)) == made
    older = json.dumps(json.loads(text)[:-1]).encode()
    assert record.read(older, policy_of(made)) == replace(made, yielded={})
