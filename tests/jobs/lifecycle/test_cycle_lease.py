"""One worker at a time makes passes, by a row: no frozen worker, locked row or broken row stops the scheduling."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from gpu_scheduler.model import Placement, Start
from jobs import failpoints, invariants
from jobs.lifecycle import cycle, cycle_lease, leases, plan_effects
from jobs.lifecycle.cycle import STARTING_S
from jobs.lifecycle.ticker import Ticker
from jobs.models import Job, PeriodicTask, SchedulingLease, Worker
from jobs.selectors.installation import last_pass
from jobs.selectors.snapshot import database_now, snapshot
from jobs.states import State
from tests import factories
from tests.jobs.lifecycle.children import Served, frozen_child
from tests.jobs.lifecycle.locks import JOB, QUOTAS, locked
from tests.jobs.lifecycle.world import World, job_of, state, two_nodes, used

ROOT = Path(__file__).parents[3]
HELD = """
SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
WHERE locktype = 'advisory' AND datname = current_database()"""
"""The view has those of all databases of the server, among them those of tests that run beside this one."""


@pytest.fixture
def committed_world(transactional_db: None) -> Iterator[World]:
    """A world whose rows other connections see."""
    with two_nodes() as world:
        yield world


def taken_over(world: World) -> None:
    """As if the holder had been frozen for longer than its lease, and another worker had taken it."""
    world.elapse(60)
    with cycle_lease.held() as token:
        assert token is not None


@pytest.mark.parametrize("point", ["cycle.after_nodes_kept", "cycle.after_plan"])
def test_a_frozen_worker_keeps_the_cycle_for_one_lease_and_admits_nothing_after_it(
    world: World, point: str
) -> None:
    job = world.submit()

    def freeze(name: str) -> None:
        if name == point:
            failpoints.arm(None)
            assert cycle.run() == [], "while the lease lasts, no other worker makes a pass"
            taken_over(world)

    failpoints.arm(freeze)
    assert cycle.run() == []
    assert state(job) == State.QUEUED, "the frozen worker lost its lease, so it must not admit"
    assert not job.attempts.exists()
    assert cycle.run() == [job.pk]


@pytest.mark.fault
@pytest.mark.parametrize("point", ["cycle.after_plan", "admit.before_commit"])
def test_a_worker_that_is_stopped_amid_a_pass_delays_the_others_by_one_lease(
    committed_world: World, settings: Settings, point: str
) -> None:
    """Inside an admission, too, where it has rows locked."""
    settings.LUTHIER_LEASE_S = 1
    served = Served(committed_world.cluster)
    jobs = {committed_world.submit().pk for _ in range(2)}
    started: set[str] = set()
    try:
        with frozen_child(cycle.run, served, at=point):
            for _ in range(600):
                started |= set(cycle.run())
                if started == jobs:
                    break
                threading.Event().wait(0.1)
    finally:
        served.close()
    assert started == jobs
    assert last_pass().age_s is not None


def test_a_lease_that_was_taken_over_is_not_released_by_its_former_holder(world: World) -> None:
    with cycle_lease.held() as first:
        assert first is not None
        world.elapse(60)
        with cycle_lease.held() as second:
            assert second is not None
            with pytest.raises(cycle_lease.CycleTakenOver):
                cycle_lease.extend(first)
            cycle_lease.extend(second)
    assert SchedulingLease.objects.get().token is None


def test_a_clock_that_was_set_back_does_not_make_a_lease_longer(world: World) -> None:
    with cycle_lease.held() as first:
        assert first is not None
        world.elapse(-7200)
        with cycle_lease.held() as second:
            assert second is not None


def test_a_silent_workers_lease_is_free_before_it_ends(world: World, settings: Settings) -> None:
    settings.LUTHIER_LEASE_S = 600
    worker = leases.register_worker("silent")
    with cycle_lease.held() as first:
        assert first is not None
        with cycle_lease.held() as second:
            assert second is None
        world.elapse(30)
        with cycle_lease.held() as second:
            assert second is not None
    leases.deregister_worker(worker)


def test_a_pass_that_fails_leaves_its_problem_and_the_next_one_that_completes_removes_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> object:
        raise RuntimeError("a fault of ours")

    with monkeypatch.context() as patch:
        patch.setattr(cycle, "plan", broken)
        world.submit()
        with pytest.raises(RuntimeError):
            cycle.run()
    assert last_pass().problem == "RuntimeError: a fault of ours"
    assert last_pass().age_s is None
    cycle.run()
    assert last_pass().problem == ""
    assert last_pass().age_s is not None


# One row affects only itself


def test_a_locked_job_does_not_delay_the_start_of_another(committed_world: World) -> None:
    held, free = committed_world.submit(), committed_world.submit()
    with locked(JOB, held.pk):
        assert cycle.run() == [free.pk]
        assert last_pass().age_s is not None, "the pass completes"
    committed_world.elapse(2)
    assert cycle.run(request=False) == [held.pk], "it is tried again soon, without a request"


def test_a_locked_job_does_not_keep_the_reasons_of_others_from_being_written(committed_world: World) -> None:
    committed_world.running(learners=2, slots=4)
    held, other = committed_world.submit(), committed_world.submit()
    with locked(JOB, held.pk):
        cycle.run()
    assert job_of(other).reason_code == "QUOTA_GPUS"
    assert job_of(held).reason_code != "QUOTA_GPUS"
    cycle.run()
    assert job_of(held).reason_code == "QUOTA_GPUS"


def test_a_tenant_whose_quota_is_locked_delays_no_other_tenant(committed_world: World) -> None:
    mine = [committed_world.submit() for _ in range(2)]
    others = factories.job(of=factories.tenant(quotas={"cpu": 4}))
    with locked(QUOTAS, committed_world.tenant.pk):
        assert cycle.run() == [others.pk]
    committed_world.elapse(2)
    assert set(cycle.run(request=False)) == {job.pk for job in mine}


def test_the_wait_for_a_locked_tenant_is_not_the_time_of_others(
    committed_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its starts come first; when they are over, so is the time that a pass has for starts."""
    monkeypatch.setattr(cycle, "SHARED", 2)
    monkeypatch.setattr(cycle, "time", SimpleNamespace(monotonic=iter([0.0, 1.8 * STARTING_S]).__next__))
    mine = [start_of(committed_world.submit()) for _ in range(2)]
    others = start_of(factories.job(of=factories.tenant(quotas={"cpu": 4})))
    seen = snapshot(nodes=committed_world.cluster.nodes(), now=database_now(), broken={})
    with (
        locked(QUOTAS, committed_world.tenant.pk),
        cycle_lease.held() as token,
    ):
        assert token is not None
        assert cycle._admit_all(seen, [*mine, others], "memory", token, None, 0.0) == ((others,), [])


