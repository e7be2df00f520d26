"""The ticker makes it certain: no message, no broker, a killed worker, a database that went away for a moment."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.conf import settings
from django.db import OperationalError, connection
from django.db.models.functions import Now

from gpu_scheduler.clusters.memory import MemoryCluster
from gpu_scheduler.model import Node
from jobs import clusters
from jobs.lifecycle import leases, periodic
from jobs.lifecycle import ticker as ticker_module
from jobs.lifecycle.ticker import BATCH, MAX_CHANGED, ChangedGangs, Ticker
from jobs.models import Job, Learner, PeriodicTask, Worker
from jobs.states import Phase, State
from jobs.tasks import TickerStep, reconcile_job, run_cycle
from portal.celery import app
from tests import factories
from tests.jobs.lifecycle.world import job_of, state

ROOT = Path(__file__).parents[3]


def wait_for(look: Callable[[], object], within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not look():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def ticker(transactional_db: None) -> Iterator[Ticker]:
    clusters.use(MemoryCluster([Node.with_slots("node-a", "cpu", 4)]))
    running = Ticker("test", tick_s=0.05)
    running.start()
    yield running
    running.stop()
    clusters.use(None)


def test_a_job_is_deployed_by_the_ticker_alone(ticker: Ticker) -> None:
    job = factories.job()
    wait_for(lambda: state(job) == State.DEPLOYING and job.attempts.get().launched_at)
    Learner.objects.filter(job=job).update(phase=Phase.PROCESSING)
    wait_for(lambda: state(job) == State.PROCESSING)
    assert Worker.objects.get().name == "test"
    wait_for(
        lambda: set(PeriodicTask.objects.values_list("name", flat=True)) == set(periodic.TASKS) | {"cycle"}
    )


def test_a_task_that_takes_long_does_not_look_like_a_stopped_platform(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notes that the platform runs go on meanwhile."""
    begun, end = threading.Event(), threading.Event()

    def long(_: dict[str, Any]) -> dict[str, Any]:
        begun.set()
        assert end.wait(60)
        return {}

    monkeypatch.setattr(
        periodic, "TASKS", {"tidy": (3600.0, long), periodic.NOTICE: periodic.TASKS[periodic.NOTICE]}
    )
    clusters.use(MemoryCluster([]))
    running = Ticker("test", tick_s=0.05)
    running.start()
    try:
        assert begun.wait(60)
        notice = PeriodicTask.objects.filter(name=periodic.NOTICE)
        wait_for(lambda: notice.exclude(done_at=None).exists())
        before = notice.get().done_at
        notice.update(next_at=Now())
        wait_for(lambda: notice.get().done_at > before)
    finally:
        end.set()
        running.stop()
        clusters.use(None)


