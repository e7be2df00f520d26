"""Waits are explained and starts are made, whatever else takes long: launches, starts, or a pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.db.models.functions import Now

from gpu_scheduler.clusters.base import GangSpec, LaunchRefused, RefusalCode
from gpu_scheduler.clusters.memory import MemoryCluster
from gpu_scheduler.model import Node
from jobs import clusters, wake
from jobs.lifecycle import cycle, cycle_thread, leases
from jobs.lifecycle import ticker as ticker_module
from jobs.lifecycle.cycle_thread import CycleThread
from jobs.lifecycle.ticker import THREADS, Ticker
from jobs.models import Attempt, Job, PeriodicTask, Worker
from jobs.selectors.installation import workers_alive
from jobs.states import State
from tests import factories
from tests.jobs.lifecycle.test_ticker import wait_for
from tests.jobs.lifecycle.world import job_of, state

SLOTS = 2 * THREADS


class SlowCluster(MemoryCluster):
    """One whose launches last until they may go on."""

    def __init__(self) -> None:
        super().__init__([Node.with_slots("node-a", "cpu", SLOTS)])
        self.go_on = threading.Event()
        self.begun: list[str] = []

    def launch(self, spec: GangSpec) -> None:
        self.begun.append(spec.job)
        assert self.go_on.wait(120)
        super().launch(spec)


@contextmanager
def ticking(cluster: SlowCluster, *, tick_s: float, **work: bool) -> Iterator[Ticker]:
    clusters.use(cluster)
    running = Ticker("test", tick_s=tick_s, **work)
    running.start()
    try:
        yield running
    finally:
        cluster.go_on.set()
        running.stop()
        clusters.use(None)


def submitter() -> Callable[[], Job]:
    tenant = factories.tenant(quotas={"cpu": SLOTS})
    alice = factories.member(tenant)
    return lambda: factories.job(owner=alice, of=tenant)


def launched(job: Job) -> bool:
    return Attempt.objects.filter(job=job).exclude(launched_at=None).exists()


def test_a_wait_is_explained_while_all_threads_launch_what_the_last_pass_started(
    transactional_db: None,
) -> None:
    submit, slow = submitter(), SlowCluster()
    jobs = [submit() for _ in range(SLOTS)]
    with ticking(slow, tick_s=0.05):
        wait_for(lambda: slow.begun and {state(job) for job in jobs} == {State.DEPLOYING})
        late = submit()
        wait_for(lambda: job_of(late).reason_code == "QUOTA_GPUS")
        assert not any(launched(job) for job in jobs), "none of the launches has ended"
        slow.go_on.set()
        wait_for(lambda: all(launched(job) for job in jobs))


def test_what_a_requested_pass_starts_is_launched_without_a_tick(transactional_db: None) -> None:
    submit, quick = submitter(), SlowCluster()
    quick.go_on.set()
    with ticking(quick, tick_s=3600) as ticker:
        first = submit()
        ticker_module.request_cycle()
        wait_for(lambda: launched(first))
        many = [submit() for _ in range(5)]
        ticker.request_cycle()
        wait_for(lambda: all(launched(job) for job in many))


def test_a_refused_launch_lands_though_no_pass_waits_for_it(transactional_db: None) -> None:
    submit, refusing = submitter(), SlowCluster()
    refusing.go_on.set()
    refusing.fail_next("launch", LaunchRefused("no such image", code=RefusalCode.IMAGE_ERROR))
    with ticking(refusing, tick_s=0.05):
        job = submit()
        wait_for(lambda: state(job) == State.FAILED)
    assert "no such image" in job_of(job).reason_message


def test_a_worker_that_stops_leaves_what_it_started_to_others_at_once(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of each thread waits for the cluster; those of the others that a pass started are held by none."""
    claim = leases.claim_due

    def of_others(owner: str, *rest: Any, **more: Any) -> list[leases.Lease]:
        """No tick of this worker claims any."""
        return claim(owner, *rest, **more) if owner == "w2" else []

    monkeypatch.setattr(leases, "claim_due", of_others)
    monkeypatch.setattr(ticker_module.together, "SHARED", 1)
    submit, slow = submitter(), SlowCluster()
    jobs = {submit().pk for _ in range(SLOTS)}
    with ticking(slow, tick_s=3600) as ticker:
        wait_for(lambda: len(slow.begun) == THREADS)
        wait_for(lambda: {state(Job(pk=job)) for job in jobs} == {State.DEPLOYING})
        waiting = jobs - set(slow.begun)
        assert not Job.objects.filter(pk__in=waiting).exclude(lease_token=None)
        stopping = threading.Thread(target=ticker.stop)
        stopping.start()
        wait_for(ticker._over.is_set)
        assert waiting <= {lease.job_id for lease in leases.claim_due("w2", 99)}
        slow.go_on.set()
        stopping.join(60)
    assert set(slow.begun) == jobs - waiting


def test_a_cycle_that_does_not_come_back_is_replaced(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch, settings: LazySettings
) -> None:
    settings.LUTHIER_LEASE_S = 0.05
    begun: list[str] = []
    go_on = threading.Event()

    def hangs_first(*, request: bool) -> list[str]:
        begun.append(threading.current_thread().name)
        if len(begun) == 1:
            assert go_on.wait(60)
        return []

    monkeypatch.setattr(cycle, "run", hangs_first)
    monkeypatch.setattr(cycle, "due_in_s", lambda: 60.0)
    thread = CycleThread(lambda started: None)

    def another_began() -> bool:
        thread.start()
        return len(begun) > 1

    thread.start()
    wait_for(lambda: begun)
    hung = thread._thread
    try:
        wait_for(another_began)
        assert thread._thread is not hung
    finally:
        go_on.set()
        thread.stop(60)
    assert hung is not None
    hung.join(60)
    assert not hung.is_alive(), "it ends once it comes back"