def test_a_job_whose_row_cannot_be_read_is_quarantined_and_the_others_start(world: World) -> None:
    broken, good = world.submit(), world.submit()
    broken.spec["resources"]["memory"] = "4 elephants"
    broken.save(update_fields=["spec"])
    assert cycle.run() == [good.pk]
    row = job_of(broken)
    assert (row.state, row.reason_code) == (State.QUEUED, "START_FAILED")
    assert "UnitError" in row.reason_message
    assert row.events.filter(reason="START_FAILED").count() == 1
    cycle.run()
    assert job_of(broken).events.filter(reason="START_FAILED").count() == 1, "it is left out for a while"


def test_a_running_job_whose_spec_cannot_be_read_keeps_its_slots(world: World) -> None:
    running = world.running(learners=2, slots=4)
    running.spec["resources"]["memory"] = "4 elephants"
    running.save(update_fields=["spec"])
    waits = world.submit(slots=4)
    assert cycle.run() == []
    assert job_of(waits).reason_code == "QUOTA_GPUS"


def test_a_start_that_fails_again_and_again_waits_longer_and_harms_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = world.submit()
    admit = plan_effects.admit_all

    def admit_or_fail(starts: Any, cluster: str, source: Any) -> None:
        admit(starts, cluster, source)
        if broken.pk in {start.job for start in starts}:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1/0")

    monkeypatch.setattr(cycle, "admit_all", admit_or_fail)
    waits = []
    for _ in range(3):
        good = world.submit()
        assert cycle.run() == [good.pk]
        row = job_of(broken)
        waits.append(row.reason_numbers["retry_s"])
        world.elapse(waits[-1] + 1)
        Job.objects.filter(pk=broken.pk).update(start_after=None)
    assert waits == [30, 60, 120]
    assert not broken.attempts.exists()
    monkeypatch.setattr(cycle, "admit_all", admit)
    assert cycle.run() == [broken.pk]


# Starts share commits


def start_of(job: Job) -> Start:
    return Start(job.pk, Placement("cpu", ("node-a",)))


def commits_of_starts() -> list[str]:
    """Counts the commits of starts from now on: one entry each."""
    seen: list[str] = []
    failpoints.arm(lambda name: seen.append(name) if name == "admit.before_commit" else None)
    return seen