def test_a_tick_looks_only_at_tasks_that_are_due(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at one is a commit."""
    claimed: list[str] = []
    claim = periodic._claim
    monkeypatch.setattr(
        periodic, "_claim", lambda name, every_s: claimed.append(name) or claim(name, every_s)
    )
    PeriodicTask.objects.bulk_create(
        PeriodicTask(name=name, next_at=Now() + timedelta(hours=1)) for name in periodic.TASKS
    )
    PeriodicTask.objects.filter(name="tidy").update(next_at=Now())
    clusters.use(MemoryCluster([]))
    running = Ticker("test", tick_s=0.05)
    running.start()
    try:
        wait_for(lambda: PeriodicTask.objects.get(name="tidy").done_at)
    finally:
        running.stop()
        clusters.use(None)
    assert claimed == ["tidy"]


def test_a_ticker_that_stops_leaves_no_registration(ticker: Ticker) -> None:
    wait_for(Worker.objects.exists)
    ticker.stop()
    assert not Worker.objects.exists()


def test_a_ticker_whose_connection_was_cut_sits_down_again(ticker: Ticker) -> None:
    wait_for(Worker.objects.exists)
    first = Worker.objects.get().pk
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
    wait_for(lambda: Worker.objects.filter(pk__gt=first).exists())
    job = factories.job()
    wait_for(lambda: state(job) == State.DEPLOYING)


def test_while_more_is_due_the_threads_do_not_wait_for_the_next_tick(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst of jobs on a platform that is otherwise idle; without it, a worker would do BATCH a tick."""
    jobs = {factories.job(next_reconcile_at=Now()).pk for _ in range(2 * BATCH + 1)}
    held: list[str] = []

    def take(claimed: list[leases.Lease]) -> tuple[bool, list[leases.Lease]]:
        held.extend(lease.job_id for lease in claimed)
        return False, []

    monkeypatch.setattr(ticker_module.together, "bring_on", take)
    # A pass, or a periodic task, locks rows for a moment, and a claim leaves those to the next tick: it is far away.
    monkeypatch.setattr(ticker_module.cycle, "run", lambda *, request: [])
    monkeypatch.setattr(periodic, "due", lambda *_: set())
    clusters.use(MemoryCluster([]))
    running = Ticker("test", tick_s=3600)
    running.start()
    try:
        wait_for(lambda: set(held) == jobs)
    finally:
        running.stop()
        clusters.use(None)


@pytest.mark.parametrize("without_gpus", [State.QUEUED, State.HALTED])
def test_jobs_without_gpus_are_looked_at_by_regular_ticks_unless_many_of_them_are_due(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch, without_gpus: State
) -> None:
    looks: list[bool] = []
    claim = leases.claim_due

    def count(owner: str, batch: int, *, with_gpus: bool) -> list[leases.Lease]:
        looks.append(not with_gpus)
        return claim(owner, batch, with_gpus=with_gpus)

    monkeypatch.setattr(ticker_module.leases, "claim_due", count)
    only_work(monkeypatch)
    for _ in range(BATCH + 1):
        factories.job(next_reconcile_at=Now(), state=without_gpus)
    running = Ticker("test", tick_s=3600)
    try:
        for _ in range(4):
            running.tick()
    finally:
        running.stop()
        clusters.use(None)
    assert looks == [True, True, False, False]


def test_while_the_scheduling_cycle_runs_the_worker_takes_up_more(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every batch wants a pass, and the pass lasts: with the jobs of two of them counted until then, none would be
    claimed."""
    jobs = {factories.job(next_reconcile_at=Now()).pk for _ in range(3 * BATCH)}
    held: list[str] = []
    end = threading.Event()

    def take(claimed: list[leases.Lease]) -> tuple[bool, list[leases.Lease]]:
        held.extend(lease.job_id for lease in claimed)
        return True, []

    def lasts(*, request: bool) -> list[str]:
        assert end.wait(60)
        return []

    monkeypatch.setattr(ticker_module.together, "bring_on", take)
    monkeypatch.setattr(ticker_module.cycle, "run", lasts)
    monkeypatch.setattr(periodic, "due", lambda *_: set())
    monkeypatch.setattr(ticker_module.cycle, "has_new", lambda: False)
    clusters.use(MemoryCluster([]))
    running = Ticker("test", tick_s=3600)
    running.start()
    try:
        wait_for(lambda: set(held) == jobs)
    finally:
        end.set()
        running.stop()
        clusters.use(None)


def only_work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the jobs that are worked on alone, which is only written down."""
    held: list[str] = []
    monkeypatch.setattr(ticker_module.reconcile, "hold", lambda lease: held.append(lease.job_id))
    monkeypatch.setattr(ticker_module.cycle, "run", lambda *, request: [])
    clusters.use(MemoryCluster([]))
    return held


def test_a_worker_that_stops_hands_back_what_must_be_worked_on_alone(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        factories.job(next_reconcile_at=Now())
    begun = threading.Event()
    held = only_work(monkeypatch)
    running = Ticker("test", tick_s=3600)

    def take(claimed: list[leases.Lease]) -> tuple[bool, list[leases.Lease]]:
        begun.set()
        wait_for(running._over.is_set)
        return False, claimed

    monkeypatch.setattr(ticker_module.together, "bring_on", take)
    running.start()
    try:
        assert begun.wait(60)
    finally:
        running.stop()
        clusters.use(None)

    assert held == []
    assert not Job.objects.exclude(lease_token=None)
    assert len(leases.claim_due("w2", 9)) == 3


def test_work_that_comes_after_the_threads_have_ended_is_left_to_other_workers(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        factories.job(next_reconcile_at=Now())
    held = only_work(monkeypatch)
    monkeypatch.setattr(ticker_module.together, "bring_on", lambda claimed: (False, claimed))
    stopped, turn = Ticker("test"), threading.Lock()
    stopped._pool.shutdown()

    stopped._in_turn(turn, lambda: None)
    stopped._hold_all(leases.claim_due("w1", 9))
    stopped.tick()

    assert not turn.locked()
    assert stopped._pending == 0
    assert held == []
    assert not Job.objects.exclude(lease_token=None)
    clusters.use(None)


def test_changed_gangs_that_are_not_taken_become_all_gangs() -> None:
    changed = ChangedGangs()
    for number in range(MAX_CHANGED + 1):
        changed.add({f"job-{number}-1", "job-again-1"})
    assert len(changed._at) == 0
    assert changed.take() is None
    changed.add({"job-x-1"})
    assert list(changed.take() or {}) == ["x"]
    assert changed.take() == {}


def test_of_the_gangs_of_a_job_the_last_change_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn may have begun between the two: it has not seen the second one. What is put back is no news."""
    changed = ChangedGangs()
    for at, name in ((100.0, "job-x-2"), (107.0, "job-x-1")):
        monkeypatch.setattr("jobs.lifecycle.ticker.time.monotonic", lambda at=at: at)
        changed.add({name})
    changed.put_back({"x": 105.0, "y": 104.0})
    assert changed.take() == {"x": 107.0, "y": 104.0}
    changed.put_back({"x": 107.0})
    changed.put_back(None)
    assert changed.take() is None


@pytest.fixture
def reporting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ticker]:
    """A worker to which a change of the job x was just reported."""
    clusters.use(MemoryCluster([]))
    ticker = Ticker("test")
    ticker._changed_gangs.add({"job-x-1"})
    yield ticker
    ticker.stop()
    clusters.use(None)


@pytest.mark.django_db
def test_what_cannot_be_made_due_is_left_for_the_next_tick_and_costs_this_one_nothing(
    reporting: Ticker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ages: list[float] = []
    claims: list[int] = []
    answers: list[Exception | set[str]] = [OperationalError("the database fails"), {"x"}, set()]

    def make_due(ages_s: dict[str, float]) -> set[str]:
        ages.append(ages_s.pop("x"))
        assert not ages_s
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(leases, "make_due", make_due)
    monkeypatch.setattr(leases, "claim_due", lambda owner, batch, **_: claims.append(batch) or [])
    with pytest.raises(OperationalError):
        reporting.tick()
    assert len(claims) == 1, "it takes up what is due all the same"
    for _ in range(3):
        reporting.tick()
    assert answers == [], "it is tried again after the failure, and after the lock"
    assert len(claims) == 4
    assert ages == sorted(ages), "known for longer each time"


@pytest.mark.django_db
def test_a_tick_takes_up_the_jobs_of_which_the_cluster_has_just_reported(
    reporting: Ticker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else another worker that takes them up is followed by a turn for the same change."""
    done: list[str] = []
    monkeypatch.setattr(leases, "make_due", lambda ages_s: done.extend(ages_s) or set())
    monkeypatch.setattr(leases, "claim_due", lambda owner, batch, **_: done.append("claim") or [])
    reporting.tick()
    assert done == ["x", "claim"]


@pytest.mark.parametrize(
    ("queues", "brings_on", "plans"),
    [(None, True, True), (["luthier"], True, False), (["luthier.passes"], False, True)],
)
def test_what_a_worker_does_follows_from_its_queues(
    monkeypatch: pytest.MonkeyPatch, queues: list[str] | None, brings_on: bool, plans: bool
) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(ticker_module, "Ticker", lambda name, **work: made.append(work))
    of_worker = app.amqp.Queues(app.conf.task_queues)
    if queues:
        of_worker.select(queues)
    TickerStep(
        SimpleNamespace(
            hostname="w", app=SimpleNamespace(conf=app.conf, amqp=SimpleNamespace(queues=of_worker))
        )
    )
    assert made == [{"brings_on": brings_on, "plans": plans}]
    route = app.amqp.router.route
    assert route({}, run_cycle.name)["queue"].routing_key == "luthier.passes"
    assert route({}, reconcile_job.name)["queue"].routing_key == "luthier"


def test_a_worker_without_one_of_our_queues_is_refused() -> None:
    of_worker = app.amqp.Queues(app.conf.task_queues)
    of_worker.select(["celery"])
    worker = SimpleNamespace(conf=app.conf, amqp=SimpleNamespace(queues=of_worker))
    with pytest.raises(SystemExit, match=r"--queues: names neither luthier nor luthier\.passes"):
        TickerStep(SimpleNamespace(hostname="w", app=worker))


def worker_process(name: str) -> subprocess.Popen[bytes]:
    """A real Celery worker on the test database whose broker is a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        dead_port = probe.getsockname()[1]
    database = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}")
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "portal.settings.base",
        "DATABASE_URL": urlunsplit(database),
        "REDIS_URL": f"redis://127.0.0.1:{dead_port}/0",
        "LUTHIER_CLUSTER": "memory",
        "LUTHIER_DATA": str(settings.LUTHIER_DATA),
        "LUTHIER_TICK_S": "0.1",
        "SECRET_KEY": settings.SECRET_KEY,
    }
    options = ["--pool", "threads", "--concurrency", "2", "--hostname", f"{name}@test"]
    options += ["--without-mingle", "--without-gossip", "--without-heartbeat"]
    command = [sys.executable, "-m", "celery", "-A", "portal.celery", "worker", *options]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@pytest.mark.fault
@pytest.mark.timeout(180)
@pytest.mark.django_db(transaction=True)
def test_without_a_broker_jobs_start_and_the_jobs_of_a_killed_worker_are_taken_over_within_seconds() -> None:
    workers = [worker_process("one"), worker_process("two")]
    try:
        wait_for(lambda: Worker.objects.count() == 2)
        job = factories.job()
        wait_for(lambda: state(job) == State.DEPLOYING)
        # A worker dies with the job's lease in its hand.
        worker = Worker.objects.get(name__startswith="one").pk

        def stops_with_the_lease() -> bool:
            """Not while it has the row locked: it goes on, and is stopped again."""
            workers[0].send_signal(signal.SIGSTOP)
            try:
                return bool(
                    Job.objects.filter(pk=job.pk).update(
                        lease_owner=str(worker),
                        lease_token="00000000-0000-4000-8000-000000000000",
                        lease_until=Now() + timedelta(seconds=19),  # nearly as long as a lease can be
                    )
                )
            except OperationalError:
                workers[0].send_signal(signal.SIGCONT)
                return False

        wait_for(stops_with_the_lease)
        fence = job_of(job).fence
        time.sleep(1)
        assert job_of(job).fence == fence, "a worker that was silent for a second keeps its leases"
        workers[0].kill()
        wait_for(lambda: job_of(job).fence > fence)
        workers[1].send_signal(signal.SIGTERM)
        assert workers[1].wait(60) == 0
        assert not Worker.objects.filter(name__startswith="two").exists()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
