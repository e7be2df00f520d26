"""The gangs of several jobs are launched in one turn, and noted in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs import failpoints
from jobs.lifecycle import leases
from jobs.lifecycle.decision import WAIT_WORKING_S
from jobs.models import Attempt, Job
from jobs.selectors.snapshot import database_now
from jobs.services import job_halt
from jobs.states import State
from tests.jobs.lifecycle.side_by_side import COUNT, claimed, commits, hold_as_notified, taken_over
from tests.jobs.lifecycle.world import World, gang, job_of, one_pass, state

pytestmark = pytest.mark.usefixtures("on_a_machine_of_any_speed")


@pytest.mark.django_db
def test_launches_are_noted_in_one_transaction(world: World) -> None:
    def launch(count: int) -> CaptureQueriesContext:
        jobs = [world.submit() for _ in range(count)]
        one_pass()
        found = claimed(jobs)
        with CaptureQueriesContext(connection) as seen:
            hold_as_notified(found)
        assert not Attempt.objects.filter(held=True, launched_at=None)
        return seen

    assert commits(launch(2)) == commits(launch(COUNT)) == 1


@pytest.mark.django_db
@pytest.mark.parametrize("count", [1, COUNT])
def test_a_gang_that_was_just_launched_is_not_looked_at_before_something_of_it_changes(
    world: World, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Its cluster cannot show more than it has just accepted. What it says of itself says no longer why it waited."""
    jobs = [world.submit() for _ in range(count)]
    one_pass()
    Job.objects.update(reason_code="cluster_busy", reason_message="Waiting for the cluster.")
    looks: list[Sequence[str] | None] = []
    observe = world.cluster.observe
    monkeypatch.setattr(world.cluster, "observe", lambda names=None: looks.append(names) or observe(names))

    hold_as_notified(claimed(jobs))

    assert not Attempt.objects.filter(held=True, launched_at=None)
    assert looks == []
    assert {job_of(job).reason_code for job in jobs} == {"deploying"}
    now = database_now()
    assert all(0 < (job_of(job).next_reconcile_at - now).total_seconds() <= WAIT_WORKING_S for job in jobs)
    assert not leases.claim_due("w2", 9)
    for job in jobs:
        world.cluster.exit(gang(job), 0, 3)
    leases.make_due({job.pk: 0 for job in jobs})
    world.settle()
    assert State.DEPLOYING not in {state(job) for job in jobs}


@pytest.mark.django_db
@pytest.mark.parametrize("count", [1, COUNT])
def test_a_halt_that_comes_during_a_launch_is_carried_out_in_the_same_turn(world: World, count: int) -> None:
    """Its hint finds the job leased, and no other follows."""
    jobs = [world.submit() for _ in range(count)]
    one_pass()
    found = claimed(jobs)

    def halt(moment: str, verb: str, _: str) -> None:
        if (moment, verb) == ("after", "launch"):
            world.cluster.hook = lambda *_: None
            job_halt(user=jobs[0].owner, job_id=jobs[0].pk)

    world.cluster.hook = halt
    hold_as_notified(found)

    assert state(jobs[0]) == State.STOPPING
    assert [state(job) for job in jobs[1:]] == [State.DEPLOYING] * (count - 1)


@pytest.mark.django_db
def test_a_worker_that_dies_before_launches_are_noted_launches_the_same_gangs_again(world: World) -> None:
    jobs = [world.submit() for _ in range(COUNT)]
    one_pass()
    found = claimed(jobs)

    def die(point: str) -> None:
        if point == "launch.before_commit":
            raise KeyboardInterrupt

    failpoints.arm(die)
    with pytest.raises(KeyboardInterrupt):
        hold_as_notified(found)
    failpoints.arm(None)
    assert Attempt.objects.filter(held=True, launched_at=None).count() == COUNT
    world.elapse(60)
    world.settle()

    assert not Attempt.objects.filter(held=True, launched_at=None)
    assert {state(job) for job in jobs} == {State.DEPLOYING}
    assert {attempt.n for attempt in Attempt.objects.all()} == {1}
    assert set(world.cluster.observe().gangs) == {gang(job) for job in jobs}


@pytest.mark.django_db
def test_a_job_that_was_taken_over_after_its_launch_costs_the_others_nothing(world: World) -> None:
    jobs = [world.submit() for _ in range(COUNT)]
    one_pass()
    found = claimed(jobs)

    def take_over(point: str) -> None:
        if point == "launch.after_cluster":
            taken_over(jobs[0])

    failpoints.arm(take_over)
    hold_as_notified(found)
    failpoints.arm(None)

    noted = Attempt.objects.exclude(launched_at=None).values_list("job", flat=True)
    assert set(noted) == {job.pk for job in jobs[1:]}


@pytest.mark.django_db
def test_a_job_that_is_done_is_released_before_the_cluster_is_called_for_others(world: World) -> None:
    done = world.running()
    others = [world.submit() for _ in range(COUNT)]
    one_pass()
    held: list[bool] = []

    def look(point: str) -> None:
        if point == "launch.before_cluster":
            held.append(job_of(done).lease_token is not None)

    failpoints.arm(look)
    hold_as_notified(claimed([done, *others]))

    assert held == [False] * COUNT
