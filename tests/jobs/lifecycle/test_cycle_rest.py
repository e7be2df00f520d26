"""When the scheduler makes a cycle, and when it does not."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.lifecycle import cycle
from jobs.models import Job, PeriodicTask, SchedulerState
from jobs.selectors.snapshot import policy_state, scheduling_policy
from jobs.states import State
from tests.jobs.lifecycle.world import World


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every pass."""
    made: list[int] = []
    one_pass = cycle.one_pass
    monkeypatch.setattr(cycle, "one_pass", lambda: made.append(1) or one_pass())
    return made


def test_after_a_pass_over_many_what_is_asked_for_waits_and_is_not_lost(
    world: World, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle, "MANY", 3)
    monkeypatch.setattr(cycle, "PAUSE_FACTOR", 1e9)
    monkeypatch.setattr(cycle, "PAUSE_MOST_S", 60.0)
    for _ in range(3):
        world.submit(slots=4)
    assert len(cycle.run()) == 2
    world.submit(slots=4)
    assert cycle.run() == []
    assert len(passes) == 1
    world.elapse(61)
    cycle.run(request=False)
    assert len(passes) == 2


def test_where_few_wait_every_request_is_a_pass(world: World, passes: list[int]) -> None:
    for _ in range(3):
        world.submit(slots=4)
        cycle.run()
    assert len(passes) == 3


def test_where_nothing_waits_a_pass_reads_no_snapshot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.running(slots=4)
    monkeypatch.setattr(cycle, "snapshot", None)
    assert cycle.one_pass() == []


def test_the_policy_forgets_a_queue_that_is_gone(world: World) -> None:
    world.running(learners=2, slots=4)
    waiter = world.submit(slots=4)
    cycle.one_pass()
    assert set(SchedulerState.objects.get().state) == {waiter.pk}
    Job.objects.filter(pk=waiter.pk).update(state=State.CANCELED)
    cycle.one_pass()
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
    assert PeriodicTask.objects.get(name=cycle.TASK).next_at == timeout
    world.elapse(3)
    cycle.run()
    due = PeriodicTask.objects.get(name=cycle.TASK)
    assert due.next_at - due.done_at == timedelta(seconds=cycle.EVERY_S), "the next event is far away"
