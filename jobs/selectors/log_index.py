"""Which lines of a log are warnings and errors, from an index of it that is extended when it is asked for.

The index is derived data: the stretches of LogIndex follow each other from line 1, and what they lack is read from the
stored chunks, in steps of bounded work. Two readers may extend it at once; the second one's step is dropped.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

from django.db import connection, transaction

from jobs.log_levels import PARTS, STARTS, After, Kind, marks
from jobs.selectors.log_lines import LineCutter, LogLine, StoredChunk, from_offset
from jobs.selectors.logs import (
    SEARCH_S,
    TEXT_MAX,
    Head,
    LogCursor,
    LogPage,
    Stream,
    as_read,
    chunks_for,
    chunks_from,
    heads,
    line_count,
)

EXTEND_S = 1.0
"""A request extends the index for about this long, and says how far it got."""
STRETCH_LINES = 50_000
STRETCH_MARKS = 8_000
READ_CHUNKS = 4
"""Chunks read at a time for lines that are far apart."""
PLACES = 2_000
"""Most errors whose lines are named beside the counts."""
DECODED = 200_000
"""Most errors among which they are chosen."""


class Level(StrEnum):
    """What lines can be asked for by."""

    WARN = "warn"
    ERROR = "error"


KINDS = {Level.WARN: frozenset({Kind.WARNING}), Level.ERROR: STARTS | PARTS}


@dataclass(frozen=True, slots=True)
class Levels:
    """Counts of a log up to line `counted`. errors_at: where errors begin; of very many an even choice, or none."""

    warnings: int
    errors: int
    first_error: int | None
    errors_at: list[int]
    counted: int


NO_LEVELS = Levels(0, 0, None, [], 0)


class LevelLine(NamedTuple):
    """A LogLine with its level. part: it belongs to the error that began above it."""

    n: int
    t: str
    text: str
    cut: int
    level: Level
    part: bool


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The newest stretch of an index; row 0: there is none yet."""

    row: int = 0
    first_line: int = 1
    next_line: int = 1
    end: int = 0
    after: After = After.NOTHING
    warnings: int = 0
    errors: int = 0
    packed: bytes = b""

    @property
    def is_full(self) -> bool:
        return self.next_line - self.first_line >= STRETCH_LINES or len(self.packed) >= STRETCH_MARKS


@dataclass(slots=True)
class _Read:
    """What one step read: lines up to next_line - 1, bytes up to end."""

    next_line: int
    end: int
    after: After
    marks: list[tuple[int, Kind]] = field(default_factory=list)


# --- extending


def extend(stream: Stream, head: Head, *, within_s: float = EXTEND_S) -> int:
    """Index what came since, for about this long; returns the number of the last line that is indexed."""
    deadline = time.monotonic() + within_s
    while True:
        last = _newest(stream)
        if last.end >= head.size or (not head.sealed and last.next_line > head.lines):
            return last.next_line - 1
        read = _read(stream, head, last)
        if read is None or not _store(stream, last, read) or time.monotonic() > deadline:
            return _newest(stream).next_line - 1


