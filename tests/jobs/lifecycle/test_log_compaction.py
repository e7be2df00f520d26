"""Quiet logs take little room, and neither writers nor readers notice that chunks were merged."""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now

from jobs import retention
from jobs.ingest.store import commit
from jobs.lifecycle import log_compaction
from jobs.lifecycle.log_compaction import LIVE_ROWS, compact, compact_learner
from jobs.models import Attempt, Job, Learner, LogChunk
from jobs.selectors import logs
from jobs.selectors.log_lines import LineCutter, StoredChunk, from_offset
from jobs.states import State
from jobs.tokens import grant_of
from learner_agent.wire import Ack, Data, Final, Nack
from tests import factories

pytestmark = pytest.mark.django_db
UPDATED = """SELECT pg_stat_get_xact_tuples_updated(oid), pg_stat_get_xact_tuples_hot_updated(oid),
  pg_stat_get_xact_tuples_newpage_updated(oid) FROM pg_class WHERE relname = 'jobs_learner'"""


@pytest.fixture
def job() -> Job:
    return factories.job(state=State.PROCESSING)


def send(job: Job, *pieces: bytes) -> None:
    """Each piece in a commit of its own, as a program that prints now and then makes them."""
    grant = grant_of(factories.secret(job, 1, 0))
    assert grant
    for piece in pieces:
        at = Learner.objects.get(job=job).log_bytes
        commit(
            [(grant, Data(at, piece, 1_700_000_000_000 + 5000 * at, [(len(piece), 0)], zlib.crc32(piece)))]
        )


def seal(job: Job) -> Ack | Nack:
    grant = grant_of(factories.secret(job, 1, 0))
    assert grant
    row = Learner.objects.get(job=job)
    return commit([(grant, Final(row.log_bytes, row.log_crc, 0))]).responses[grant.learner_id][-1]


def quiet_lines(count: int) -> list[bytes]:
    return [b"epoch %d loss 0.%04d\n" % (n, n % 9973) for n in range(count)]


def read(job: Job) -> tuple[bytes, list[Any]]:
    """The bytes and the lines with their times."""
    stream = (job.pk, 1, 0)
    size = Learner.objects.get(job=job).log_bytes
    lines = [tuple(line) for line in logs.read_lines(stream, after=0, limit=100_000).lines]
    return b"".join(logs.raw_bytes(stream, 0, size)), lines


def compacted(job: Job) -> int:
    return compact_learner(Learner.objects.get(job=job).pk)


def test_a_sealed_log_becomes_one_chunk_with_the_same_bytes_lines_and_times(job: Job) -> None:
    send(job, *quiet_lines(40), b"half a ", b"line\rthen\n", b"no newline")
    seal(job)
    before = read(job)

    assert compacted(job) == 42

    assert LogChunk.objects.filter(job=job).count() == 1
    assert read(job) == before
    assert before[1][-1][2] == "no newline"
    assert len({line[1] for line in before[1]}) > 40  # each line has the time of its own read
    assert compacted(job) == 0
    assert Learner.objects.get(job=job).log_merged is None


def test_a_quiet_log_takes_hardly_more_room_than_its_bytes(job: Job) -> None:
    """As rows of a line each it took more than five times as much."""
    lines = [
        b"[2026-01-01 10:00:00] epoch %04d  loss 0.%04d  lr 0.00010  %s\n" % (n, n, b"x" * 20)
        for n in range(200)
    ]

    def room() -> float:
        with connection.cursor() as cursor:
            cursor.execute("SELECT sum(pg_column_size(c.*)) FROM jobs_logchunk c WHERE job_id = %s", [job.pk])
            return float(cursor.fetchone()[0]) / sum(map(len, lines))

    send(job, *lines)
    seal(job)
    assert room() > 2
    compacted(job)
    assert room() <= 1.3


