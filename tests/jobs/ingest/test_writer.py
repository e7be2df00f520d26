"""The writer: one commit for all that waits, and a database that comes and goes."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg2
import pytest
from django.db import DatabaseError, DataError, InterfaceError, OperationalError

from jobs.ingest import writer as module
from jobs.ingest.store import Committed
from jobs.ingest.writer import Item, Writer
from jobs.tokens import Grant
from learner_agent.wire import Ack, Data, Nack


def data(off: int, payload: bytes = b"x") -> Data:
    return Data(off, payload, 0, [(len(payload), 0)], zlib.crc32(payload))


class Answers:
    """Collects the responses to a connection, and lets a test wait for it."""

    def __init__(self) -> None:
        self.responses: list[tuple[int, list[Ack | Nack] | None]] = []
        self.changed = threading.Condition()

    def __call__(self, count: int, answers: list[Ack | Nack] | None) -> None:
        with self.changed:
            self.responses.append((count, answers))
            self.changed.notify_all()

    def wait(self, frames: int) -> list[tuple[int, list[Ack | Nack] | None]]:
        with self.changed:
            assert self.changed.wait_for(
                lambda: sum(count for count, _ in self.responses) >= frames, timeout=60
            )
            return list(self.responses)


def grant(number: int) -> Grant:
    return Grant(number, f"job{number}", 1, 1, 0, True)


class Store:
    """Replaces the database: fails as configured, and keeps the batches it committed."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[Grant, Any]]] = []
        self.failures: list[Exception] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failing_offset: int | None = None
        self.refusal: Exception = DataError("cannot be stored")
        self.publish: Callable[[], None] = lambda: None

    def commit(self, batch: list[tuple[Grant, Any]]) -> Committed:
        self.gate.wait(60)
        if self.failures:
            raise self.failures.pop(0)
        if self.failing_offset is not None and any(frame.off == self.failing_offset for _, frame in batch):
            raise self.refusal
        self.batches.append(batch)
        answers: dict[int, list[Ack | Nack]] = {
            who.learner_id: [Ack(frame.off + frame.size)] for who, frame in batch
        }
        return Committed(answers, self.publish, frozenset(), lines=0, bytes=0, points=0)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr(module, "commit", made.commit)
    return made


@pytest.fixture
def writer(store: Store) -> Iterator[Writer]:
    made = Writer()
    yield made
    made.stop()


def test_what_waits_during_a_commit_shares_the_next_one(writer: Writer, store: Store) -> None:
    store.gate.clear()
    first, second = Answers(), Answers()
    writer.submit(Item(grant(1), data(0), first))
    while writer._waiting:
        pass  # the writer has taken the first frame and waits at the gate
    for off in range(1, 50):
        writer.submit(Item(grant(1), data(off), first))
        writer.submit(Item(grant(2), data(off), second))
    store.gate.set()

    assert first.wait(50) == [(1, [Ack(1)]), (49, [Ack(50)])]
    assert second.wait(49) == [(49, [Ack(50)])]
    assert [len(batch) for batch in store.batches] == [1, 98]


