"""Of jobs that are moved together, one that is broken, locked or taken over costs the others nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest
from django.db import OperationalError, connection
from django.db.models.functions import Now

from gpu_scheduler.clusters.base import ClusterBusy
from jobs import failpoints, invariants
from jobs.lifecycle import leases, observation, reconcile, together, transitions
from jobs.lifecycle.decision import Decision, decide, moves_ahead
from jobs.lifecycle.facts import JobObservation
from jobs.models import Job, Learner
from jobs.states import Intent, Phase, State, StopReason
from tests.jobs.lifecycle.locks import JOB, LEARNERS, QUOTAS, locked
from tests.jobs.lifecycle.side_by_side import (
    COUNT,
    claimed,
    delivered,
    deployed,
    ended_unseen,
    history,
    hold_as_notified,
    of_tenants,
    taken_over,
)
from tests.jobs.lifecycle.world import World, gang, hold_all, job_of, state, two_nodes, used

pytestmark = pytest.mark.usefixtures("on_a_machine_of_any_speed")
LOCK_TIMEOUT_S = 3.0
"""After so long a statement gives up on a row."""


class _Died(BaseException):
    """The end of a worker."""


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_dies_during_combined_moves_leaves_all_or_none_of_them() -> None:
    for point, reached in (("move.before_commit", State.DEPLOYING), ("move.after_commit", State.STORING)):
        with two_nodes() as world:
            jobs = ended_unseen(world, 2)
            found = claimed(jobs)

            def die(at: str, point: str = point) -> None:
                if at == point:
                    raise _Died

            failpoints.arm(die)
            try:
                with pytest.raises(_Died):
                    hold_as_notified(found)
            finally:
                failpoints.arm(None)

            assert {state(job) for job in jobs} == {reached}
            Job.objects.update(lease_token=None, lease_until=None, lease_owner="")  # they end by themselves
            for job in jobs:
                world.done(job)
            world.settle()
            assert {state(job) for job in jobs} == {State.COMPLETED}
            assert [len(job.events.filter(to_state=State.PROCESSING)) for job in jobs] == [1, 1]
            assert used(world.tenant) == 0
            assert invariants.violations() == []


@pytest.mark.django_db(transaction=True)
def test_a_job_that_the_database_refuses_to_move_holds_no_other_up() -> None:
    """An error half way through the moves of several leaves each to be moved alone."""
    with two_nodes() as world:
        jobs = ended_unseen(world, COUNT)
        broken = jobs[1].pk
        with connection.cursor() as cursor:
            cursor.execute(f"""
                CREATE FUNCTION refuse_one() RETURNS trigger LANGUAGE plpgsql AS
                $$BEGIN IF NEW.id = '{broken}' AND NEW.state = 'PROCESSING' THEN RAISE 'refused'; END IF;
                RETURN NEW; END$$;
                CREATE TRIGGER refuse_one BEFORE UPDATE ON jobs_job FOR EACH ROW EXECUTE FUNCTION refuse_one()
            """)
        try:
            hold_as_notified(claimed(jobs))

            assert [state(job) for job in jobs] == [
                State.STORING,
                State.DOWNLOADING,
                *[State.STORING] * (COUNT - 2),
            ]
            assert [job_of(job).fail_streak for job in jobs] == [0, 1, 0, 0]
        finally:
            with connection.cursor() as cursor:
                cursor.execute("DROP FUNCTION refuse_one CASCADE")
        world.settle()
        assert invariants.violations() == []


@pytest.mark.django_db(transaction=True)
def test_a_locked_learner_keeps_no_others_gangs() -> None:
    with two_nodes() as world:
        jobs = delivered(world, COUNT)
        found = claimed(jobs)
        began = time.monotonic()
        with locked(LEARNERS, jobs[0].pk):
            _, left = together.bring_on(found)

            assert time.monotonic() - began < LOCK_TIMEOUT_S, "it was waited for"
            assert {lease.job_id for lease in left} == {job.pk for job in jobs}
            for lease in left[1:]:
                reconcile.hold(lease)
            assert {state(job) for job in jobs[1:]} == {State.COMPLETED}
        reconcile.hold(left[0])
        assert {state(job) for job in jobs} == {State.COMPLETED}
        assert Learner.objects.filter(cluster_phase="SUCCEEDED").count() == COUNT


@pytest.mark.django_db(transaction=True)
def test_a_report_that_the_database_refuses_keeps_no_others_gangs() -> None:
    with two_nodes() as world:
        jobs = ended_unseen(world, COUNT)
        world.settle()
        world.cluster.exit(gang(jobs[0]), 0, 0, message="a NUL byte: \0")
        for job in jobs:
            world.done(job)
        hold_as_notified(claimed(jobs))

        assert [state(job) for job in jobs] == [State.STORING, *[State.COMPLETED] * (COUNT - 1)]
        assert [job_of(job).fail_streak for job in jobs] == [1, 0, 0, 0]


@pytest.mark.django_db
def test_a_failing_job_costs_the_others_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = deployed(world, COUNT)
    for job in jobs:
        world.report(job, phase=Phase.PROCESSING)

    def fails_on_one(seen: JobObservation) -> Decision:
        if seen.id == jobs[1].pk:
            raise ZeroDivisionError
        return decide(seen)

    monkeypatch.setattr(together, "decide", fails_on_one)
    monkeypatch.setattr(reconcile, "decide", fails_on_one)
    hold_as_notified(claimed(jobs))

    assert [state(job) for job in jobs] == [State.PROCESSING, State.DEPLOYING, *[State.PROCESSING] * 2]
    assert [job_of(job).fail_streak for job in jobs] == [0, 1, 0, 0]


def unreadable(job: Job, **fields: object) -> None:
    """As a later version, or a hand, may leave a row: no worker of this version can make an observation of it."""
    Job.objects.filter(pk=job.pk).update(order_reason="of_a_later_version", **fields)
    with pytest.raises(ValueError):
        observation.load(job.pk)


@pytest.mark.django_db
@pytest.mark.parametrize("hold", [hold_as_notified, hold_all])
def test_a_job_whose_row_cannot_be_read_is_backed_off_and_the_others_get_on(
    world: World, hold: Callable[[Sequence[leases.Lease]], bool]
) -> None:
    jobs = deployed(world, COUNT)
    for job in jobs:
        world.report(job, phase=Phase.PROCESSING)
    unreadable(jobs[0], fail_streak=reconcile.PERSISTENT_AFTER - 1)

    hold(claimed(jobs))

    assert [state(job) for job in jobs] == [State.DEPLOYING, *[State.PROCESSING] * (COUNT - 1)]
    assert not Job.objects.exclude(lease_token=None)
    assert job_of(jobs[0]).fail_streak == reconcile.PERSISTENT_AFTER
    assert jobs[0].events.get(reason="reconcile_failing").attempt == 1
    assert jobs[0].pk not in {lease.job_id for lease in leases.claim_due("w2", 9)}


@pytest.mark.django_db
def test_an_error_in_one_jobs_turn_costs_the_others_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that `hold` does not catch."""
    jobs = [world.submit() for _ in range(COUNT)]
    unreadable(jobs[0])
    monkeypatch.setattr(leases, "release_later", lambda *_: 1 / 0)

    hold_as_notified(claimed(jobs))

    assert [bool(job_of(job).lease_token) for job in jobs] == [True, *[False] * (COUNT - 1)]


