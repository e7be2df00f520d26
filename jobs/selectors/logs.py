"""A learner's log: numbered lines, raw bytes, and a search through what is stored.

Nothing here checks permission: callers have fetched the job (job_get).
Lines count from 1 per (job, attempt, rank). A line exists once it is complete, or once its stream is sealed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import zstandard
from django.db import connection

from jobs.log_levels import ESCAPES
from jobs.selectors import chunk_times
from jobs.selectors.log_lines import (
    LINE_BYTES,
    TEXT_MAX,
    Hole,
    LineCutter,
    LogLine,
    StoredChunk,
    from_offset,
    size_of,
)

Stream = tuple[str, int, int]
"""Job id, attempt, rank."""

PAGE_LINES = 1_000
WHOLE_LINE = 10**9  # text_max for uncut lines
PAGE_BYTES = 1024 * 1024
CHUNKS_PER_QUERY = 16
TAIL_CHUNKS = 64  # of an unfinished line; a program that prints dot by dot leaves one chunk per dot
TAIL_BYTES = 256 * 1024
PLACEHOLDER_BYTES = 256 * 1024
SEARCH_S = 2.0  # a search returns within this time and says how far it got


@dataclass(frozen=True)
class Head:
    """The length of a stream: complete lines, bytes, and whether it is sealed."""

    lines: int
    size: int
    sealed: bool


@dataclass(frozen=True)
class LogPage:
    """Lines after a cursor. head is None for a learner that does not exist. next: cursor for the next page.

    more: there are more lines now. tail: the unfinished last line of a stream that is not sealed.
    """

    lines: list[LogLine]
    next: int
    head: Head | None
    more: bool = False
    tail: LogLine | None = None
    holes: list[Hole] = field(default_factory=list)


@dataclass(frozen=True)
class LogCursor:
    """Lines of a stream above `after`."""

    stream: Stream
    after: int


def read_lines(
    stream: Stream,
    *,
    after: int | None = None,
    before: int | None = None,
    tail: int | None = None,
    limit: int = PAGE_LINES,
    text_max: int = TEXT_MAX,
) -> LogPage:
    """One page: the lines above `after`, the last ones below `before`, or the last `tail` ones."""
    if after is None:
        head = heads([stream]).get(stream)
        count = line_count(stream, head) if head and before is not None else head.lines if head else 0
        end = count + 1 if before is None else min(before, count + 1)
        limit = min(limit, tail) if tail is not None else limit
        after = max(0, end - 1 - limit)
        limit = max(0, end - 1 - after) + (
            1 if before is None else 0
        )  # one more: a sealed stream's last bytes
    page = read_many([LogCursor(stream, after)], limit=limit, text_max=text_max)[stream]
    if before is not None:
        page = _below(page, before)
    return page if tail is None else replace(page, lines=page.lines[-tail:] if tail else [])


def _below(page: LogPage, before: int) -> LogPage:
    """The part of a page below a line. Holes can make a page reach beyond it."""
    if page.next < before:
        return page
    lines = [line for line in page.lines if line.n < before]
    holes = [
        Hole(hole.first, min(hole.last, before - 1), hole.size) for hole in page.holes if hole.first < before
    ]
    return replace(page, lines=lines, next=before - 1, more=True, tail=None, holes=holes)


def read_many(
    wants: Sequence[LogCursor],
    *,
    limit: int = PAGE_LINES,
    size_max: int = PAGE_BYTES,
    text_max: int = TEXT_MAX,
) -> dict[Stream, LogPage]:
    """A page of each stream, in a constant number of queries."""
    known = heads([want.stream for want in wants])
    pages = {
        want.stream: LogPage([], want.after, known.get(want.stream))
        for want in wants
        if want.stream not in known or not _has_more(known[want.stream], want.after)
    }
    rest = [want for want in wants if want.stream not in pages]
    first = chunks_for(rest)
    for want in rest:
        pages[want.stream] = _read(
            want,
            known[want.stream],
            first.get(want.stream, []),
            limit=limit,
            size_max=size_max,
            text_max=text_max,
        )
    return pages


def read_ends(streams: Sequence[Stream], count: int) -> dict[Stream, list[LogLine]]:
    """The last lines of each stream, in a constant number of queries."""
    wants = [LogCursor(stream, max(0, head.lines - count)) for stream, head in heads(streams).items()]
    pages = read_many(wants, limit=count + 1)  # one more: a sealed stream's last bytes
    return {stream: page.lines[-count:] for stream, page in pages.items()}


def heads(streams: Sequence[Stream]) -> dict[Stream, Head]:
    """The length of each stream, without those of learners that do not exist."""
    if not streams:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT l.job_id, l.attempt, l.rank, l.log_lines, l.log_bytes, l.log_sealed
               FROM jobs_learner l JOIN unnest(%s::text[], %s::int[], %s::int[]) AS w(job_id, attempt, rank)
               ON l.job_id = w.job_id AND l.attempt = w.attempt AND l.rank = w.rank""",
            [list(column) for column in zip(*streams, strict=True)],
        )
        return {(job, attempt, rank): Head(*rest) for job, attempt, rank, *rest in cursor.fetchall()}


