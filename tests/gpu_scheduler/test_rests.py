"""An opportunistic job that others often make leave stays away for a while, and says until when."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler import record, rests, world
from gpu_scheduler.checks import NOT_QUEUED
from gpu_scheduler.cycle import plan
from gpu_scheduler.forecast import RunTime, forecast
from gpu_scheduler.model import Running, Snapshot, StartReason, Stop, TenantState, WaitReason, timestamp
from gpu_scheduler.opportunistic import next_event_at
from gpu_scheduler.policies.base import policy_of
from gpu_scheduler.simulation import Scenario, simulate
from gpu_scheduler.simulation.scenario import Costs, RunEnd, SimulatedJob
from tests.gpu_scheduler.test_opportunistic import idle, idle_run, idle_worlds, started
from tests.gpu_scheduler.worlds import NOON, gang, next_snapshot, nodes, running, snapshot

MINUTE = timedelta(minutes=1)
OFTEN = tuple(NOON - minutes * MINUTE for minutes in (40, 20, 1))
"""Three times, the last a minute ago: it rests for two."""
WORTH_IT = rests.WINDOW // rests.SHORT
"""Of runs that do not count, no more end in an hour."""


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
        "Runs on idle devices only, and left them to other jobs 3 times within an hour, each time soon after its start:"
        " it starts no earlier than 2026-01-01 12:01:00 UTC, so that it does not save and start again all the time."
    )
    assert wait.numbers["rests_until"] == "2026-01-01T12:01:00.000Z"
    assert next_event_at(made) == NOON + MINUTE
    later = replace(made, now=NOON + MINUTE)
    assert (started(later), next_event_at(later)) == ({"j1": "opportunistic"}, None)


def short_run(job: str, on: str, after: timedelta = MINUTE, **changes: object) -> Running:
    return replace(idle_run(job, on, slots=8, **changes), started_at=NOON - after)


def test_a_stop_to_leave_is_noted_with_its_time_and_no_other_end() -> None:
    made = replace(
        snapshot(nodes(a1=8), [gang("j1", slots=8)], [short_run("r1", "a1")]),
        yielded={
            "r1": (NOON - timedelta(hours=2), NOON - 10 * MINUTE),
            "gone": (NOON - timedelta(hours=2),),
        },
    )
    ordered = world.apply(made, plan(made))
    assert world.apply(ordered, ended=["r1"]).yielded == {"r1": (NOON - 10 * MINUTE, NOON)}
    assert world.apply(made, ended=["r1"]).yielded == made.yielded, "it ended by itself"
    for reason in ("moved", "budget_exhausted", "node_lost", "halt_requested", "reclaimed"):
        other = replace(made, running=(short_run("r1", "a1", order=Stop("r1", reason, "j1")),))
        assert world.apply(other, ended=["r1"]).yielded == made.yielded, reason
    quota = short_run("r1", "a1", order=Stop("r1", "preempted", "j1"))
    of_quota = replace(made, running=(replace(quota, gang=replace(quota.gang, opportunistic=False)),))
    assert world.apply(of_quota, ended=["r1"]).yielded == made.yielded, "it was not started on what is idle"


def test_a_run_that_was_worth_its_start_does_not_count() -> None:
    def noted(after: timedelta, **changes: object) -> int:
        made = snapshot(nodes(a1=8), [gang("j1", slots=8)], [short_run("r1", "a1", after, **changes)])
        return len(world.apply(world.apply(made, plan(made)), ended=["r1"]).yielded)

    assert noted(10 * MINUTE - timedelta(seconds=1)) == 1
    assert noted(10 * MINUTE) == 0
    assert noted(10 * MINUTE, restart_cost_s=1.0) == 1, "its start took a second of these"
    assert noted(90 * MINUTE, computes_after=NOON) == 1, "its program had not begun"
    assert noted(90 * MINUTE, computes_after=NOON - 10 * MINUTE) == 0, (
        "as far as a forecast knows it has since"
    )


def test_a_forecast_knows_how_often_one_that_runs_had_to_leave_before() -> None:
    """r1 leaves for j1 for the sixth time and rests for 16 minutes, so j2, which is younger, starts before it."""
    five = tuple(NOON - minutes * MINUTE for minutes in (50, 48, 45, 40, 31))
    younger = replace(idle("j2", slots=8), queued_at=NOON - 5 * MINUTE)
    made = snapshot(nodes(a1=8), [gang("j1", slots=8), younger], [short_run("r1", "a1")])
    lengths = {"r1": RunTime((3600.0,)), "j1": RunTime((60.0,)), "j2": RunTime((60.0,))}
    known, unknown = (forecast(replace(made, yielded=of), lengths)["j2"].p50 for of in ({"r1": five}, {}))
    assert known is not None
    assert unknown is not None
    assert known < NOON + 10 * MINUTE < NOON + 60 * MINUTE < unknown


def test_a_clock_that_was_set_back_keeps_none_away() -> None:
    """The job left at times that are still to come, as far as this clock knows."""
    made = snapshot(nodes(a1=8), [idle("j1", slots=8)])
    tomorrow = tuple(NOON + timedelta(days=1) + n * MINUTE for n in range(4))
    back = replace(made, yielded={"j1": tomorrow})
    assert (started(back), next_event_at(back)) == ({"j1": "opportunistic"}, None)
    just_now = replace(made, yielded={"j1": (NOON, NOON + timedelta(seconds=1))})
    assert started(just_now) == {}, "written while the rows were read"


def test_one_that_time_alone_does_not_start_says_what_does() -> None:
    made = replace(snapshot(nodes(a1=8), [idle("j1", slots=8)]), yielded={"j1": OFTEN})
    suspended = replace(made, tenants=(TenantState("red", suspended=True),))
    (wait,) = plan(suspended).waits
    assert wait.code is WaitReason.TENANT_SUSPENDED
    assert [check["check"] for check in wait.details["checks"] if check["ok"] is False] == ["tenant"]
    full = replace(made, running=(running("r1", "a1", slots=8),))
    assert plan(full).waits[0].code is WaitReason.IDLE_BACKOFF, "that passes"


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


FEW = st.lists(st.tuples(st.integers(0, 13), st.integers(1, 5)), min_size=20, max_size=40)
DENSE = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 2)), min_size=40, max_size=60)
"""Without rests it would start some fifteen times an hour."""


@settings(max_examples=25, deadline=None)
@given(FEW | DENSE)
def test_starts_are_bounded_however_others_come_and_go(visits: list[tuple[int, int]]) -> None:
    """visits: how many minutes another job stays away after the last one, and how long it runs. When they no longer
    come it starts within the longest rest."""
    made = snapshot(nodes(a1=8), [idle("j0", slots=8)], limits={"red": 8})
    starts, short = list[datetime](), list[datetime]()
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
        if "j0" in ordered and rests.counts(starts[-1], made.now):
            short.append(starts[-1])
        after = made.now + MINUTE
        over = {
            job for job, end in ends.items() if end <= after and any(run.job == job for run in made.running)
        }
        made = next_snapshot(made, decided, after_s=60, ended=ordered | over)
    assert quiet_since is not None
    assert starts[-1] <= quiet_since + timedelta(seconds=rests.MOST_S) + MINUTE
    for first in starts:
        assert sum(first <= at < first + rests.WINDOW for at in short) <= rests.MOST_STOPS + 1
        assert sum(first <= at < first + rests.WINDOW for at in starts) <= rests.MOST_STOPS + WORTH_IT + 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=40))
def test_no_window_has_more_stops_than_is_claimed(runs: list[int]) -> None:
    """It runs for so many minutes each time, and starts as soon as it may."""
    left, counted, now = list[datetime](), list[datetime](), NOON
    for minutes in runs:
        start = max(now, rests.rest_of(counted).until) if counted else now
        now = start + minutes * MINUTE
        left.append(now)
        counted += [now] if rests.counts(start, now) else []
    for first in left:
        assert sum(first <= at < first + rests.WINDOW for at in counted) <= rests.MOST_STOPS
        assert sum(first <= at < first + rests.WINDOW for at in left) <= rests.MOST_STOPS + WORTH_IT


def rests_by_the_book(made: Snapshot) -> dict[str, datetime]:
    """Until when each opportunistic job of those that wait stays away, worked out in another way."""
    minutes = {1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 6: 16}
    found = {}
    for job in made.waiting:
        times = sorted(at for at in made.yielded.get(job.job, ()) if at <= made.now + MINUTE)
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
    ago = st.lists(st.integers(-90, 5000), min_size=1, max_size=8)
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
    """So work is conserved but for the rest that the job itself names, or what it needs beside time."""
    decided, away = plan(made), rests_by_the_book(made)
    resting = {wait.job: wait for wait in decided.waits if wait.code is WaitReason.IDLE_BACKOFF}
    needs = {wait.job: wait for wait in plan(replace(made, yielded={})).waits if wait.code in NOT_QUEUED}
    assert {job: wait.numbers["rests_until"] for job, wait in resting.items()} == {
        job: timestamp(until) for job, until in away.items() if job not in needs
    }
    given_as = {wait.job: (wait.code, wait.message) for wait in decided.waits}
    assert all(given_as[job] == (wait.code, wait.message) for job, wait in needs.items() if job in away)
    others = tuple(job for job in made.waiting if job.job not in away)
    alone = plan(replace(made, waiting=others, yielded={}))
    assert (decided.starts, decided.stops, decided.resizes) == (alone.starts, alone.stops, alone.resizes)
    assert [wait for wait in decided.waits if wait.job not in away] == list(alone.waits)
    ends = [next_event_at(made), *away.values()]
    assert not away or (ends[0] is not None and ends[0] <= min(away.values()))


@given(often_stopped())
def test_records_keep_it_and_those_of_before_are_read(made: Snapshot) -> None:
    """Where there is nothing of it, the text is the one of the version before."""
    text = record.written(made)
    assert record.read(text, policy_of(made)) == made
    none = replace(made, yielded={})
    older = record.written(none)
    assert len(json.loads(older)) == 9
    assert record.read(older, policy_of(made)) == none


def test_a_run_is_written_as_before_unless_its_program_has_not_begun() -> None:
    began = snapshot(nodes(a1=8), busy=[short_run("r1", "a1")])
    starts = replace(began, running=(replace(began.running[0], computes_after=NOON),))
    lengths = [len(json.loads(record.written(made))[3][0]["Running"]) for made in (began, starts)]
    assert lengths[1] == lengths[0] + 1
    assert [record.read(record.written(made), policy_of(made)) for made in (began, starts)] == [began, starts]