def _newest(stream: Stream) -> _Stretch:
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT id, first_line, next_line, "end", after, warnings, errors, marks FROM jobs_logindex
               WHERE job_id = %s AND attempt = %s AND rank = %s ORDER BY first_line DESC LIMIT 1""",
            stream,
        )
        found = cursor.fetchone()
    if found is None:
        return _Stretch()
    row, first_line, next_line, end, after, warnings, errors, packed = found
    return _Stretch(row, first_line, next_line, end, After(after), warnings, errors, bytes(packed))


def _read(stream: Stream, head: Head, last: _Stretch) -> _Read | None:
    """The whole lines in the next chunks; None if there are none."""
    chunks = [from_offset(chunk, last.end) for chunk in chunks_from(stream, last.end)]
    if not chunks:
        return None
    if chunks[0].lost:
        hole = chunks[0]
        return _Read(hole.first_line + hole.lines, hole.offset + hole.length, After.NOTHING)
    stored = list(takewhile(lambda chunk: not chunk.lost, chunks))
    data = b"".join(chunk.data for chunk in stored)
    end = last.end + len(data)
    whole = data.rfind(b"\n") + 1
    if not whole and end < head.size:  # the end of this line is far away: only what is near it counts
        return _Read(last.next_line, end, last.after)
    if head.sealed and end == head.size:
        whole = len(data)  # the last line may have no end
    if not whole:
        return None
    body = data[:whole]
    found, after = marks(body, last.after)
    lines = body.count(b"\n") + (not body.endswith(b"\n"))
    placed = [(last.next_line + place, kind) for place, kind in found]
    return _Read(last.next_line + lines, last.end + whole, after, placed)


def _store(stream: Stream, last: _Stretch, read: _Read) -> bool:
    """Add what was read; False if another reader did it meanwhile, or the stream starts over or was removed."""
    base = _Stretch(0, last.next_line, last.next_line, last.end) if last.is_full else last
    before = base.next_line - 1
    previous = _unpack(base.packed, base.first_line)[-1:]
    packed = base.packed + _pack(read.marks, previous[0][0] if previous else base.first_line)
    values: dict[str, int | bytes] = {
        "next_line": read.next_line,
        "end": read.end,
        "after": int(read.after),
        "warnings": base.warnings + sum(kind is Kind.WARNING for _, kind in read.marks),
        "errors": base.errors + sum(kind in STARTS for _, kind in read.marks),
        "marks": packed,
    }
    job, attempt, rank = stream
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            """SELECT tenant_id FROM jobs_learner
               WHERE job_id = %s AND attempt = %s AND rank = %s AND log_bytes >= %s FOR SHARE""",
            [*stream, read.end],
        )
        found = cursor.fetchone()
        if found is None:
            return False
        if base.row:
            cursor.execute(
                """UPDATE jobs_logindex
                   SET next_line = %s, "end" = %s, after = %s, warnings = %s, errors = %s, marks = %s
                   WHERE id = %s AND next_line = %s AND "end" = %s""",
                [*values.values(), base.row, before + 1, base.end],
            )
        else:
            cursor.execute(
                """INSERT INTO jobs_logindex
                   (next_line, "end", after, warnings, errors, marks, job_id, tenant_id, attempt, rank, first_line)
                   SELECT %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s
                   WHERE EXISTS (SELECT FROM jobs_logchunk WHERE job_id = %s AND attempt = %s AND rank = %s)
                   ON CONFLICT DO NOTHING""",  # the lines may have been removed since they were read
                [*values.values(), job, found[0], attempt, rank, base.first_line, *stream],
            )
        return bool(cursor.rowcount)


# --- reading


def levels(stream: Stream, head: Head) -> Levels:
    """How many warnings and errors a log has, and where errors begin."""
    extend(stream, head)
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT coalesce(sum(warnings), 0), coalesce(sum(errors), 0), coalesce(max(next_line), 1) - 1
               FROM jobs_logindex WHERE job_id = %s AND attempt = %s AND rank = %s""",
            stream,
        )
        warnings, errors, counted = map(int, cursor.fetchone())
    starts = (n for n, kind in _marked(stream, 0) if kind in STARTS)
    if errors > DECODED:
        return Levels(warnings, errors, next(starts, None), [], counted)
    places = list(starts) if errors else []
    step = -(-len(places) // PLACES) or 1
    return Levels(warnings, errors, places[0] if places else None, places[::step], counted)


def lines_of(stream: Stream, level: Level, *, q: str = "", after: int = 0, limit: int = 200) -> LogPage:
    """Lines of this level above `after`, those that contain q if it is given, as LevelLines. Bounded like a search."""
    deadline = time.monotonic() + SEARCH_S
    head = heads([stream]).get(stream)
    if head is None:
        return LogPage([], after, None)
    counted = extend(stream, head)
    total, needle = line_count(stream, head), q.casefold()
    wanted = ((n, kind) for n, kind in _marked(stream, after) if kind in KINDS[level])
    found: list[LogLine] = []
    at = after
    for line, kind in _texts(stream, wanted):
        at = line.n
        if not needle or needle in as_read(line.text):
            found.append(LevelLine(*line, level, kind in PARTS))  # type: ignore[arg-type]  # a line is the first fields of a LevelLine
        if len(found) == limit or time.monotonic() > deadline:
            return LogPage(found, at, head, more=at < total)
    at = max(at, counted)
    return LogPage(found, at, head, more=at < total)


def _marked(stream: Stream, after: int) -> Iterator[tuple[int, Kind]]:
    """The marked lines above `after`, ascending."""
    first = -1
    while True:
        with connection.cursor() as cursor:
            cursor.execute(
                """SELECT first_line, marks FROM jobs_logindex
                   WHERE job_id = %s AND attempt = %s AND rank = %s AND first_line > %s AND next_line > %s
                     AND length(marks) > 0 ORDER BY first_line LIMIT 16""",
                [*stream, first, after + 1],
            )
            rows = cursor.fetchall()
        for first, packed in rows:
            yield from (mark for mark in _unpack(bytes(packed), first) if mark[0] > after)
        if len(rows) < 16:
            return


def _texts(stream: Stream, wanted: Iterable[tuple[int, Kind]]) -> Iterator[tuple[LogLine, Kind]]:
    """The lines of these numbers, ascending; chunks between them are not read."""
    kinds: dict[int, Kind] = {}
    rest = iter(wanted)
    pending: list[int] = []

    def fill() -> bool:
        for n, kind in rest:
            kinds[n] = kind
            pending.append(n)
            if len(pending) == 2_000:
                break
        return bool(pending)

    while pending or fill():
        chunks = chunks_for([LogCursor(stream, pending[0] - 1)], READ_CHUNKS).get(stream, [])
        lines = _lines_in(chunks, pending[0], set(pending))
        if not lines:  # what is left of it was not stored
            pending.pop(0)
            continue
        for line in lines:
            yield line, kinds.pop(line.n)
        pending[:] = pending[bisect_right(pending, lines[-1].n) :]


def _lines_in(chunks: Sequence[StoredChunk], first: int, wanted: set[int]) -> list[LogLine]:
    """Those of the wanted lines that are in these chunks, the first of which contains the line `first`."""
    cutter = LineCutter(after=first - 1, text_max=TEXT_MAX)
    lines = [line for chunk in chunks for line in cutter.feed(chunk) if line.n in wanted]
    rest = cutter.rest()
    # A line that is longer than these chunks, or that has no end, is shown as far as it is here.
    return lines if lines or rest is None or rest.n not in wanted else [rest]


# --- marks as bytes: of each its distance from the one before, with the kind in the lowest bits


def _pack(found: Iterable[tuple[int, Kind]], before: int) -> bytes:
    packed = bytearray()
    for n, kind in found:
        number, before = (n - before) << 3 | kind, n
        while number > 127:
            packed.append(number & 127 | 128)
            number >>= 7
        packed.append(number)
    return bytes(packed)


_KINDS = tuple(Kind)


def _unpack(packed: bytes, before: int) -> list[tuple[int, Kind]]:
    found = []
    number = shift = 0
    for byte in packed:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            before += number >> 3
            found.append((before, _KINDS[number & 7]))
            number = shift = 0
    return found