def line_count(stream: Stream, head: Head) -> int:
    """Lines that can be read: the complete ones, and in a sealed stream also last bytes without a newline."""
    return head.lines + (1 if head.sealed and head.size and _tail(stream, 1) else 0)


def search(stream: Stream, q: str, *, after: int = 0, limit: int = 200) -> LogPage:
    """Lines above `after` that contain q, ignoring case and escape codes.

    Stops after `limit` matches or SEARCH_S. next: the last line searched; more: there are lines after it.
    """
    needle = q.casefold()
    head = heads([stream]).get(stream)
    if head is None:
        return LogPage([], after, None)
    found: list[LogLine] = []
    cutter = LineCutter(after=after)
    holes = cutter.holes
    deadline = time.monotonic() + SEARCH_S
    last = after
    for chunk in chunks_from_line(stream, after + 1):
        for line in cutter.feed(chunk):
            last = line.n
            if needle in as_read(line.text):
                found.append(line)
                if len(found) == limit:
                    return LogPage(found, last, head, more=last < head.lines, holes=holes)
        if time.monotonic() > deadline:
            return LogPage(found, last, head, more=True, holes=holes)
    end = cutter.rest() if head.sealed else None
    if end and needle in as_read(end.text):
        found.append(end)
    return LogPage(found, max(last, end.n if end else head.lines), head, holes=holes)


def as_read(text: str) -> str:
    """What a search compares: without escape codes, in one case."""
    return (ESCAPES.sub("", text) if "\x1b" in text else text).casefold()


def raw_bytes(stream: Stream, start: int, stop: int) -> Generator[bytes, None, None]:
    """The bytes start…stop-1 as printed; bytes that were not stored are replaced by a note of the same length."""
    at = start
    while at < stop:
        chunks = chunks_from(stream, at)
        if not chunks:
            return
        for chunk in chunks:
            end = chunk.offset + chunk.length
            if chunk.lost:
                yield from _placeholder(chunk, at, min(stop, end))
            elif piece := chunk.data[at - chunk.offset : stop - chunk.offset]:
                yield piece
            at = end
            if at >= stop:
                return


def _has_more(head: Head, after: int) -> bool:
    return after < head.lines or (after == head.lines and head.size > 0)


def _read(
    want: LogCursor, head: Head, first: list[StoredChunk], *, limit: int, size_max: int, text_max: int
) -> LogPage:
    if want.after >= head.lines and not head.sealed:
        return LogPage([], want.after, head, tail=_tail(want.stream, text_max))
    end = 0

    def useful() -> Iterator[StoredChunk]:
        nonlocal end
        for chunk in _following(want.stream, first):
            end = chunk.offset + chunk.length
            yield chunk
            if chunk.first_line + chunk.lines > head.lines and not head.sealed:
                return  # the rest is an unfinished line, which can be long

    page = page_of(want, head, useful(), limit=limit, size_max=size_max, text_max=text_max)
    if head.sealed or page.more or end >= head.size:  # the chunks just read usually end with the stream
        return page
    return replace(page, tail=_tail(want.stream, text_max))


