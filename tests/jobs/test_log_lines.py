"""Reading a learner's log by line, whatever chunks its bytes came in."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
import zstandard

from jobs.models import Job, Learner, LogChunk
from jobs.selectors import logs
from jobs.selectors.log_lines import LineCutter, LogLine, StoredChunk, cut, plain
from jobs.selectors.logs import LogCursor
from jobs.states import State
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def job() -> Job:
    return factories.job(state=State.PROCESSING, learners=2)


def store(
    job: Job, pieces: list[bytes], *, rank: int = 0, sealed: bool = False, lost: frozenset[int] = frozenset()
) -> None:
    """Write these bytes as chunks after what is there, as ingest would."""
    learner = Learner.objects.get(job=job, attempt=job.attempt, rank=rank)
    for number, piece in enumerate(pieces):
        LogChunk.objects.create(
            job=job,
            tenant_id=job.tenant_id,
            attempt=job.attempt,
            rank=rank,
            offset=learner.log_bytes,
            len=len(piece),
            first_line=learner.log_lines + 1,
            lines=piece.count(b"\n"),
            seq=LogChunk.objects.count() + 1,
            data=b"" if number in lost else zstandard.compress(piece),
            times=[[0, 1_700_000_000_000 + learner.log_bytes]],
            tombstone=number in lost,
        )
        learner.log_bytes += len(piece)
        learner.log_lines += piece.count(b"\n")
    learner.log_sealed = sealed
    learner.save()


def texts(lines: list[LogLine]) -> list[tuple[int, str]]:
    return [(line.n, line.text) for line in lines]


def test_lines_are_the_same_however_the_bytes_were_cut(job: Job) -> None:
    body = b"".join(b"line %d %s\n" % (n, b"x" * (n % 37)) for n in range(1, 400))
    random.seed(5)
    cuts = sorted({0, len(body), *random.sample(range(1, len(body)), 60)})
    store(job, [body[a:b] for a, b in pairwise(cuts)])
    expected = [(n, f"line {n} " + "x" * (n % 37)) for n in range(1, 400)]
    stream = (job.pk, 1, 0)
    assert texts(logs.read_lines(stream, after=0).lines) == expected
    for after in range(0, 399, 13):
        page = logs.read_lines(stream, after=after, limit=29)
        assert texts(page.lines) == expected[after : after + 29]
        assert page.next == min(after + 29, 399)
    walked, after = [], 0
    while (page := logs.read_lines(stream, after=after, limit=50)).lines:
        walked += texts(page.lines)
        after = page.next
    assert walked == expected


def test_the_last_lines_and_the_lines_before_one_can_be_asked_for(job: Job) -> None:
    store(job, [b"".join(b"%d\n" % n for n in range(1, 101))])
    stream = (job.pk, 1, 0)
    assert [line.n for line in logs.read_lines(stream, tail=3).lines] == [98, 99, 100]
    assert [line.n for line in logs.read_lines(stream, before=4).lines] == [1, 2, 3]
    assert [line.n for line in logs.read_lines(stream, before=50, limit=2).lines] == [48, 49]


def test_an_unfinished_line_is_a_tail_until_its_stream_is_sealed(job: Job) -> None:
    store(job, [b"one\ntw", b"o"])
    page = logs.read_lines((job.pk, 1, 0), after=0)
    assert texts(page.lines) == [(1, "one")]
    assert page.tail is not None
    assert (page.tail.n, page.tail.text) == (2, "two")
    store(job, [], sealed=True)
    assert texts(logs.read_lines((job.pk, 1, 0), after=0).lines) == [(1, "one"), (2, "two")]
    assert texts(logs.read_lines((job.pk, 1, 0), tail=1).lines) == [(2, "two")]


def test_a_progress_bar_of_thousands_of_chunks_is_read_by_its_last_version(job: Job) -> None:
    store(job, [b"start\n", *(b"\r%d %%" % n for n in range(200))])
    page = logs.read_lines((job.pk, 1, 0), after=1)
    assert page.lines == []
    assert page.tail is not None
    assert page.tail.text == "199 %"
    store(job, [b"\ndone\n"])
    assert texts(logs.read_lines((job.pk, 1, 0), after=1).lines) == [(2, "199 %"), (3, "done")]


def tail_of(job: Job) -> LogLine:
    tail = logs.read_lines((job.pk, 1, 0), after=1).tail
    assert tail is not None
    return tail


def test_a_long_unfinished_line_is_shown_from_its_beginning(
    job: Job, django_assert_max_num_queries: Any
) -> None:
    store(job, [b"start\nwait", *(b"." for _ in range(40))])
    assert (tail_of(job).n, tail_of(job).text, tail_of(job).cut) == (2, "wait" + 40 * ".", 0)
    store(job, [b"!" for _ in range(1000)])
    with django_assert_max_num_queries(8):
        tail = tail_of(job)
    assert tail.text.startswith("wait" + 40 * "." + "!!!")
    assert len(tail.text) + tail.cut == 4 + 40 + 1000
    store(job, [b"\n"])
    assert texts(logs.read_lines((job.pk, 1, 0), after=1).lines) == [(2, "wait" + 40 * "." + 1000 * "!")]


def test_a_loud_unfinished_line_is_read_no_further_than_it_is_shown(job: Job) -> None:
    store(job, [b"start\n", *(b"%05d" % n * 2_000 for n in range(20))])
    tail = tail_of(job)
    assert tail.text == "00000" * 2_000
    assert len(tail.text) + tail.cut == 20 * 10_000


def test_carriage_return_before_the_newline_is_no_rewriting() -> None:
    chunk = StoredChunk(0, 11, 1, 2, b"a\rbc\r\r\ndos\r\n", [])
    assert [line.text for line in cut([chunk])] == ["bc", "dos"]


def test_bytes_that_are_no_utf8_and_a_long_line_are_shown_as_far_as_they_go() -> None:
    chunk = StoredChunk(0, 0, 1, 2, b"\xff\xfe\n" + b"y" * 30_000 + b"\n", [])
    first, second = cut([chunk])
    assert first.text == "��"
    assert (len(second.text), second.cut) == (10_000, 20_000)


def random_chunks(chance: random.Random, alphabet: list[bytes], count: int) -> tuple[list[StoredChunk], int]:
    """A stream in so many chunks, some of whose reads were timed, and the number of its unfinished line."""
    chunks: list[StoredChunk] = []
    offset, line = 0, 1
    for _ in range(count):
        body = b"".join(chance.choices(alphabet, k=chance.randrange(1, 60)))
        starts = sorted(chance.sample(range(len(body)), min(len(body), chance.randrange(0, 6))))
        times = [(at, 1_700_000_000_000 + offset + at) for at in starts]
        chunks.append(StoredChunk(offset, len(body), line, body.count(b"\n"), body, times))
        offset, line = offset + len(body), line + body.count(b"\n")
    return chunks, line


@pytest.mark.parametrize("seed", range(20))
def test_lines_cut_together_are_the_same_as_lines_cut_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    alphabet = [b"a", b"\n", b"\n", b"\xc3\xa9", b" "] + ([b"\r"] if seed % 3 == 0 else [])
    alphabet += [b"\xff", b"\xe4\xb8"] if seed % 4 == 0 else []
    chunks, line = random_chunks(chance, alphabet, 8)
    for after in (0, 2, line - 2):
        together = cut(chunks, after=after, text_max=12)
        with monkeypatch.context() as patch:
            patch.setattr(LineCutter, "_plain", lambda *_: [])
            assert cut(chunks, after=after, text_max=12) == together


@pytest.mark.parametrize("seed", range(40))
def test_plain_lines_in_columns_are_those_that_are_cut_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    odd = ([b"\r"], [b"\xff"], [b"x" * 10_001])[seed // 4 % 3] if seed % 4 == 0 else []
    alphabet = [b"a", b"\n", b"\n", b"\xc3\xa9", b" ", *odd]
    chunks, line = random_chunks(chance, alphabet, 5)
    seen = 0
    for after in range(line):
        known = max((n for n, chunk in enumerate(chunks) if chunk.first_line <= after), default=0)
        found = plain(chunks[known:], after)
        if found is not None:
            cutter = LineCutter(after=after)
            right = [line for chunk in chunks[known:] for line in cutter.feed(chunk)]
            numbers = range(found.first, found.first + len(found.texts))
            columns = zip(numbers, found.times, found.texts, strict=True)
            assert [LogLine(*row) for row in columns] == right
            assert found.tail == cutter.rest()
            seen += 1
    assert seen or odd


def test_a_line_has_the_time_of_the_read_that_brought_its_first_byte() -> None:
    chunk = StoredChunk(0, 8, 1, 3, b"a\nb\nc\n", [(0, 1_000), (4, 2_500)])
    assert [line.t for line in cut([chunk])] == [
        "1970-01-01T00:00:01.000Z",
        "1970-01-01T00:00:01.000Z",
        "1970-01-01T00:00:02.500Z",
    ]


def test_lines_that_were_not_kept_are_a_hole_and_the_numbers_go_on(job: Job) -> None:
    store(job, [b"1\n2\n", b"3\n4\n5\n", b"6\n7\n"], lost=frozenset({1}))
    page = logs.read_lines((job.pk, 1, 0), after=0)
    assert texts(page.lines) == [(1, "1"), (2, "2"), (6, "6"), (7, "7")]
    assert [(hole.first, hole.last) for hole in page.holes] == [(3, 5)]
    assert logs.read_lines((job.pk, 1, 0), after=2, limit=1).next == 6
    raw = b"".join(logs.raw_bytes((job.pk, 1, 0), 0, 14))
    assert len(raw) == 14
    assert raw.startswith(b"1\n2\n")
    assert raw.endswith(b"6\n7\n")


def test_a_claim_of_2_60_lost_bytes_is_read_in_small_pieces(job: Job) -> None:
    size = 2**60
    LogChunk.objects.create(
        job=job, tenant=job.tenant, attempt=1, rank=0, offset=0, len=size, first_line=1, lines=3, seq=1, data=b"",
        times=[], tombstone=True,
    )  # fmt: skip
    stream, note = (job.pk, 1, 0), f"\n[{size} bytes in 3 lines were not stored]\n".encode()
    first = next(logs.raw_bytes(stream, 0, size))
    assert first == note.ljust(logs.PLACEHOLDER_BYTES)
    assert b"".join(logs.raw_bytes(stream, 5, 700_000)) == note.ljust(700_000)[5:]
    assert b"".join(logs.raw_bytes(stream, size - 300_000, size)) == b" " * 300_000


def test_raw_bytes_are_what_was_printed_from_any_byte_to_any_byte(job: Job) -> None:
    body = bytes(range(256)) * 40
    store(job, [body[at : at + 100] for at in range(0, len(body), 100)])
    for start, stop in [(0, len(body)), (99, 101), (5_000, 5_001), (0, 1), (10_000, 99_999)]:
        assert b"".join(logs.raw_bytes((job.pk, 1, 0), start, min(stop, len(body)))) == body[start:stop]


def test_many_streams_are_read_in_one_go_and_a_missing_learner_has_no_head(job: Job) -> None:
    store(job, [b"a\nb\n"], rank=0)
    store(job, [b"c\n"], rank=1)
    pages = logs.read_many(
        [LogCursor((job.pk, 1, 0), 1), LogCursor((job.pk, 1, 1), 0), LogCursor((job.pk, 9, 0), 0)]
    )
    assert [texts(pages[(job.pk, *place)].lines) for place in ((1, 0), (1, 1), (9, 0))] == [
        [(2, "b")],
        [(1, "c")],
        [],
    ]
    assert pages[(job.pk, 9, 0)].head is None


def test_search_finds_lines_whatever_their_case_and_says_where_to_go_on(job: Job) -> None:
    store(job, [b"".join(b"step %d %s\n" % (n, b"ERROR" if n % 10 == 0 else b"fine") for n in range(1, 61))])
    page = logs.search((job.pk, 1, 0), "error", limit=4)
    assert [line.n for line in page.lines] == [10, 20, 30, 40]
    assert page.more
    page = logs.search((job.pk, 1, 0), "error", after=page.next)
    assert [line.n for line in page.lines] == [50, 60]
    assert not page.more


def test_search_looks_at_the_text_as_it_is_read_not_at_its_escape_codes(job: Job) -> None:
    store(
        job,
        [
            b"\x1b[31mste\x1b[0;1mp=11\x1b[0m\n\x1b[38:5:9mmean\x1b[m\n",
            b"\x1b]8;;http://example.org\x07link\x1b]8;;\x1b\\ \x1b[2Kend\n[31m as text\n\x1b[mtail",
        ],
        sealed=True,
    )
    found = {
        "STEP=11": [1], "31m": [4], "[0": [], "m": [2, 4], "n": [2, 3], "example": [], "link end": [3], "tail": [5],
    }  # fmt: skip
    assert {q: [line.n for line in logs.search((job.pk, 1, 0), q).lines] for q in found} == found
    assert logs.search((job.pk, 1, 0), "mean").lines[0].text == "\x1b[38:5:9mmean\x1b[m"
