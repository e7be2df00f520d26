"""When the scheduler makes a cycle, and when it does not."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from django.db.models.functions import Now

from gpu_scheduler.clusters.base import ClusterBusy
from gpu_scheduler.model import Explanation, Start, WaitReason
from jobs.lifecycle import cycle, forecasting, numbers
from jobs.lifecycle.plan_effects import compare, explain_moved
from jobs.models import Job, PeriodicTask, SchedulerState
from jobs.selectors.installation import last_pass
from jobs.selectors.snapshot import database_now, policy_state, scheduling_policy
from jobs.states import EventCode, Intent, State
from tests import factories
from tests.jobs.lifecycle.world import World, is_rfc3339, job_of, one_pass, state


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every pass."""
    made: list[int] = []
    original = cycle.one_pass
    monkeypatch.setattr(cycle, "one_pass", lambda token: made.append(1) or original(token))
    return made


def test_after_a_pass_over_many_what_is_asked_for_waits_and_is_not_lost(
    world: World, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle, "LARGE_QUEUE", 3)
    monkeypatch.setattr(cycle, "PAUSE_FACTOR", 1e9)
    monkeypatch.setattr(cycle, "PAUSE_MAX_S", 60.0)
    for _ in range(3):
        world.submit(slots=4)
    assert len(cycle.run()) == 2
    world.submit(slots=4)
    assert cycle.run() == []
    assert len(passes) == 1
    world.elapse(61)
    cycle.run(request=False)
    assert len(passes) == 2