def page_of(
    want: LogCursor,
    head: Head,
    chunks: Iterable[StoredChunk],
    *,
    limit: int,
    size_max: int = PAGE_BYTES,
    text_max: int = TEXT_MAX,
) -> LogPage:
    """A page cut from contiguous chunks, the first of them the one in which the first requested line begins."""
    cutter = LineCutter(after=want.after, text_max=text_max)
    lines: list[LogLine] = []
    size = 0
    for chunk in chunks:
        if len(lines) + chunk.lines <= limit and size + chunk.length < size_max // 2:  # all of it fits
            lines += cutter.feed(chunk)
            size += chunk.length + chunk.length // 16 + LINE_BYTES * chunk.lines
        else:
            for line in cutter.feed(chunk):
                if len(lines) == limit or (lines and size + size_of(line.text) > size_max):
                    return LogPage(lines, _reached(want, lines, cutter), head, True, holes=cutter.holes)
                lines.append(line)
                size += size_of(line.text)
    rest = cutter.rest()
    if not head.sealed:
        return LogPage(lines, _reached(want, lines, cutter), head, False, rest, cutter.holes)
    more = rest is not None and len(lines) == limit
    if rest and not more:
        lines.append(rest)
    return LogPage(lines, _reached(want, lines, cutter), head, more, None, cutter.holes)


def _reached(want: LogCursor, lines: list[LogLine], cutter: LineCutter) -> int:
    return max([want.after, *(line.n for line in lines[-1:]), *(hole.last for hole in cutter.holes[-1:])])


def _tail(stream: Stream, text_max: int) -> LogLine | None:
    """The unfinished last line. A progress bar can leave thousands of chunks; the newest two contain its text.

    Of any other long line the beginning is returned, and the rest counts as cut.
    """
    chunks, unread = _newest(stream), 0
    if not chunks:
        return None
    done = chunks[-1].first_line + chunks[-1].lines - 1
    if not _contain_the_line(chunks):
        chunks, unread = _beginning(stream, done, chunks[-1], min(4 * text_max, TAIL_BYTES))
    cutter = LineCutter(after=done, text_max=text_max)
    for chunk in chunks:
        list(cutter.feed(chunk))
    line = cutter.rest()
    return line and line._replace(cut=line.cut + unread)


def _newest(stream: Stream) -> list[StoredChunk]:
    with connection.cursor() as cursor:
        cursor.execute(
            f"""SELECT {COLUMNS} FROM jobs_logchunk c WHERE c.job_id = %s AND c.attempt = %s AND c.rank = %s
                ORDER BY c."offset" DESC LIMIT 2""",
            stream,
        )
        return [chunk_of(row) for row in reversed(cursor.fetchall())]


def _contain_the_line(newest: list[StoredChunk]) -> bool:
    """True if the unfinished line begins in these chunks, or was rewritten in them."""
    begins = newest[0].offset == 0 or any(chunk.lines for chunk in newest)
    return begins or b"\r" in b"".join(chunk.data for chunk in newest).rstrip(b"\r")


def _beginning(
    stream: Stream, done: int, newest: StoredChunk, size_max: int
) -> tuple[list[StoredChunk], int]:
    """The first chunks of the line after `done`, up to `newest`, and how many bytes of it were not read."""
    found: list[StoredChunk] = []
    size = 0
    for chunk in _following(stream, chunks_for([LogCursor(stream, done)]).get(stream, [])):
        found.append(chunk)
        size += 0 if chunk.lines else chunk.length
        if chunk.offset >= newest.offset or size >= size_max or len(found) == TAIL_CHUNKS:
            break
    end = found[-1].offset + found[-1].length if found else 0
    return found, newest.offset + newest.length - end


def _following(stream: Stream, chunks: list[StoredChunk]) -> Iterator[StoredChunk]:
    """These chunks and all after them, page by page; chunks may be merged between two pages."""
    while chunks:
        yield from chunks
        if len(chunks) < CHUNKS_PER_QUERY:
            return
        end = chunks[-1].offset + chunks[-1].length
        chunks = [from_offset(chunk, end) for chunk in chunks_from(stream, end)]