def test_loud_batches_are_shown_at_once_and_answered_after_a_breath_and_quiet_ones_at_once(
    writer: Writer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers()
    slept: list[float] = []
    steps: list[str] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        steps.append("pause")

    def answer(count: int, responses: list[Ack | Nack] | None) -> None:
        steps.append("answer")
        answers(count, responses)

    monkeypatch.setattr(module.time, "sleep", sleep)
    monkeypatch.setattr(module, "LATE_S", 10.0)
    store.publish = lambda: steps.append("publish")
    for n in range(8):
        writer.submit(Item(grant(1), data(n), answer))
        answers.wait(n + 1)
    assert steps == ["publish", "answer"] * 8
    steps.clear()
    for n in range(8, 11):
        writer.submit(Item(grant(1), data(n, b"x" * module.BUSY_BYTES), answer))
        answers.wait(n + 1)
    writer.submit(Item(grant(1), data(11), answer))
    answers.wait(12)
    assert steps == ["publish", "pause", "answer"] * 3 + ["publish", "answer"]
    assert all(0 < pause < module.BUSY_INTERVAL_S for pause in slept)


@pytest.mark.parametrize("late", [1, 2])
def test_loud_learners_stay_in_step_and_none_waits_long_for_who_fell_silent(
    writer: Writer, store: Store, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    loud = b"x" * module.BUSY_BYTES
    first, second, quiet = Answers(), Answers(), Answers()
    monkeypatch.setattr(module, "LATE_S", 10.0)
    store.gate.clear()
    writer.submit(Item(grant(9), data(0), quiet))
    while writer._waiting:
        pass  # the writer waits at the gate: what arrives now is committed together
    writer.submit(Item(grant(1), data(0, loud), first))
    writer.submit(Item(grant(2), data(0, loud), second))
    writer.submit(Item(grant(9), data(1), quiet))
    store.gate.set()
    first.wait(1)
    second.wait(1)
    quiet.wait(2)  # answered, and not waited for
    sooner, later = (first, second) if late == 2 else (second, first)
    writer.submit(Item(grant(3 - late), data(1, loud), sooner))
    time.sleep(0.02)
    writer.submit(Item(grant(late), data(1, loud), later))
    sooner.wait(2)
    later.wait(2)
    assert [sorted(who.learner_id for who, _ in batch) for batch in store.batches] == [[9], [1, 2, 9], [1, 2]]

    monkeypatch.setattr(module, "LATE_S", 0.02)
    writer.submit(Item(grant(1), data(2, loud), first))
    writer.submit(Item(grant(2), data(2, loud), second))
    first.wait(3)
    second.wait(3)
    writer.submit(Item(grant(1), data(3, loud), first))
    first.wait(4)  # though the second has no more


def test_a_database_that_is_away_loses_no_frame_and_no_order(writer: Writer, store: Store) -> None:
    amid_an_answer = DatabaseError("no message from the libpq")
    amid_an_answer.__cause__ = psycopg2.DatabaseError()
    store.failures = [
        OperationalError("the database system is shutting down"),
        InterfaceError("connection already closed"),
        amid_an_answer,
    ]
    answers = Answers()
    for off in range(20):
        writer.submit(Item(grant(1), data(off), answers))

    responses = answers.wait(20)

    assert all(found is not None for _, found in responses)
    assert [frame.off for batch in store.batches for _, frame in batch] == list(range(20))


@pytest.mark.parametrize("refusal", [DataError("cannot be stored"), ValueError("no column takes NUL")])
def test_one_frame_that_cannot_be_stored_harms_no_other(
    writer: Writer, store: Store, refusal: Exception
) -> None:
    store.failing_offset, store.refusal = 3, refusal
    store.gate.clear()
    good, bad = Answers(), Answers()
    for off in range(6):
        writer.submit(Item(grant(off), data(off), bad if off == 3 else good))
    store.gate.set()

    assert bad.wait(1) == [(1, None)]
    assert all(found is not None for _, found in good.wait(5))


def test_frames_of_two_connections_of_a_learner_never_share_a_commit_nor_its_answer(
    writer: Writer, store: Store
) -> None:
    """A shipper was restarted: an event that its predecessor sent must not acknowledge one of its own."""
    store.gate.clear()
    first, old, new = Answers(), Answers(), Answers()
    writer.submit(Item(grant(9), data(0), first))
    for off, connection in ((1, old), (2, old), (3, new)):
        writer.submit(Item(grant(1), data(off), connection))
    store.gate.set()

    assert sum(count for count, _ in old.wait(2)) == 2
    assert new.wait(1) == [(1, [Ack(4)])]
    assert {found.log for _, answers in old.responses for found in answers or ()} <= {2, 3}
    offsets = [{frame.off for who, frame in batch if who.learner_id == 1} for batch in store.batches]
    assert {1, 2, 3} not in offsets
    assert not any({2, 3} <= batch for batch in offsets)


def test_a_large_backlog_is_cut_into_batches_of_bounded_size(writer: Writer, store: Store) -> None:
    store.gate.clear()
    answers = Answers()
    payload = b"x" * 200_000
    for n in range(100):
        writer.submit(Item(grant(1), data(n * len(payload), payload), answers))
    store.gate.set()

    answers.wait(100)
    assert (
        max(sum(frame.size for _, frame in batch) for batch in store.batches)
        <= module.MAX_BATCH_BYTES + 200_000
    )


def test_jobs_whose_learners_report_closely_are_requested_together_and_a_failure_loses_no_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requested: list[set[str]] = []
    first, going_on = threading.Event(), threading.Event()

    def reconcile_all(jobs: set[str]) -> None:
        requested.append(jobs)
        first.set()
        assert going_on.wait(60)
        raise OperationalError("the database is away")

    monkeypatch.setattr(module.wake, "reconcile_all", reconcile_all)
    monkeypatch.setattr(module, "REQUESTS_APART_S", 0.01)
    thread = ThreadPoolExecutor(max_workers=1)
    requests = module._Requests(thread)
    requests.add({"a"})
    assert first.wait(60)
    for job in ("b", "c", "b"):
        requests.add({job})
    going_on.set()
    thread.shutdown(wait=True)

    assert requested == [{"a"}, {"a"}, {"b", "c"}, {"b", "c"}], "each once more, on a new connection"
