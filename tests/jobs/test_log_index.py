"""The index of a log's warnings and errors: what it says is what reading the whole log would say."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from jobs import retention
from jobs.ingest.store import commit
from jobs.lifecycle.log_compaction import compact_learner
from jobs.log_levels import PARTS, STARTS, After, Kind, classify
from jobs.models import Job, Learner, LogChunk, LogIndex
from jobs.selectors import log_index, logs
from jobs.selectors.log_index import Level, extend, levels, lines_of
from jobs.states import State
from jobs.tokens import grant_of
from learner_agent.wire import Final
from tests import factories
from tests.jobs.test_log_lines import store

pytestmark = pytest.mark.django_db
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nValueError: bad\n'


@pytest.fixture
def job() -> Job:
    return factories.job(state=State.PROCESSING, learners=2)


def stream_of(job: Job) -> logs.Stream:
    return (job.pk, 1, 0)


def head_of(job: Job) -> logs.Head:
    return logs.heads([stream_of(job)])[stream_of(job)]


def numbers(job: Job, level: Level, **options: Any) -> list[int]:
    """Of all lines of a level, over as many pages as it takes."""
    found: list[int] = []
    after, more = 0, True
    while more:
        page = lines_of(stream_of(job), level, after=after, **options)
        found += [line.n for line in page.lines]
        assert page.next > after or not page.more
        after, more = page.next, page.more
    return found


def read_whole(job: Job) -> list[tuple[int, Kind]]:
    kinds, after = [], After.NOTHING
    for line in logs.read_lines(stream_of(job), after=0, limit=10**6).lines:
        kind, after = classify(line.text, after)
        kinds.append((line.n, kind))
    return kinds


def test_a_traceback_is_one_error_and_warnings_do_not_count_errors(job: Job) -> None:
    store(job, [f"start\nWARNING: slow\n{TRACEBACK}WARNING: slower\n".encode()])
    found = levels(stream_of(job), head_of(job))
    assert (found.warnings, found.errors, found.first_error, found.errors_at) == (2, 1, 3, [3])
    assert numbers(job, Level.WARN) == [2, 7]
    page = lines_of(stream_of(job), Level.ERROR)
    assert [(line.n, line.part) for line in page.lines] == [(3, False), (4, True), (5, True), (6, True)]  # type: ignore[attr-defined]
    assert page.lines[3].text == "ValueError: bad"


@pytest.mark.parametrize("seed", range(4))
def test_the_index_agrees_with_the_whole_log_however_it_came_and_was_read(
    job: Job, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random.seed(seed)
    monkeypatch.setattr(log_index, "STRETCH_LINES", 60)
    monkeypatch.setattr(log_index, "STRETCH_MARKS", 40)
    texts = [
        "step 1\n",
        "ERROR: x\n",
        TRACEBACK,
        "UserWarning: y\n",
        "50 %\r60 %\n",
        "",
        "\n",
        "é" * 50 + "\n",
    ]
    body = "".join(random.choices(texts, k=400)).encode() + b"ERROR: no end"
    cuts = sorted({0, len(body), *random.sample(range(1, len(body)), 90)})
    pieces = [body[a:b] for a, b in pairwise(cuts)]
    for n, piece in enumerate(pieces):
        store(job, [piece], sealed=n == len(pieces) - 1)
        if random.random() < 0.2:
            extend(stream_of(job), head_of(job), within_s=random.choice([0, 1]))
        if random.random() < 0.1:
            compact_learner(Learner.objects.get(job=job, rank=0).pk)

    kinds = read_whole(job)
    found = levels(stream_of(job), head_of(job))
    assert found.counted == kinds[-1][0]
    assert found.warnings == sum(kind is Kind.WARNING for _, kind in kinds)
    assert found.errors_at == [n for n, kind in kinds if kind in STARTS]
    assert found.errors == len(found.errors_at)
    assert numbers(job, Level.ERROR, limit=7) == [n for n, kind in kinds if kind in STARTS | PARTS]
    assert numbers(job, Level.WARN) == [n for n, kind in kinds if kind is Kind.WARNING]
    assert numbers(job, Level.ERROR, q="no END") == [kinds[-1][0]]
    rows = LogIndex.objects.filter(job=job).order_by("first_line")
    assert len(rows) > 3
    assert [row.next_line for row in rows[: len(rows) - 1]] == [row.first_line for row in rows[1:]]


def test_lines_that_were_not_stored_are_passed_over(job: Job) -> None:
    store(job, [b"ERROR: a\nx", b"y\nERROR: lost\n", b"ERROR: b\n"], lost=frozenset({1}))
    assert numbers(job, Level.ERROR) == [1, 4]
    assert levels(stream_of(job), head_of(job)).counted == 4


def test_a_gap_that_grows_after_it_was_indexed_is_counted_once(job: Job) -> None:
    store(job, [b"ERROR: a\n", b"x\ny\n"], lost=frozenset({1}))
    assert extend(stream_of(job), head_of(job)) == 3
    LogChunk.objects.filter(job=job, tombstone=True).update(len=F("len") + 2, lines=F("lines") + 1)
    Learner.objects.filter(job=job, rank=0).update(log_bytes=F("log_bytes") + 2, log_lines=F("log_lines") + 1)
    store(job, [b"ERROR: b\n"])
    assert numbers(job, Level.ERROR) == [1, 5]


def test_an_unfinished_line_counts_once_it_is_complete(job: Job) -> None:
    store(job, [b"ok\nERR"])
    assert levels(stream_of(job), head_of(job)).errors == 0
    store(job, [b"OR: late\n"])
    assert numbers(job, Level.ERROR) == [2]


def test_a_line_without_end_stops_no_index(job: Job) -> None:
    store(job, [b"x" * 1000] * 40 + [b"\nERROR: after it\n"])
    assert numbers(job, Level.ERROR) == [2]


def test_a_step_that_another_reader_did_first_is_dropped(job: Job) -> None:
    store(job, [b"ERROR: a\n"])
    last = log_index._newest(stream_of(job))
    read = log_index._read(stream_of(job), head_of(job), last)
    assert read
    assert extend(stream_of(job), head_of(job)) == 1
    assert not log_index._store(stream_of(job), last, read)
    assert levels(stream_of(job), head_of(job)).errors == 1


def test_a_stream_that_starts_over_has_a_new_index(job: Job) -> None:
    store(job, [b"ERROR: damaged\n"])
    assert levels(stream_of(job), head_of(job)).errors == 1
    grant = grant_of(factories.secret(job, 1, 0))
    assert grant
    commit([(grant, Final(head_of(job).size, 12345, 0))])
    assert head_of(job).size == 0
    store(job, [b"fine after all\n"])
    assert levels(stream_of(job), head_of(job)).errors == 0


def test_an_error_in_a_long_log_is_found_without_reading_it_again(job: Job) -> None:
    quiet = b"".join(b"step %d loss 0.5\n" % n for n in range(500))
    store(job, [quiet] * 60 + [b"ERROR: here\n"] + [quiet] * 60)
    extend(stream_of(job), head_of(job))
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert numbers(job, Level.ERROR) == [30_001]
        assert levels(stream_of(job), head_of(job)).first_error == 30_001
    assert len(queries) < 12


def test_a_reader_that_was_at_work_while_a_log_was_removed_indexes_nothing(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(job, [b"ERROR: one\n"])
    store_read = log_index._store

    def removed_before(*of: Any) -> bool:
        retention.delete_logs(job.pk)
        return store_read(*of)

    monkeypatch.setattr(log_index, "_store", removed_before)
    assert extend(stream_of(job), head_of(job)) == 0
    assert not LogIndex.objects.filter(job=job).exists()