def test_after_a_pass_over_many_no_garbage_is_left_for_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it was young: Python collects by itself only after many more allocations."""
    for _ in range(9):
        world.submit(slots=4)
    one_pass()
    gc.collect()
    gc.disable()
    try:
        one_pass()
        left = gc.collect()
        monkeypatch.setattr(cycle, "LARGE_QUEUE", 3)
        one_pass()
        assert gc.collect() < left / 4
    finally:
        gc.enable()


def test_where_few_wait_every_request_is_a_pass(world: World, passes: list[int]) -> None:
    for _ in range(3):
        world.submit(slots=4)
        cycle.run()
    assert len(passes) == 3


def test_where_nothing_waits_a_pass_reads_no_snapshot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.running(slots=4)
    monkeypatch.setattr(cycle, "snapshot", None)
    assert one_pass() == []


def test_a_cluster_that_does_not_respond_is_the_reason_of_waiting_jobs_and_no_pass_counts_as_done(
    world: World,
) -> None:
    world.running(learners=2, slots=4)
    waiter = world.submit(slots=4)
    cycle.run()
    waiter.refresh_from_db()
    reason, done_at = waiter.reason_code, PeriodicTask.objects.get(name=PeriodicTask.CYCLE).done_at
    assert done_at is not None
    world.cluster.fail_next("nodes", ClusterBusy("no answer"))
    cycle.run()
    waiter.refresh_from_db()
    assert waiter.reason_code == "CLUSTER_BUSY"
    assert last_pass().missed_cluster
    assert PeriodicTask.objects.get(name=PeriodicTask.CYCLE).done_at == done_at
    assert not cycle.has_new(), "the job was evaluated before; the regular pass evaluates it again"
    fresh = world.submit(reason_code=WaitReason.NOT_EVALUATED.value)
    assert cycle.has_new()
    Job.objects.filter(pk=fresh.pk).update(queued_at=Now() - timedelta(seconds=3 * cycle.EVERY_S))
    assert not cycle.has_new(), "a regular pass came after it"
    cycle.run()
    waiter.refresh_from_db()
    assert waiter.reason_code == reason


def test_while_the_disk_is_low_nothing_starts_and_running_jobs_continue(world: World, settings: Any) -> None:
    running, waiter = world.running(), world.submit()
    settings.LUTHIER_MIN_FREE_DISK = 2**60
    assert cycle.run() == []
    waiter.refresh_from_db()
    assert (waiter.state, waiter.reason_code) == (State.QUEUED, "DISK_FULL")
    assert waiter.reason_message.startswith(
        "The platform's disk has less than 1.0 EiB free, so nothing starts"
    )
    events = waiter.event_seq
    assert cycle.run() == []
    waiter.refresh_from_db()
    assert waiter.event_seq == events, "it is said once"
    running.refresh_from_db()
    assert (running.state, running.intent) == (State.PROCESSING, Intent.RUN)
    assert PeriodicTask.objects.get(name=PeriodicTask.CYCLE).done_at is not None, "the scheduler works"
    settings.LUTHIER_MIN_FREE_DISK = 0
    assert cycle.run() == [waiter.pk]


def test_the_policy_forgets_a_queue_that_is_gone(world: World) -> None:
    world.running(learners=2, slots=4)
    waiter = world.submit(slots=4)
    one_pass()
    assert set(SchedulerState.objects.get().state) == {waiter.pk}
    Job.objects.filter(pk=waiter.pk).update(state=State.CANCELED)
    one_pass()
    assert SchedulerState.objects.get().state == {}


def test_the_next_pass_is_due_when_the_policy_can_decide_otherwise(world: World) -> None:
    """The starvation timeout of the waiting job ends in two seconds, before the next regular pass."""
    world.running(learners=2, slots=4)
    waiter = world.submit(slots=4)
    cycle.run()
    world.elapse(298)
    cycle.run()
    policy = scheduling_policy()
    timeout = policy_state(policy)[waiter.pk] + timedelta(seconds=300)
    assert PeriodicTask.objects.get(name=PeriodicTask.CYCLE).next_at == timeout
    world.elapse(3)
    cycle.run()
    due = PeriodicTask.objects.get(name=PeriodicTask.CYCLE)
    assert due.next_at > timeout, "the timeout is over"
    far_away = timeout - timedelta(seconds=300) + timedelta(seconds=3600)
    assert due.next_at < far_away, "a regular pass comes before the job's rise by a class"


def tenants_jobs(count: int) -> list[Job]:
    """A job each of so many tenants."""
    return [factories.job() for _ in range(count)]


def test_waits_are_explained_before_the_starts_are_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    starter = world.submit(learners=2, slots=4)
    waiter = world.submit(slots=4)
    reasons: list[str] = []
    original = cycle._admit_group

    def admit(together: Sequence[Start], *rest: Any) -> set[str]:
        reasons.append(Job.objects.get(pk=waiter.pk).reason_code)
        return original(together, *rest)

    monkeypatch.setattr(cycle, "_admit_group", admit)
    assert cycle.run() == [starter.pk]
    assert reasons == ["QUOTA_GPUS"]


def moving_clocks() -> SimpleNamespace:
    """Each moves by ten seconds whenever it is read."""
    return SimpleNamespace(monotonic=count(0, 10).__next__, thread_time=count(0, 10).__next__)


@pytest.mark.parametrize("shared", [1, 16])
def test_a_pass_that_has_no_time_for_all_its_starts_leaves_them_to_the_next_and_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch, shared: int
) -> None:
    """The clock moves by ten seconds whenever it is read: planning takes ten, so three starts of five have begun.
    Starts that cannot share a commit have no more time than others."""
    monkeypatch.setattr(cycle, "SHARED", shared)
    monkeypatch.setattr(cycle, "_admit_together", lambda *_: False)
    jobs = tenants_jobs(5)
    monkeypatch.setattr(cycle, "time", moving_clocks())
    started = cycle.run()
    left = list(Job.objects.filter(state=State.QUEUED).order_by("reason_numbers__starts_ahead"))
    assert len(started) == 3
    assert {job.pk for job in jobs} == {*started, *(job.pk for job in left)}
    assert [(job.reason_code, job.reason_numbers["starts_ahead"], job.reason_message) for job in left] == [
        ("START_PENDING", 0, "It can start now, and is next."),
        ("START_PENDING", 1, "It can start now. The platform starts 1 other job first."),
    ]
    assert all(is_rfc3339(job.reason_numbers["since"]) for job in left)
    assert cycle.due_in_s() <= 0, "the next pass follows at once"
    assert set(cycle.run(request=False)) == {job.pk for job in left}


def test_a_start_that_was_left_comes_before_those_that_the_next_plan_puts_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock moves by ten seconds whenever it is read: planning takes ten, so three starts have begun."""
    monkeypatch.setattr(cycle, "SHARED", 1)
    monkeypatch.setattr(cycle, "time", moving_clocks())
    tenants_jobs(4)
    cycle.run()
    left = Job.objects.get(state=State.QUEUED)
    older = Now() - timedelta(hours=1)
    Job.objects.filter(pk__in=[job.pk for job in tenants_jobs(4)]).update(queued_at=older)
    assert cycle.run(request=False)[-1] == left.pk, "the plan put it last"
    assert state(left) == State.DEPLOYING