def test_starts_of_any_tenants_share_commits_of_a_bounded_size(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle, "SHARED", 3)
    mine = [world.submit() for _ in range(4)]
    theirs = factories.job(of=factories.tenant(quotas={"cpu": 4}))
    mine.append(world.submit())
    commits = commits_of_starts()
    assert set(cycle.run()) == {theirs.pk} | {job.pk for job in mine}
    assert len(commits) == 2
    assert [job.events.filter(code="PLACED").count() for job in (*mine, theirs)] == [1] * 6
    assert (used(world.tenant), used(theirs.tenant)) == (5, 1)
    assert {job_of(job).tenant.jobs_used for job in mine} == {5}
    assert invariants.violations() == []


def test_many_starts_take_as_many_statements_as_two(world: World) -> None:
    def statements(count: int) -> int:
        jobs = [world.submit() for _ in range(count - 1)]
        jobs.append(factories.job(of=factories.tenant(quotas={"cpu": 4})))
        starts = [start_of(job) for job in jobs]
        with CaptureQueriesContext(connection) as seen:
            plan_effects.admit_all(starts, "memory")
        assert {state(job) for job in jobs} == {State.DEPLOYING}
        return len(seen.captured_queries)

    assert statements(2) == statements(4)


def test_a_locked_tenant_keeps_no_others_start_from_a_shared_commit(transactional_db: None) -> None:
    with two_nodes() as world:
        mine = world.submit()
        theirs = factories.job(of=factories.tenant(quotas={"cpu": 4}))
        with locked(QUOTAS, world.tenant.pk):
            assert cycle.run() == [theirs.pk]
        assert state(mine) == State.QUEUED
        assert used(theirs.tenant) == 1


def test_starts_that_together_exceed_a_limit_start_as_far_as_it_goes(world: World) -> None:
    """A plan knows limits; this is for one that was lowered since."""
    jobs = [world.submit() for _ in range(3)]
    starts = tuple(start_of(job) for job in jobs)
    world.tenant.quotas.filter(gpu_type="cpu").update(limit=2)
    with pytest.raises(plan_effects.NotAdmitted), transaction.atomic():
        plan_effects.admit_all(starts, "memory")
    seen = snapshot(nodes=world.cluster.nodes(), now=database_now(), broken={})
    with cycle_lease.held() as token:
        assert token is not None
        admitted, left = cycle._admit_all(seen, starts, "memory", token, None, time.monotonic())
    assert (admitted, left) == (starts[:2], [])
    assert used(world.tenant) == 2


def test_of_starts_that_shared_a_commit_only_the_one_that_fails_does_not_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [world.submit() for _ in range(4)]
    admit = plan_effects.admit_all

    def admit_or_refuse(starts: Any, cluster: str, source: Any) -> None:
        admit(starts, cluster, source)
        if jobs[2].pk in {start.job for start in starts}:
            raise plan_effects.NotAdmitted("a newer request")

    monkeypatch.setattr(cycle, "admit_all", admit_or_refuse)
    assert set(cycle.run()) == {job.pk for job in jobs} - {jobs[2].pk}
    assert (state(jobs[2]), jobs[2].attempts.count()) == (State.QUEUED, 0)
    assert [job.attempts.count() for job in jobs] == [1, 1, 0, 1]
    assert used(world.tenant) == 3


# Without anything that belongs to a session


def test_no_source_takes_a_lock_of_a_session() -> None:
    taken = [
        str(path.relative_to(ROOT))
        for room in ("jobs", "portal", "tenants")
        for path in (ROOT / room).rglob("*.py")
        if "migrations" not in path.parts
        and any(f"pg_{kind}advisory_lock" in path.read_text() for kind in ("", "try_"))
    ]
    assert taken == []


def test_a_worker_holds_no_lock_between_its_statements(transactional_db: None) -> None:
    with two_nodes() as world:
        job = world.submit()
        ticker = Ticker("test", tick_s=0.02)
        ticker.start()
        try:
            with connection.cursor() as cursor:
                for _ in range(6000):
                    cursor.execute(HELD)
                    assert cursor.fetchone()[0] == 0
                    if state(job) == State.DEPLOYING and PeriodicTask.objects.filter(done_at__isnull=False):
                        break
                    threading.Event().wait(0.01)
            assert Worker.objects.exists()
        finally:
            ticker.stop()
    assert state(job) == State.DEPLOYING