@pytest.mark.django_db
def test_a_connection_that_breaks_leaves_the_others_due_for_any_worker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [world.submit() for _ in range(COUNT)]
    unreadable(jobs[0])

    def breaks(*_: object) -> None:
        raise OperationalError("server closed the connection unexpectedly")

    found = claimed(jobs)
    with monkeypatch.context() as broken:
        broken.setattr(leases, "release_later", breaks)
        with pytest.raises(OperationalError):
            hold_as_notified(found)
    assert [bool(job_of(job).lease_token) for job in jobs] == [True, *[False] * (COUNT - 1)]

    found = claimed(jobs[1:])
    with monkeypatch.context() as broken:
        broken.setattr(together, "load_all", breaks)
        with pytest.raises(OperationalError):
            hold_as_notified(found)
    assert {lease.job_id for lease in leases.claim_due("w2", 9)} == {job.pk for job in jobs[1:]}


@pytest.mark.django_db
def test_an_error_at_the_release_leaves_the_jobs_to_be_held_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [world.submit() for _ in range(COUNT)]
    monkeypatch.setattr(leases, "release_all", lambda *_: 1 / 0)

    hold_as_notified(claimed(jobs))

    assert not Job.objects.exclude(lease_token=None)
    assert {job_of(job).fail_streak for job in jobs} == {0}


