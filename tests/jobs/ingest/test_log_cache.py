"""What was just stored, at hand for viewers: the same as the database says, or nothing."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace
from itertools import pairwise

import pytest

from jobs.ingest.store import commit
from jobs.models import Job
from jobs.selectors import log_cache, logs
from jobs.selectors.logs import LogCursor, LogPage, Stream
from jobs.states import State
from learner_agent.wire import Data, Final
from tests import factories
from tests.jobs.ingest.test_commit import data, grant

pytestmark = pytest.mark.django_db

LIMIT = 50


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(log_cache, "FRESH_S", 60.0)
    monkeypatch.setattr(log_cache, "_streams", {})
    return factories.job(state=State.PROCESSING)


@pytest.fixture
def stream(job: Job) -> Stream:
    """A stream with a viewer."""
    stream = (job.pk, 1, 0)
    assert read(LogCursor(stream, 0), limit=LIMIT) is None
    return stream


def read(want: LogCursor, *, limit: int) -> LogPage | None:
    """The page that is at hand."""
    found = log_cache.chunks_of(want)
    return found and logs.page_of(want, *found, limit=limit)


def same(found: LogPage, stored: LogPage) -> None:
    """But for the time of a progress bar, of which the database is asked for the last two chunks only."""
    assert replace(found, tail=None) == replace(stored, tail=None)
    assert (found.tail and found.tail._replace(t="")) == (stored.tail and stored.tail._replace(t=""))


def lines_of(count: int, first: int = 1) -> bytes:
    return b"".join(b"line %d\n" % n for n in range(first, first + count))


@pytest.mark.parametrize("seed", range(6))
def test_at_hand_is_what_the_database_would_say(
    job: Job, stream: Stream, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_cache, "KEPT_BYTES", 600)
    chance = random.Random(seed)
    kinds = [
        b"plain %d\n",
        b"10 %%\r20 %%\rdone %d\n",
        b"caf\xc3\xa9 \xff %d\n",
        b"\n",
        b"no end yet %d ",
        b"bar %d\r",
    ]
    body = b"".join(
        kind % n if b"%d" in kind else kind for n in range(120) for kind in [chance.choice(kinds)]
    )
    cuts = sorted({0, len(body), *chance.sample(range(1, len(body)), 40)})
    who = grant(job)
    answered = 0
    for begin, end in pairwise(cuts):
        commit([(who, data(begin, body[begin:end]))])
        head = logs.heads([stream])[stream]
        for after in {0, max(0, head.lines - 3), max(0, head.lines - 1), head.lines}:
            want = LogCursor(stream, after)
            found = read(want, limit=LIMIT)
            if found is not None:
                answered += 1
                same(found, logs.read_many([want], limit=LIMIT)[stream])
    assert answered > 60
    commit([(who, Final(len(body), zlib.crc32(body)))])
    want = LogCursor(stream, logs.heads([stream])[stream].lines - 1)
    page = read(want, limit=LIMIT)
    assert page is not None
    same(page, logs.read_many([want], limit=LIMIT)[stream])


def test_a_stream_without_a_viewer_is_not_kept(job: Job) -> None:
    commit([(grant(job), data(0, b"a\n"))])
    assert log_cache._streams == {}


def test_memory_is_bounded_and_what_is_cut_off_is_read_from_the_database(
    job: Job, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_cache, "KEPT_BYTES", 1_000)
    who, at = grant(job), 0
    for n in range(50):
        piece = lines_of(10, n * 10 + 1)
        commit([(who, data(at, piece))])
        at += len(piece)
    assert log_cache._streams[stream].size <= 1_000
    assert read(LogCursor(stream, 3), limit=LIMIT) is None
    page = read(LogCursor(stream, 495), limit=LIMIT)
    assert page is not None
    assert [line.text for line in page.lines] == [f"line {n}" for n in range(496, 501)]


def test_lines_that_another_process_stored_in_between_are_not_skipped(job: Job, stream: Stream) -> None:
    who = grant(job)
    commit([(who, data(0, lines_of(3)))])
    kept, log_cache._streams[stream] = log_cache._streams[stream], log_cache._Cached(0.0)
    commit([(who, data(21, lines_of(3, 4)))])  # as if elsewhere: it is not cached here
    log_cache._streams[stream] = kept
    commit([(who, data(42, lines_of(3, 7)))])
    assert read(LogCursor(stream, 3), limit=LIMIT) is None
    page = read(LogCursor(stream, 7), limit=LIMIT)
    assert page is not None
    assert [line.n for line in page.lines] == [8, 9]


def test_what_is_old_is_asked_of_the_database(
    job: Job, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit([(grant(job), data(0, lines_of(3)))])
    assert read(LogCursor(stream, 0), limit=LIMIT) is not None
    monkeypatch.setattr(log_cache, "FRESH_S", -1.0)
    assert read(LogCursor(stream, 0), limit=LIMIT) is None


def test_after_bytes_that_were_not_kept_the_database_is_asked(job: Job, stream: Stream) -> None:
    who = grant(job)
    commit([(who, data(0, lines_of(3)))])
    commit([(who, Data(21, gone=70, lines=10))])
    assert read(LogCursor(stream, 0), limit=LIMIT) is None
    commit([(who, data(91, lines_of(2, 14)))])
    assert read(LogCursor(stream, 3), limit=LIMIT) is None


def test_a_stream_that_starts_over_is_forgotten(job: Job, stream: Stream) -> None:
    who = grant(job)
    commit([(who, data(0, lines_of(3)))])
    commit([(who, Final(21, 1))])
    assert read(LogCursor(stream, 0), limit=LIMIT) is None
    commit([(who, data(0, b"other\n"))])
    page = read(LogCursor(stream, 0), limit=LIMIT)
    assert page is not None
    assert [line.text for line in page.lines] == ["other"]
