"""Hints: a pass of the scheduler and jobs that are due are each requested once for many that come closely together."""

from __future__ import annotations

import threading
import time

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from kombu import Connection

from jobs import wake
from jobs.models import Job
from tests import factories


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    tasks: list[str] = []
    monkeypatch.setattr(wake, "_send", lambda task, args: tasks.append(task))
    return tasks


def test_many_requests_are_two_messages(sent: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "APART_S", 2.0)
    notifier = wake._CycleNotifier()
    for _ in range(50):
        notifier.notify()
    assert sent == ["jobs.tasks.run_cycle"]
    deadline = time.monotonic() + 60
    while len(sent) < 2:
        assert time.monotonic() < deadline, "the others were forgotten"
        time.sleep(0.01)
    assert len(sent) == 2


def test_a_broker_that_does_not_answer_is_asked_once_and_then_left_in_peace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request that waited for it, or asked it again for each hint, would keep a person."""
    asked: list[dict[str, object]] = []

    def away(task: str, **options: object) -> None:
        asked.append(options)
        raise OSError("connection refused")

    monkeypatch.setattr(wake, "_silent_until", 0.0)
    monkeypatch.setattr(wake, "SILENCE_S", 600.0)
    monkeypatch.setattr(wake.current_app, "send_task", away)
    for _ in range(3):
        wake._send("jobs.tasks.run_cycle", ())
    assert [options["retry"] for options in asked] == [False]


def test_requests_apart_are_sent_at_once(sent: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "APART_S", 0.0)
    notifier = wake._CycleNotifier()
    notifier.notify()
    notifier.notify()
    assert len(sent) == 2


def future(count: int) -> list[str]:
    """So many jobs that are not due for long."""
    jobs = [factories.job().pk for _ in range(count)]
    Job.objects.filter(pk__in=jobs).update(next_reconcile_at="2100-01-01T00:00:00Z")
    return jobs


def are_due(jobs: list[str]) -> list[bool]:
    times = dict(Job.objects.values_list("pk", "next_reconcile_at"))
    return [times[job].year < 2100 for job in jobs]


@pytest.mark.django_db
def test_many_jobs_are_made_due_by_one_statement_and_few_hints(
    monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: type
) -> None:
    hints: list[tuple[str, ...]] = []
    monkeypatch.setattr(wake, "_send", lambda task, args: hints.append(args))
    jobs = future(wake.SHARED + 1)
    settled = factories.job().pk
    Job.objects.filter(pk=settled).update(settled=True, next_reconcile_at=None)

    with django_capture_on_commit_callbacks(execute=True), CaptureQueriesContext(connection) as seen:
        wake.reconcile_all(jobs)
    assert len(seen.captured_queries) == 1
    assert all(are_due(jobs))
    assert len(hints) == 2

    with django_capture_on_commit_callbacks(execute=True):
        wake.reconcile_all([settled])
    assert len(hints) == 2


@pytest.mark.django_db(transaction=True)
def test_a_job_whose_row_is_locked_keeps_no_other_from_being_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is due once its row is free, and the others are hinted before that."""
    jobs = sorted(future(3))
    locked, done = threading.Event(), threading.Event()
    hints: list[tuple[str, ...]] = []

    def note(_: str, args: tuple[str, ...]) -> None:
        hints.append(args)
        done.set()

    def lock() -> None:
        with transaction.atomic():
            Job.objects.select_for_update().get(pk=jobs[0])
            locked.set()
            done.wait(60)
        connection.close()

    monkeypatch.setattr(wake, "_send", note)
    thread = threading.Thread(target=lock)
    thread.start()
    assert locked.wait(60)
    wake.reconcile_all(jobs)
    thread.join()

    assert are_due(jobs) == [True] * 3
    assert len(hints) == 2
    assert hints[1] == (jobs[0],)


def test_requests_that_no_worker_takes_are_dropped_and_no_other_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Connection("memory://") as broker:
        monkeypatch.setattr(wake, "_silent_until", 0.0)
        monkeypatch.setattr(wake.current_app, "connection_for_write", lambda: Connection("memory://"))
        passes, jobs = broker.SimpleQueue("luthier.passes"), broker.SimpleQueue("luthier")
        for queue in (passes, passes, jobs):
            queue.put({})
        others = jobs.qsize()  # of other tests, too
        wake.drop_cycle_hints()
        assert (passes.qsize(), jobs.qsize()) == (0, others)


def test_a_broker_that_does_not_drop_requests_is_left_in_peace_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def away() -> None:
        asked.append(True)
        raise OSError("connection refused")

    monkeypatch.setattr(wake, "_silent_until", 0.0)
    monkeypatch.setattr(wake, "SILENCE_S", 600.0)
    monkeypatch.setattr(wake.current_app, "connection_for_write", away)
    wake.drop_cycle_hints()
    wake.drop_cycle_hints()
    assert asked == [True]
