"""Quota is never oversubscribed, whatever is submitted, started, ended and changed at the same time."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import F
from pytest_django import Settings

from gpu_scheduler.clusters.memory import MemoryCluster
from gpu_scheduler.model import Node, Placement, Start
from jobs import clusters, failpoints, invariants
from jobs.lifecycle import leases, observation, plan_effects, transitions
from jobs.lifecycle.facts import Move, Reason
from jobs.models import Attempt, Job
from jobs.states import Intent, State, StopReason
from tenants.models import Quota, Tenant
from tests import factories
from tests.jobs.lifecycle.world import World, job_of, state, used

SECONDS = 60 if os.environ.get("LUTHIER_LONG") else 20
THREADS = 64
TIMEOUT_S = 120

R = TypeVar("R")


def start_of(job: Job, node: str = "node-a") -> Start:
    return Start(job.pk, Placement("cpu", (node,) * job.learners))


@pytest.mark.django_db
def test_an_admission_takes_all_slots_of_the_gang_or_none(world: World) -> None:
    Quota.objects.update(limit=3)
    small, large = world.submit(learners=2), world.submit(learners=2)
    with transaction.atomic():
        plan_effects.admit_all([start_of(small)], "memory")
    with pytest.raises(plan_effects.NotAdmitted, match="quota"), transaction.atomic():
        plan_effects.admit_all([start_of(large)], "memory")
    assert used(world.tenant) == 2
    assert (state(large), job_of(large).attempt) == (State.QUEUED, 0)
    assert large.events.count() == 1
    assert not large.attempts.exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "change", [{"intent": Intent.HALT}, {"intent": Intent.CANCEL}, {"state": State.HALTED}]
)
def test_a_request_that_came_after_the_snapshot_stops_the_start(world: World, change: dict[str, str]) -> None:
    job = world.submit()
    Job.objects.filter(pk=job.pk).update(**change)
    with pytest.raises(plan_effects.NotAdmitted, match="no longer waits"), transaction.atomic():
        plan_effects.admit_all([start_of(job)], "memory")
    assert used(world.tenant) == 0
    assert not job.attempts.exists()


@pytest.mark.django_db
def test_no_row_of_quota_means_none(world: World) -> None:
    Quota.objects.all().delete()
    with pytest.raises(plan_effects.NotAdmitted), transaction.atomic():
        plan_effects.admit_all([start_of(world.submit())], "memory")


@pytest.mark.django_db
def test_the_limit_of_live_jobs_and_a_suspension_hold_at_the_last_moment(world: World) -> None:
    job = world.submit()
    for change in ({"jobs_limit": 0}, {"jobs_limit": None, "state": "suspended"}):
        Tenant.objects.filter(pk=world.tenant.pk).update(**change)
        with pytest.raises(plan_effects.NotAdmitted, match="suspended or at its limit"), transaction.atomic():
            plan_effects.admit_all([start_of(job)], "memory")
    assert used(world.tenant) == 0


@pytest.mark.django_db
@pytest.mark.parametrize(
    "point", ["admit.after_move", "admit.after_quota", "admit.after_rows", "admit.before_commit"]
)
def test_a_database_error_during_the_check_admits_nothing(world: World, point: str) -> None:
    job = world.submit(learners=2)

    def fail(name: str) -> None:
        if name == point:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 / 0")

    failpoints.arm(fail)
    world.tick()
    failpoints.arm(None)
    assert (state(job), used(world.tenant)) == (State.QUEUED, 0)
    assert job_of(job).reason_code == "START_FAILED"
    assert not Attempt.objects.exists()
    assert invariants.violations() == []
    world.elapse(31)
    world.settle()
    assert state(job) == State.DEPLOYING


@pytest.mark.django_db
def test_a_limit_below_use_stops_nothing_and_starts_nothing(world: World) -> None:
    running = world.running(slots=4)
    Quota.objects.update(limit=2)
    waiting = world.submit()
    world.settle()
    assert (state(running), state(waiting)) == (State.PROCESSING, State.QUEUED)
    assert used(world.tenant) == 4


@pytest.fixture
def big_cluster(transactional_db: None) -> Iterator[MemoryCluster]:
    """A cluster that is never the bottleneck: only quota holds anybody back."""
    cluster = MemoryCluster([Node.with_slots(f"node-{n}", "cpu", 64) for n in range(8)])
    clusters.use(cluster)
    yield cluster
    clusters.use(None)


@pytest.mark.fault
@pytest.mark.timeout(300)
def test_64_threads_that_submit_start_and_end_jobs_never_hold_a_slot_too_many(
    big_cluster: MemoryCluster, settings: Settings
) -> None:
    """Each thread admits by itself, without the cycle's lock: the worst that many schedulers at once could do."""
    settings.LUTHIER_LEASE_S = 600  # a thread that a busy machine holds up still has its job
    tenants = [factories.tenant(quotas={"cpu": 6}) for _ in range(4)]
    owners = {tenant.pk: factories.member(tenant) for tenant in tenants}
    over = time.monotonic() + SECONDS
    faults: list[BaseException] = []
    counted = {"started": 0, "refused": 0, "ended": 0, "looks": 0, "again": 0}
    lock = threading.Lock()

    def count(what: str) -> None:
        with lock:
            counted[what] += 1

    def until_done(step: Callable[[], R]) -> R:
        """As the cycle and the workers do: what a busy database broke off changed nothing and is tried again."""
        while True:
            try:
                return step()
            except OperationalError:
                if time.monotonic() > over + TIMEOUT_S:
                    raise
                count("again")

    def submit(dice: random.Random) -> Job:
        tenant = dice.choice(tenants)
        with transaction.atomic():
            return factories.job(owner=owners[tenant.pk], of=tenant, learners=dice.randint(1, 3))

    def start(job: Job, node: str) -> None:
        with transaction.atomic():
            plan_effects.admit_all([start_of(job, node)], "memory")

    def take(job: Job, move: Move) -> None:
        lease = until_done(lambda: leases.claim(job.pk, "w"))
        rows = until_done(lambda: observation.load(job.pk))
        assert lease is not None
        assert rows is not None
        until_done(lambda: transitions.move(rows, move, lease))
        until_done(lambda: leases.release(lease, requeue_after_s=100, intent_gen=1))

    def one_job(dice: random.Random) -> None:
        job = until_done(lambda: submit(dice))
        node = f"node-{dice.randrange(8)}"
        try:
            until_done(lambda: start(job, node))
        except plan_effects.NotAdmitted:
            count("refused")
            return
        count("started")
        take(job, Move(State.STOPPING, Reason("preempted", "Stopped."), StopReason.PREEMPTED))
        take(job, Move(State.CANCELED, Reason("cancel_requested", "Over.")))
        count("ended")

    def worker(seed: int) -> None:
        dice = random.Random(seed)
        _until(over, faults, lambda: one_job(dice))

    def watcher() -> None:
        def look() -> None:
            count("looks")
            assert not until_done(Quota.objects.filter(used__gt=F("limit")).exists), "a slot too many"
            assert until_done(invariants.violations) == []

        _until(over, faults, look)

    threads = [threading.Thread(target=worker, args=(seed,)) for seed in range(THREADS)]
    threads.append(threading.Thread(target=watcher))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert invariants.violations() == []
    assert not Quota.objects.exclude(used=0).exists()
    assert counted["started"] == counted["ended"] > 50
    assert counted["refused"] > 0, "the limit was never reached, so nothing was proved"
    print(counted)


def _until(over: float, faults: list[BaseException], work: Callable[[], None]) -> None:
    try:
        while time.monotonic() < over and not faults:
            work()
    except BaseException as fault:
        faults.append(fault)
    finally:
        connection.close()