def test_a_failed_cycle_is_made_again(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch, settings: LazySettings
) -> None:
    settings.LUTHIER_TICK_S = 0.02
    made: list[bool] = []

    def fails_first(*, request: bool) -> Sequence[str]:
        made.append(request)
        if len(made) == 1:
            raise ValueError("a defect")
        return []

    monkeypatch.setattr(cycle, "run", fails_first)
    monkeypatch.setattr(cycle, "due_in_s", lambda: 60.0)
    thread = CycleThread(lambda started: None)
    thread.start()
    try:
        wait_for(lambda: len(made) > 1)
    finally:
        thread.stop(60)
    made.clear()
    thread.start()
    thread.request()
    assert made == [], "a stopped thread does not begin again"


@pytest.fixture
def hints(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What is sent by the broker."""
    sent: list[tuple[str, ...]] = []
    monkeypatch.setattr(wake, "_send", lambda task, args: sent.append((task.rpartition(".")[2], *args)))
    wake._cycle_notifier.reset()
    return sent


def test_a_worker_that_only_plans_starts_jobs_and_leaves_them_to_others(
    transactional_db: None, hints: list[tuple[str, ...]]
) -> None:
    submit, quick = submitter(), SlowCluster()
    quick.go_on.set()
    jobs = [submit() for _ in range(3)]
    with ticking(quick, tick_s=0.02, brings_on=False):
        wait_for(lambda: {state(job) for job in jobs} == {State.DEPLOYING})
        wait_for(lambda: hints)
        ticks = Worker.objects.get().seen_at
        wait_for(lambda: Worker.objects.get().seen_at > ticks)
    assert workers_alive(60) == 0
    ((task, job),) = hints
    assert task == "reconcile_job"
    assert job in {job.pk for job in jobs}
    assert quick.begun == []
    assert {lease.job_id for lease in leases.claim_due("another", 99)} == {job.pk for job in jobs}


def test_a_worker_that_brings_jobs_on_leaves_passes_to_others(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch, hints: list[tuple[str, ...]]
) -> None:
    """Once one has been completed at all. What it wants is requested, and sent to who makes passes."""
    monkeypatch.setattr(cycle, "OVERDUE_S", 3600.0)
    PeriodicTask.objects.create(name=PeriodicTask.CYCLE, next_at=Now() + timedelta(hours=1), done_at=Now())
    submit, quick = submitter(), SlowCluster()
    with ticking(quick, tick_s=0.02, plans=False):
        job = submit()
        wait_for(lambda: ("run_cycle",) in hints)
        wait_for(lambda: cycle.due_in_s() <= 0)
        ticks = Worker.objects.get().seen_at
        wait_for(lambda: Worker.objects.get().seen_at > ticks)
        assert state(job) == State.QUEUED


@pytest.mark.parametrize("done_at", [None, Now()])
def test_a_pass_that_no_worker_makes_is_made_by_any(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch, hints: list[tuple[str, ...]], done_at: Now | None
) -> None:
    """As if one was never completed, too: a start waits for no second process."""
    monkeypatch.setattr(cycle, "OVERDUE_S", 0.05 if done_at else 3600.0)
    monkeypatch.setattr(cycle_thread, "LOOK_S", 0.02)
    PeriodicTask.objects.create(name=PeriodicTask.CYCLE, next_at=Now(), done_at=done_at)
    submit, quick = submitter(), SlowCluster()
    quick.go_on.set()
    job = submit()
    with ticking(quick, tick_s=0.02, plans=False):
        wait_for(lambda: launched(job))


@pytest.mark.parametrize("starts_in", [1, 3])
def test_a_worker_that_helps_makes_one_pass_and_leaves_the_next_to_others(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch, hints: list[tuple[str, ...]], starts_in: int
) -> None:
    """Whatever is requested meanwhile: else a worker that took over once in a flood would keep the cycle."""
    dropped: list[bool] = []
    monkeypatch.setattr(wake, "drop_cycle_hints", lambda: dropped.append(True))
    made: list[object] = []

    def one_pass(token: object) -> list[str]:
        made.append(token)
        cycle.request_pass()
        return ["a job"] if len(made) == starts_in else []

    monkeypatch.setattr(cycle, "one_pass", one_pass)
    PeriodicTask.objects.create(name=PeriodicTask.CYCLE, next_at=Now() - timedelta(hours=1), done_at=Now())
    worker = leases.register_worker("helper")
    assert worker
    started: list[Sequence[str]] = []
    helper = CycleThread(started.append, helps=True)
    assert cycle_thread.LOOK_S <= helper._make_passes(requested=True) <= cycle.OVERDUE_S
    assert (len(made), dropped, hints) == (1, [True], [])
    assert started == ([["a job"]] if starts_in == 1 else [])
    assert 0 < cycle.overdue_in_s() <= cycle.OVERDUE_S
    assert helper._make_passes(requested=True) >= cycle_thread.LOOK_S
    assert (len(made), hints) == (1, [("run_cycle",)])


def test_what_is_requested_during_a_pass_is_one_pass_more(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often, and in whichever way."""
    thread = CycleThread(lambda _: None)
    made: list[int] = []

    def one_pass(token: object) -> list[str]:
        made.append(len(made))
        if len(made) == 1:
            cycle.request_pass()
            thread.request()
            thread.request()
            return ["a job"]
        return []

    monkeypatch.setattr(cycle, "one_pass", one_pass)
    monkeypatch.setattr(thread, "_goes_on", lambda: True)
    leases.register_worker("scheduler")
    thread._make_passes(requested=True)
    assert len(made) == 2
    assert not thread._wanted.is_set()