def test_a_reason_that_cannot_be_written_keeps_no_job_from_its_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    starter = world.submit(learners=2, slots=4)
    waiter = world.submit(slots=4)

    def broken(_: object) -> None:
        raise ValueError("no such number")

    monkeypatch.setattr(cycle, "explain_fresh", broken)
    with pytest.raises(ValueError, match="no such number"):
        cycle.run()
    assert (state(starter), state(waiter)) == (State.DEPLOYING, State.QUEUED)


def test_a_job_that_was_asked_for_something_since_keeps_the_reason_of_that(world: World) -> None:
    world.running(learners=2, slots=4)
    waiter = world.submit(slots=4)
    cycle.run()
    seen = Explanation(waiter.pk, WaitReason.QUOTA_GPUS, "Waiting for quota.", {"position": 9})
    _, moved = compare([seen])
    assert moved == [seen]
    Job.objects.filter(pk=waiter.pk).update(reason_code="resume_requested")
    explain_moved(moved)
    assert job_of(waiter).reason_code == "resume_requested"


def test_each_pass_writes_the_nearest_positions_and_the_others_as_seldom_as_they_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To write four takes a second, so after that they rest for nine; two at once, and none after a second. Each turn
    begins where the last one ended."""
    clock, written = [100.0], [""]

    def explain_moved(moved: Sequence[Explanation]) -> None:
        written.append("".join(each.job for each in moved))
        clock[0] += len(moved) / 4

    monkeypatch.setattr(numbers, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(numbers, "_rests_until", 0.0)
    monkeypatch.setattr(numbers, "_next", 2)
    monkeypatch.setattr(numbers, "NEAREST", 2)
    monkeypatch.setattr(numbers, "MOST", 9)
    monkeypatch.setattr(numbers, "AT_ONCE", 2)
    monkeypatch.setattr(numbers, "AT_MOST_S", 0.9)
    monkeypatch.setattr(numbers, "explain_moved", explain_moved)
    moved = [Explanation(job, WaitReason.QUOTA_GPUS, "", {}) for job in "abcdefghi"]
    for after_s in (0.0, 0.0, 7.5, 0.5):
        clock[0] += after_s
        numbers.explain(moved)
    assert written[1:] == ["ab", "cd", "ef", "ab", "ab", "ab", "gh", "i"]
    numbers.explain(moved[:2])
    clock[0] += 60
    numbers.explain(moved[:5])
    assert written[9:] == ["ab", "ab", "cd", "e"]


def test_a_pass_gives_so_many_new_reasons_and_the_next_ones_give_the_others(
    world: World, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle, "FRESH", 2)
    world.running(learners=2, slots=4)
    waiters = [world.submit(slots=4) for _ in range(5)]
    passes.clear()
    assert cycle.run() == []
    assert len(passes) == 3
    assert {job_of(waiter).reason_code for waiter in waiters} == {"QUOTA_GPUS"}


def test_the_events_of_new_reasons_say_what_the_rows_say(world: World) -> None:
    world.running(learners=2, slots=4)
    waiters = [world.submit(slots=slots) for slots in (4, 4, 9)]
    one_pass()
    for waiter in map(job_of, waiters):
        event = waiter.events.latest("n")
        assert (event.n, event.code, event.source) == (waiter.event_seq, EventCode.WAITING, "scheduler")
        assert (event.reason, event.message, event.numbers, event.attempt, event.tenant_id) == (
            waiter.reason_code,
            waiter.reason_message,
            waiter.reason_numbers,
            waiter.attempt,
            waiter.tenant_id,
        )
        assert (event.from_state, event.to_state, event.actor_id) == ("", "", None)
    assert {job_of(waiter).reason_code for waiter in waiters} == {"QUOTA_GPUS", "NO_MATCHING_POOL"}


def test_passes_that_follow_each_other_do_not_forecast_each_time(world: World) -> None:
    """One that took half a second is made again 4.5 s later, unless a regular one comes first."""
    world.submit()
    state = {"next_at": Now() + timedelta(seconds=9), "done_at": Now(), "result": {"took_s": 0.5}}
    forecast, _ = PeriodicTask.objects.update_or_create(name=forecasting.TASK, defaults=state)
    cycle.run()
    forecast.refresh_from_db()
    assert forecast.next_at == forecast.done_at + timedelta(seconds=0.5 * forecasting.RESTS)
    PeriodicTask.objects.filter(name=forecasting.TASK).update(result={"took_s": 0.0})
    world.submit()
    cycle.run()
    forecast.refresh_from_db()
    assert forecast.next_at <= database_now()