COLUMNS = 'c."offset", c.len, c.first_line, c.lines, c.data, c.times, c.packed_times, c.tombstone'
"""What chunk_of reads."""


def chunks_for(wants: Sequence[LogCursor], count: int = CHUNKS_PER_QUERY) -> dict[Stream, list[StoredChunk]]:
    """The first chunks of each stream from the one in which line after + 1 begins."""
    if not wants:
        return {}
    columns = [list(column) for column in zip(*(want.stream for want in wants), strict=True)]
    # The newest chunk that begins in an earlier line is the one in which the requested line begins.
    query = f"""
        SELECT w.job_id, w.attempt, w.rank, {COLUMNS}
        FROM unnest(%s::text[], %s::int[], %s::int[], %s::bigint[]) AS w(job_id, attempt, rank, line)
        CROSS JOIN LATERAL (SELECT coalesce((
            SELECT p."offset" FROM jobs_logchunk p
            WHERE p.job_id = w.job_id AND p.attempt = w.attempt AND p.rank = w.rank AND p.first_line < w.line
            ORDER BY p.first_line DESC, p."offset" DESC LIMIT 1), 0) AS start) s
        CROSS JOIN LATERAL (
            SELECT * FROM jobs_logchunk x
            WHERE x.job_id = w.job_id AND x.attempt = w.attempt AND x.rank = w.rank AND x."offset" >= s.start
            ORDER BY x."offset" LIMIT {count}) c
        ORDER BY w.job_id, w.attempt, w.rank, c."offset" """
    found: dict[Stream, list[StoredChunk]] = {}
    with connection.cursor() as cursor:
        cursor.execute(query, [*columns, [want.after + 1 for want in wants]])
        for job, attempt, rank, *row in cursor.fetchall():
            found.setdefault((job, attempt, rank), []).append(chunk_of(row))
    return found


def chunks_from(stream: Stream, offset: int) -> list[StoredChunk]:
    """The next chunks of a stream, from the one that contains this byte."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""SELECT {COLUMNS} FROM jobs_logchunk c
                WHERE c.job_id = %s AND c.attempt = %s AND c.rank = %s AND c."offset" >= coalesce((
                    SELECT p."offset" FROM jobs_logchunk p WHERE p.job_id = %s AND p.attempt = %s AND p.rank = %s
                    AND p."offset" <= %s ORDER BY p."offset" DESC LIMIT 1), 0)
                AND c."offset" + c.len > %s
                ORDER BY c."offset" LIMIT {CHUNKS_PER_QUERY}""",
            [*stream, *stream, offset, offset],
        )
        return [chunk_of(row) for row in cursor.fetchall()]


def chunks_from_line(stream: Stream, line: int) -> Iterator[StoredChunk]:
    chunks = chunks_for([LogCursor(stream, line - 1)]).get(stream, [])
    yield from _following(stream, chunks)


def chunk_of(row: Sequence[Any]) -> StoredChunk:
    """A chunk from its COLUMNS."""
    offset, length, first_line, lines, data, times, packed, lost = row
    if packed is not None:
        times = chunk_times.unpack(bytes(packed))
    elif isinstance(times, str):  # a raw cursor leaves JSON as text
        times = json.loads(times)
    return StoredChunk(
        offset=int(offset),
        length=int(length),
        first_line=int(first_line),
        lines=int(lines),
        data=b"" if lost else zstandard.decompress(bytes(data)),
        times=[(at, ms) for at, ms in times],
        lost=bool(lost),
    )


def _placeholder(chunk: StoredChunk, start: int, stop: int) -> Iterator[bytes]:
    """As many bytes as are missing from start to stop, so that offsets stay valid. In pieces: a program may claim to
    have lost more than any memory holds."""
    note = f"\n[{chunk.length} bytes in {chunk.lines} lines were not stored]\n".encode()[: chunk.length]
    for at in range(start, stop, PLACEHOLDER_BYTES):
        size, skip = min(stop - at, PLACEHOLDER_BYTES), at - chunk.offset
        yield note[skip : skip + size].ljust(size)
