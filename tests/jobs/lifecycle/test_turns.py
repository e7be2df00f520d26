"""The turn of a worker that was notified of one job: which others it takes along, and what comes meanwhile."""

from __future__ import annotations

import pytest

from jobs import failpoints
from jobs.lifecycle import leases, together
from jobs.models import Job
from jobs.states import Intent, Phase, State
from tests.jobs.lifecycle.side_by_side import COUNT, claimed, deployed, hold_as_notified
from tests.jobs.lifecycle.world import World, gang, job_of, one_pass, state

pytestmark = pytest.mark.usefixtures("on_a_machine_of_any_speed")


@pytest.mark.django_db
def test_a_halt_that_comes_during_the_turn_is_carried_out(world: World) -> None:
    """Its lease is not settled away: the newer intent is seen in the same turn or makes the job due."""
    jobs = [world.submit() for _ in range(COUNT)]
    found = claimed(jobs)
    asked: list[str] = []

    def halt(point: str) -> None:
        if point == "reconcile.before_release" and not asked:
            asked.append(point)
            world.request(jobs[0], Intent.CANCEL)

    failpoints.arm(halt)
    hold_as_notified(found)
    failpoints.arm(None)
    world.settle()

    assert asked
    assert state(jobs[0]) == State.CANCELED
    assert {state(job) for job in jobs[1:]} == {State.DEPLOYING}


@pytest.mark.django_db
def test_on_a_slow_cluster_the_others_are_due_for_any_worker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "QUICK_S", -1.0)
    monkeypatch.setattr(together, "TURN_S", -1.0)
    jobs = [world.running() for _ in range(COUNT)]
    for job in jobs:
        world.request(job, Intent.CANCEL)
    Job.objects.update(fail_streak=3)
    hold_as_notified(claimed(jobs))

    assert [state(job) for job in jobs] == [State.STOPPING, *[State.PROCESSING] * (COUNT - 1)]
    assert {lease.job_id for lease in leases.claim_due("w2", 9)} >= {job.pk for job in jobs[1:]}
    assert {job_of(job).fail_streak for job in jobs[1:]} == {3}


@pytest.mark.django_db
def test_a_notified_job_takes_others_that_are_due_along(world: World) -> None:
    jobs = deployed(world, COUNT)
    for job in jobs:
        world.report(job, phase=Phase.PROCESSING)

    together.reconcile_due(jobs[2].pk, owner="w1")

    assert {state(job) for job in jobs} == {State.PROCESSING}
    assert not together.reconcile_due("gone", owner="w1")


@pytest.mark.django_db
def test_a_job_that_was_notified_for_others_and_is_already_taken_does_not_keep_them(world: World) -> None:
    """One is notified for many that are due."""
    jobs = deployed(world, COUNT)
    for job in jobs:
        world.report(job, phase=Phase.PROCESSING)
    assert leases.claim(jobs[0].pk, "w2")

    together.reconcile_due(jobs[0].pk, owner="w1")

    assert [state(job) for job in jobs] == [State.DEPLOYING, *[State.PROCESSING] * (COUNT - 1)]


@pytest.mark.django_db
def test_a_notified_job_waits_for_the_turn_of_others_but_not_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are notified meanwhile have the next turn together; a slow cluster keeps none of them."""
    job = world.submit()
    monkeypatch.setattr(together, "GATHER_S", 0.01)
    with together._turn:
        together.reconcile_due(job.pk, owner="w1")
    assert job_of(job).next_reconcile_at > job.next_reconcile_at
    assert not together._turn.locked()


@pytest.mark.django_db
def test_a_notified_job_that_goes_on_alone_does_not_wait_for_what_the_others_need_of_the_cluster(
    world: World,
) -> None:
    halted = world.running()
    others = [world.submit() for _ in range(COUNT)]
    assert set(one_pass()) == {job.pk for job in others}
    world.request(halted, Intent.CANCEL)
    world.cluster.calls.clear()

    together.reconcile_due(halted.pk, owner="w1")

    stops_and_launches = [call for call in world.cluster.calls if call[0] in ("stop", "launch")]
    assert stops_and_launches[0] == ("stop", gang(halted))
    assert sorted(stops_and_launches[1:]) == sorted(("launch", gang(job)) for job in others)
    assert not Job.objects.exclude(lease_token=None)
