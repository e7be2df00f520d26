"""Two workers on one job do no harm: without the lease nothing is written, and a dead one's jobs are taken over."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
from django.conf import settings
from django.db import connection
from django.db.models import DateTimeField
from django.db.models.functions import Now
from django.utils import timezone
from pytest_django import Settings

from jobs import failpoints
from jobs.lifecycle import cycle, leases, observation, periodic, reconcile, transitions
from jobs.lifecycle.facts import Move, Reason
from jobs.lifecycle.leases import Lease
from jobs.models import WORKER_SILENT_S, Attempt, ClusterNode, Job, Learner, Worker
from jobs.states import EventCode, Intent, State
from tests import factories
from tests.jobs.lifecycle.world import World, job_of, state

CANCEL = Move(State.CANCELED, Reason("cancel_requested", "Canceled."))


@pytest.mark.django_db
def test_a_lease_is_had_by_one() -> None:
    job = factories.job()
    first = leases.claim(job.pk, "w1")
    assert first is not None
    assert leases.claim(job.pk, "w2") is None
    assert leases.claim_due("w2", 10) == []
    assert leases.release(first, requeue_after_s=0, intent_gen=1)
    second = leases.claim(job.pk, "w2")
    assert second is not None
    assert second.token != first.token


@pytest.mark.django_db
def test_a_lease_that_ended_is_open_to_the_next_and_closed_to_the_first(world: World) -> None:
    job = world.submit()
    late = leases.claim(job.pk, "w1")
    rows = observation.load(job.pk)
    assert late is not None
    assert rows is not None
    world.elapse(11)
    assert leases.claim(job.pk, "w2") is not None
    with pytest.raises(transitions.StaleJob):
        transitions.move(rows, CANCEL, late)
    assert not leases.renew(late)
    assert not leases.release(late, requeue_after_s=5, intent_gen=1)
    assert leases.release_later(late, 5) is None
    assert state(job) == State.QUEUED
    assert job.events.count() == 1


@pytest.mark.django_db
def test_no_call_to_the_cluster_is_begun_on_a_lost_lease(world: World) -> None:
    """A worker froze between its claim and its launch; another one has the job by now."""
    job = world.submit()
    assert cycle.run() == [job.pk]
    late = leases.claim(job.pk, "w1")
    assert late is not None
    late.ends = time.monotonic() + reconcile.CALL_S / 2
    world.elapse(11)
    assert leases.claim(job.pk, "w2") is not None
    reconcile.hold(late)
    assert not world.cluster.listing()


@pytest.mark.django_db
def test_a_move_is_refused_once_the_job_has_moved_on(world: World) -> None:
    job = world.submit()
    lease = leases.claim(job.pk, "w1")
    rows = observation.load(job.pk)
    assert lease is not None
    assert rows is not None
    transitions.move(rows, CANCEL, lease)
    with pytest.raises(transitions.StaleJob):
        transitions.move(rows, CANCEL, lease)
    assert job.events.filter(to_state=State.CANCELED).count() == 1


@pytest.mark.django_db
def test_a_notification_while_a_worker_observes_is_not_lost(world: World) -> None:
    job = world.submit()
    lease = leases.claim(job.pk, "w1")
    assert lease is not None
    world.report(job)  # notifies
    leases.release(lease, requeue_after_s=300, intent_gen=1)
    assert [due.job_id for due in leases.claim_due("w2", 10)] == [job.pk]


@pytest.mark.django_db
def test_a_request_that_comes_while_a_job_is_settled_is_not_lost(world: World) -> None:
    job = world.submit(state=State.HALTED, intent=Intent.HALT)
    lease = leases.claim(job.pk, "w1")
    assert lease is not None
    world.request(job, Intent.RUN)
    assert not leases.release(lease, requeue_after_s=None, intent_gen=1)
    assert not job_of(job).settled


@pytest.mark.django_db
def test_a_settled_job_is_nobodys_business(world: World) -> None:
    job = world.submit(state=State.COMPLETED)
    world.settle()
    assert job_of(job).settled
    assert leases.claim(job.pk, "w1") is None


@pytest.mark.django_db
def test_a_job_on_which_the_platform_fails_backs_off_says_so_once_and_harms_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = world.submit(), world.submit()
    decide = reconcile.decide

    def decide_or_fail(seen: object) -> object:
        if seen.id == bad.pk:  # type: ignore[attr-defined]
            raise RuntimeError("a fault of ours")
        return decide(seen)  # type: ignore[arg-type]

    Job.objects.filter(pk=bad.pk).update(intent=Intent.CANCEL)
    monkeypatch.setattr(reconcile, "decide", decide_or_fail)
    world.settle()
    assert state(good) == State.DEPLOYING
    for _ in range(10):
        world.elapse(100)
        world.tick()
    sick = job_of(bad)
    assert sick.fail_streak == reconcile.PERSISTENT_AFTER
    assert sick.events.filter(reason="reconcile_failing").count() == 1
    assert sick.state == State.QUEUED
    monkeypatch.setattr(reconcile, "decide", decide)
    world.elapse(3600)
    world.settle()
    assert (state(bad), job_of(bad).fail_streak) == (State.CANCELED, 0)


@pytest.mark.django_db
def test_the_leases_of_a_worker_that_fell_silent_are_free_before_they_end(
    world: World, settings: Settings
) -> None:
    settings.LUTHIER_LEASE_S = 600
    job = factories.job()
    silent = Worker.objects.create(name="silent")
    assert leases.claim(job.pk, str(silent.pk)) is not None
    assert leases.claim_due("w2", 10) == []
    world.elapse(WORKER_SILENT_S + 1)
    assert [lease.job_id for lease in leases.claim_due("w2", 10)] == [job.pk]


@pytest.mark.django_db
def test_a_clock_that_was_set_back_two_hours_leaves_nothing_waiting_for_it(world: World) -> None:
    worker = leases.register_worker("w")
    job, leased = world.submit(), world.submit()
    periodic.run_due()
    assert leases.claim(leased.pk, "w2") is not None
    Job.objects.filter(pk=job.pk).update(start_after=Now() + timedelta(seconds=10))
    world.elapse(-7200)  # every time that was stored is two hours further off
    assert leases.keep_worker_alive(worker)

    assert {lease.job_id for lease in leases.claim_due("w1", 10)} == {job.pk, leased.pk}
    assert periodic.due() == set(periodic.TASKS)
    assert not Job.objects.filter(start_after__gt=Now()).exists()
    assert not Worker.objects.filter(seen_at__gt=Now()).exists()
    leases.deregister_worker(worker)


@pytest.mark.django_db
def test_what_runs_while_the_clock_is_set_back_neither_waits_for_it_nor_counts_less_than_nothing(
    world: World,
) -> None:
    worker = leases.register_worker("w")
    job = world.running()
    ClusterNode.objects.update(avoid_until=Now() + timedelta(seconds=60))
    world.exit(job)
    world.settle()
    assert state(job) == State.STORING
    world.elapse(-7200)
    assert leases.keep_worker_alive(worker)

    assert not ClusterNode.objects.filter(avoid_until__gt=Now()).exists()
    for row in (Attempt.objects.get(job=job.pk), Learner.objects.get(job=job.pk)):
        times = [field.attname for field in row._meta.fields if isinstance(field, DateTimeField)]
        assert {name for name in times if (at := getattr(row, name)) and at > timezone.now()} == set()
    waited, limit_s = 0, settings.LUTHIER_STORING_STALL_S
    while state(job) == State.STORING and waited < 2 * limit_s:
        world.elapse(300)
        waited += 300
        Learner.objects.filter(job=job.pk).update(
            last_seen_at=Now()
        )  # its agent is in contact, and sends nothing
        world.settle()
    assert limit_s <= waited <= limit_s + 600, "an upload that does not proceed"
    leases.deregister_worker(worker)


@pytest.mark.django_db
def test_an_attempt_that_ends_before_a_worker_notices_the_clock_counts_no_less_than_nothing(
    world: World,
) -> None:
    job = world.running()
    world.elapse(-7200)
    world.request(job, Intent.CANCEL)
    Job.objects.filter(pk=job.pk).update(next_reconcile_at=Now(), lease_until=None)
    world.settle()
    world.exit(job, 143)
    world.done(job)
    Job.objects.filter(pk=job.pk).update(next_reconcile_at=Now(), lease_until=None)
    world.settle()
    assert state(job) == State.CANCELED
    (released,) = job_of(job).events.filter(code=EventCode.GPUS_RETURNED)
    assert (released.numbers["seconds"], released.numbers["counted_seconds"]) == (0, 0)
    assert job_of(job).slot_seconds == job_of(job).running_s == 0


@pytest.mark.django_db
def test_a_database_error_that_one_jobs_rows_cause_backs_off_that_job_and_says_so(world: World) -> None:
    bad, good = world.submit(intent=Intent.CANCEL), world.submit(intent=Intent.CANCEL)

    def fail(point: str) -> None:
        if point == "move.before_commit" and not Job.objects.filter(pk=bad.pk, state=State.QUEUED).exists():
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1/0")

    failpoints.arm(fail)
    for _ in range(reconcile.PERSISTENT_AFTER):
        world.elapse(100)
        world.tick()
    failpoints.arm(None)
    assert (state(good), state(bad)) == (State.CANCELED, State.QUEUED)
    assert job_of(bad).fail_streak == reconcile.PERSISTENT_AFTER
    assert bad.events.filter(reason="reconcile_failing").count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_deregisters_leaves_no_row() -> None:
    worker = leases.register_worker("w")
    assert leases.owner() == str(worker)
    assert leases.keep_worker_alive(worker)
    leases.deregister_worker(worker)
    assert not Worker.objects.exists()
    assert not leases.keep_worker_alive(worker)
    assert leases.owner().startswith("process-")


@pytest.mark.django_db(transaction=True)
def test_many_workers_share_what_is_due_without_taking_a_job_twice() -> None:
    tenant = factories.tenant()
    owner = factories.member(tenant)
    jobs = {factories.job(owner=owner, of=tenant).pk for _ in range(60)}
    taken: list[str] = []
    start = threading.Barrier(6)

    def work(name: str) -> None:
        start.wait(60)
        while found := leases.claim_due(name, 7):
            taken.extend(lease.job_id for lease in found)
        connection.close()

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == len(set(taken))
    assert set(taken) == jobs


def test_a_change_on_the_cluster_makes_a_running_job_due_and_a_waiting_one_not(world: World) -> None:
    running, waiting = world.running(), world.submit()
    later = {"next_reconcile_at": Now() + timedelta(seconds=100)}
    Job.objects.update(**later)
    leases.make_due({running.pk: 0, waiting.pk: 0, "no-such-job": 0})
    due = Job.objects.filter(next_reconcile_at__lte=Now())
    assert list(due) == [running]
    Job.objects.update(**later)
    leases.make_due(None)
    assert list(due.all()) == [running]


@pytest.mark.django_db
def test_what_is_claimed_beside_a_notified_job_waits_for_no_gpus(world: World) -> None:
    """Thousands may wait: they are read by regular ticks, not for each notification."""
    running, notified, waiting = world.running(), world.submit(), world.submit()
    Job.objects.update(next_reconcile_at=Now())
    assert [lease.job_id for lease in leases.claim_with_due(notified.pk, "w1", 10)] == [
        notified.pk,
        running.pk,
    ]
    assert leases.claim_due("w1", 10, with_gpus=True) == []
    assert [(lease.job_id, lease.with_gpus) for lease in leases.claim_due("w1", 10)] == [(waiting.pk, False)]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("names_them", [True, False])
def test_a_change_of_a_job_whose_row_is_locked_keeps_no_other_waiting(names_them: bool) -> None:
    locked, free, waits = (
        factories.job(state=state) for state in (State.DEPLOYING, State.DEPLOYING, State.QUEUED)
    )
    Job.objects.update(next_reconcile_at=Now() + timedelta(seconds=100))
    ages_s = {job.pk: 0.0 for job in (locked, free, waits)} if names_them else None
    due = Job.objects.filter(next_reconcile_at__lte=Now())
    other = connection.copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT 1 FROM jobs_job WHERE id = %s FOR NO KEY UPDATE", [locked.pk])
        assert leases.make_due(ages_s) == {locked.pk}
        assert list(due) == [free]
        other.rollback()
    finally:
        other.close()
    assert leases.make_due(ages_s) == set()
    assert set(due.all()) == {free, locked}


def test_a_change_that_several_workers_report_costs_one_turn(world: World) -> None:
    """Of those that knew it before the turn began, as all of them watch the same cluster."""
    job = world.running()
    due = Job.objects.filter(pk=job.pk, next_reconcile_at__lte=Now())

    def change_known_since(age_s: float) -> bool:
        leases.make_due({job.pk: age_s})
        return due.exists()

    def look(requeue_after_s: float = 5) -> Lease:
        Job.objects.filter(pk=job.pk).update(next_reconcile_at=Now())
        lease = leases.claim(job.pk, "w1")
        assert lease is not None
        return lease

    lease = look()
    assert not change_known_since(60), "the turn that goes on sees it"
    assert change_known_since(-60), "it may have looked before"
    assert leases.release(lease, requeue_after_s=5, intent_gen=None)
    assert due.exists(), "so there is another turn"
    assert leases.release(look(), requeue_after_s=5, intent_gen=None)
    assert not change_known_since(60), "a turn that ended has seen it"
    assert change_known_since(-60)
    assert leases.release_all([(look(), 5, job_of(job).intent_gen)])
    assert not change_known_since(60)
    leases.hand_back(look())
    Job.objects.filter(pk=job.pk).update(next_reconcile_at=Now() + timedelta(seconds=100))
    assert change_known_since(60), "nothing was looked at"
    leases.release_later(look(), 100)
    assert change_known_since(60), "the turn failed"
    assert leases.release(look(), requeue_after_s=100, intent_gen=None, looked=False)
    assert change_known_since(60), "the cluster did not answer"


def test_a_change_counts_as_new_where_the_clock_was_set_back_since_the_last_turn(world: World) -> None:
    job = world.running()
    lease = leases.claim(job.pk, "w1")
    assert lease is not None
    assert leases.release(lease, requeue_after_s=100, intent_gen=None)
    Job.objects.update(lease_until=Now() + timedelta(seconds=settings.LUTHIER_LEASE_S + 5))
    leases.make_due({job.pk: 60})
    assert Job.objects.filter(pk=job.pk, next_reconcile_at__lte=Now()).exists()


def extended_turn(job: Job, *, after_look: bool) -> Lease:
    """A turn whose lease was extended twice, the last time before a look or after it."""
    Job.objects.filter(pk=job.pk).update(next_reconcile_at=Now())
    lease = leases.claim(job.pk, "w1")
    assert lease is not None
    for after in (not after_look, after_look):
        lease.ends = time.monotonic()
        reconcile._require(lease, after_look=after)
    return lease


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("after_look", [False, True])
def test_what_is_reported_before_a_lease_is_extended_is_seen_only_by_a_look_after_it(
    world: World, after_look: bool, together: bool
) -> None:
    """Either way the job has its pause if nothing was reported."""
    job = world.running()
    due = Job.objects.filter(pk=job.pk, next_reconcile_at__lte=Now())

    def release(lease: Lease) -> None:
        if together:
            assert leases.release_all([(lease, 100, job_of(job).intent_gen)])
        else:
            assert leases.release(lease, requeue_after_s=100, intent_gen=None)

    lease = extended_turn(job, after_look=after_look)
    leases.make_due({job.pk: 60})
    release(lease)
    assert due.exists() == after_look, "reported during the turn"

    release(extended_turn(job, after_look=after_look))
    assert not due.exists(), "it has its pause"
    leases.make_due({job.pk: 60})
    assert due.exists() == after_look, "reported during the turn, and noted after it"


@pytest.mark.django_db
def test_a_claim_takes_no_more_than_it_asks_for_however_the_database_plans_it() -> None:
    """A subquery with a limit that is looked at again for each row finds others each time: those before are taken."""
    for _ in range(40):
        factories.job(next_reconcile_at=Now())
    with connection.cursor() as cursor:
        for kind in ("hashjoin", "mergejoin", "hashagg", "sort", "material"):
            cursor.execute(f"SET LOCAL enable_{kind} = off")
    assert [len(leases.claim_due("w1", 16)) for _ in range(4)] == [16, 16, 8, 0]