def stopping(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(state=State.STOPPING)


def started_again(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(attempt=2)


@pytest.mark.django_db
@pytest.mark.parametrize("change", [taken_over, stopping, started_again])
def test_nothing_of_a_shared_move_is_written_if_one_job_changed(
    world: World, change: Callable[[Job], None]
) -> None:
    jobs = ended_unseen(world, COUNT)
    found = claimed(jobs)
    all_rows = observation.load_all([job.pk for job in jobs])
    _, seen = reconcile.noted(all_rows[jobs[0].pk], found[0], world.cluster.observe())
    move = decide(seen).move
    assert move is not None
    moves = moves_ahead(seen, move)
    assert len(moves) == 3
    change(jobs[-1])
    before = [history(job) for job in jobs]

    with pytest.raises(transitions.StaleJob):
        transitions.move_all([(all_rows[lease.job_id], lease) for lease in found], moves)

    assert [state(job) for job in jobs[:-1]] == [State.DEPLOYING] * (COUNT - 1)
    assert [history(job) for job in jobs] == before


@pytest.mark.django_db
def test_a_job_that_was_taken_over_meanwhile_holds_no_other_up(world: World) -> None:
    jobs = deployed(world, COUNT)
    for job in jobs:
        world.report(job, phase=Phase.PROCESSING)
    found = claimed(jobs)
    taken_over(jobs[0])

    hold_as_notified(found)

    assert [state(job) for job in jobs] == [State.DEPLOYING, *[State.PROCESSING] * (COUNT - 1)]


@pytest.mark.django_db
@pytest.mark.parametrize("hold", [hold_as_notified, hold_all])
def test_nothing_is_asked_of_the_cluster_for_a_job_whose_lease_was_lost(
    world: World, hold: Callable[[Sequence[leases.Lease]], bool]
) -> None:
    jobs = [world.running() for _ in range(2)]
    for job in jobs:
        world.request(job, Intent.CANCEL)
    Job.objects.update(state=State.STOPPING, stop_reason=StopReason.CANCEL_REQUESTED, stop_at=Now())
    found = claimed(jobs)
    taken_over(jobs[0])
    world.cluster.calls.clear()

    hold(found)

    assert {named for verb, named in world.cluster.calls if verb == "stop"} == {gang(jobs[1])}


@pytest.mark.django_db(transaction=True)
def test_a_locked_tenant_keeps_no_others_jobs_from_completing() -> None:
    with two_nodes() as world:
        jobs = of_tenants(world, 2)
        found = claimed(jobs)
        with locked(QUOTAS, jobs[0].tenant.pk):
            _, left = together.bring_on(found)

        assert {lease.job_id for lease in left} == {job.pk for job in jobs}
        for lease in left:
            reconcile.hold(lease)
        assert {state(job) for job in jobs} == {State.COMPLETED}
        assert invariants.violations() == []


@pytest.mark.django_db
def test_a_busy_cluster_is_said_of_every_job(world: World) -> None:
    jobs = deployed(world, COUNT)
    for job in jobs:
        world.report(job, phase=Phase.PROCESSING)
    world.cluster.fail_next("observe", ClusterBusy("It has much to do."), times=1 + COUNT)

    hold_as_notified(claimed(jobs))

    assert {job_of(job).reason_code for job in jobs} == {"cluster_busy"}
    assert not Job.objects.exclude(lease_token=None)


@pytest.mark.django_db(transaction=True)
def test_a_locked_row_is_not_waited_for_by_the_others() -> None:
    """The move and the release of the others are done while one job's row is locked by another transaction."""
    with two_nodes() as world:
        jobs = deployed(world, COUNT)
        for job in jobs:
            world.report(job, phase=Phase.PROCESSING)
        found = claimed(jobs)
        with locked(JOB, jobs[0].pk):
            wants_cycle, left = together.bring_on(found)

        assert jobs[0].pk in {lease.job_id for lease in left}
        assert state(jobs[0]) == State.DEPLOYING
        assert not wants_cycle
        for lease in left:
            reconcile.hold(lease)
        assert {state(job) for job in jobs} == {State.PROCESSING}