def test_a_log_that_goes_on_is_merged_in_large_parts_and_takes_more_and_repeats(job: Job) -> None:
    few = quiet_lines(LIVE_ROWS - 1)
    send(job, *few)
    assert compacted(job) == 0  # soon there are more: no byte is merged twice

    send(job, b"one more\n")
    assert compacted(job) == LIVE_ROWS - 1
    sent = b"".join(few) + b"one more\n"
    again = Data(0, sent, 1_700_000_000_000, [(len(sent), 0)], zlib.crc32(sent))
    grant = grant_of(factories.secret(job, 1, 0))
    assert grant
    assert commit([(grant, again)]).responses[grant.learner_id] == [Ack(len(sent), {}, 0, False)]
    send(job, b"after\n")

    assert read(job)[0] == sent + b"after\n"
    assert [line[2] for line in read(job)[1][-2:]] == ["one more", "after"]
    assert LogChunk.objects.filter(job=job).count() == 2
    send(job, *quiet_lines(10))
    seal(job)
    merged = Learner.objects.get(job=job).log_merged
    compacted(job)
    assert list(LogChunk.objects.filter(job=job).order_by("offset").values_list("offset", flat=True)) == [
        0,
        merged,
    ]


def test_chunks_are_no_larger_than_ingest_makes_them_and_a_gap_stays_a_gap(
    job: Job, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setattr(log_compaction, "CHUNK_BYTES", 100)
    settings.LUTHIER_LOG_JOB_MAX_BYTES = 500
    send(job, *quiet_lines(40))
    seal(job)
    before = read(job)

    compacted(job)

    rows = LogChunk.objects.filter(job=job).order_by("offset")
    assert all(row.len <= 100 for row in rows if not row.tombstone)
    assert rows.filter(tombstone=True).count() == 1
    assert rows.count() < 10
    assert read(job) == before
    page = logs.read_lines((job.pk, 1, 0), after=0)
    assert page.holes[-1].last == 40


def test_a_merge_that_is_killed_leaves_the_log_as_it_was(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    send(job, *quiet_lines(20))
    seal(job)
    before, rows = read(job), list(LogChunk.objects.filter(job=job).values().order_by("id"))

    def die(*_: Any) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(log_compaction, "_note", die)  # after the chunks were replaced, before the commit
    with pytest.raises(RuntimeError, match="killed"):
        compacted(job)
    assert list(LogChunk.objects.filter(job=job).values().order_by("id")) == rows
    monkeypatch.undo()
    assert compacted(job) == 19
    assert read(job) == before


def test_a_reader_between_two_pages_sees_each_line_once_while_chunks_are_merged(job: Job) -> None:
    send(job, *quiet_lines(3 * logs.CHUNKS_PER_QUERY))
    seal(job)
    stream = (job.pk, 1, 0)
    before = read(job)

    chunks = logs.chunks_from_line(stream, 1)
    cutter = LineCutter()
    lines = [tuple(line) for line in cutter.feed(next(chunks))]
    compacted(job)  # this page of chunks was read; the next ones are one chunk that begins before it
    lines += [tuple(line) for chunk in chunks for line in cutter.feed(chunk)]

    assert lines == before[1]
    raw: Iterator[bytes] = logs.raw_bytes(stream, 30, len(before[0]))
    assert b"".join(raw) == before[0][30:]


def test_the_part_of_a_chunk_reads_as_the_chunks_it_was_merged_from() -> None:
    random.seed(3)
    body = b"".join(quiet_lines(50))
    cuts = sorted({0, *random.sample(range(1, len(body)), 30)})
    times = [(at, 1_700_000_000_000 + at) for at in cuts]
    whole = StoredChunk(0, len(body), 1, body.count(b"\n"), body, times)
    lines = list(LineCutter().feed(whole))
    for at in random.sample(range(1, len(body)), 40):
        part = from_offset(whole, at)
        first = StoredChunk(
            0, at, 1, body[:at].count(b"\n"), body[:at], [time for time in times if time[0] < at]
        )
        cutter = LineCutter()
        assert [*cutter.feed(first), *cutter.feed(part)] == lines


def test_a_log_that_starts_over_is_merged_from_its_new_beginning(job: Job) -> None:
    send(job, *quiet_lines(LIVE_ROWS))
    compacted(job)
    assert Learner.objects.get(job=job).log_merged
    grant = grant_of(factories.secret(job, 1, 0))
    assert grant
    size = Learner.objects.get(job=job).log_bytes
    commit([(grant, Final(size, 12345, 0))])  # another checksum: the stream is requested again
    assert Learner.objects.get(job=job).log_bytes == 0

    send(job, *quiet_lines(30))
    Learner.objects.filter(job=job).update(log_sealed=True)
    assert compacted(job) == 29


def test_one_run_visits_every_learner_and_leaves_those_that_are_done(job: Job) -> None:
    quiet = [factories.job(state=State.PROCESSING) for _ in range(3)]
    for one in (job, *quiet):
        send(one, *quiet_lines(5))
        seal(one)

    assert compact({}) == {"learner": 0, "rows": 16}
    assert compact({}) == {"learner": 0, "rows": 0}
    assert not Learner.objects.exclude(log_merged=None).exists()


def test_a_merge_of_a_growing_log_writes_to_no_index(job: Job) -> None:
    """A learner's row is updated at each merge: in place (HOT), as no index has what changes. An update that finds no
    room in the page counts apart."""
    send(job, *quiet_lines(LIVE_ROWS))
    with connection.cursor() as cursor:
        cursor.execute(UPDATED)
        before = cursor.fetchone()
        assert compacted(job) == LIVE_ROWS - 1
        assert Learner.objects.get(job=job).log_merged
        cursor.execute(UPDATED)
        updated, in_place, elsewhere = (n - m for n, m in zip(cursor.fetchone(), before, strict=True))
    assert (updated, in_place + elsewhere) == (1, 1)


def test_a_run_continues_behind_the_learner_at_which_the_last_one_stopped(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = factories.job(state=State.PROCESSING)
    for one in (job, second):
        send(one, *quiet_lines(5))
        seal(one)
    monkeypatch.setattr(log_compaction, "RUN_S", -1.0)

    stopped = compact({})
    assert stopped["learner"] == Learner.objects.get(job=job).pk
    compact(stopped)
    assert LogChunk.objects.filter(job=second).count() == 1


def test_the_log_of_an_attempt_that_ended_without_sealing_it_is_merged_and_still_grows(job: Job) -> None:
    send(job, *quiet_lines(5))
    Attempt.objects.filter(job=job).update(held=False, closed_at=Now())
    assert compacted(job) == 4
    assert Learner.objects.get(job=job).log_merged == 0
    Learner.objects.filter(job=job).update(log_merged=0)
    send(job, b"late\n")
    assert compacted(job) == 1
    assert read(job)[0].endswith(b"late\n")


def test_a_damaged_chunk_is_left_alone_and_stops_no_other_log(job: Job) -> None:
    second = factories.job(state=State.PROCESSING)
    for one in (job, second):
        send(one, *quiet_lines(5))
        seal(one)
    LogChunk.objects.filter(job=job, offset=0).update(data=b"no longer zstd")

    assert compact({})["rows"] == 4
    assert LogChunk.objects.filter(job=job).count() == 5


@pytest.mark.django_db(transaction=True)
def test_a_log_that_is_removed_while_it_is_merged_leaves_no_chunk(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunk that the merge rewrote is not the one that the removal had chosen, and holds the bytes of all."""
    send(job, *quiet_lines(5))
    seal(job)
    merged, go_on = threading.Event(), threading.Event()
    note = log_compaction._note

    def pause(*of: Any) -> None:
        merged.set()
        assert go_on.wait(60)
        note(*of)

    monkeypatch.setattr(log_compaction, "_note", pause)
    learner = Learner.objects.get(job=job).pk

    def in_thread(work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            work()
            connection.close()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    merging = in_thread(lambda: compact_learner(learner))
    assert merged.wait(60)
    removing = in_thread(lambda: retention.delete_logs(job.pk))
    try:
        wait_for_a_lock()
    finally:
        go_on.set()
        merging.join()
        removing.join()
    assert not LogChunk.objects.filter(job=job).exists()


def wait_for_a_lock() -> None:
    """Until a connection waits for another one's lock."""
    deadline = time.monotonic() + 60
    with connection.cursor() as cursor:
        while time.monotonic() < deadline:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            if cursor.fetchone()[0]:
                return
            time.sleep(0.01)
    raise AssertionError("no connection waits")
