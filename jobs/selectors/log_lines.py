"""Cut a learner's stored bytes into numbered lines. Pure, with bounded memory: chunks in, lines out.

A line ends with a newline. If the program rewrote it with carriage returns, as progress bars do, its text is the
last version; the stored bytes keep every version.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

KEPT_BYTES = 256 * 1024  # of one line; bytes beyond are counted, not shown
PLAIN_BYTES = 64 * 1024  # lines up to this size take the fast path
LINE_BYTES = 60  # of a line in a frame, in addition to its text
TEXT_MAX = 10_000  # characters of a line's text unless the whole line is requested

ReadTimes = Sequence[tuple[int, int]]
"""(offset, milliseconds since the epoch) of each read of the launcher, ascending."""
UNKNOWN = -1  # instead of the milliseconds: the time of this read was not recorded


@dataclass(frozen=True)
class StoredChunk:
    """Stored bytes of one stream. times: (offset within the chunk, milliseconds since the epoch), ascending.

    lost: the bytes were not stored; data is empty, length and lines say how much is missing.
    """

    offset: int
    length: int
    first_line: int
    lines: int
    data: bytes
    times: list[tuple[int, int]]
    lost: bool = False


def from_offset(chunk: StoredChunk, offset: int) -> StoredChunk:
    """The part of a chunk from this byte of the stream on. Of a chunk that was not stored: all of it."""
    at = offset - chunk.offset
    if at <= 0 or chunk.lost:
        return chunk
    before = chunk.data[:at].count(b"\n")
    read = max(0, bisect_right([start for start, _ in chunk.times], at) - 1)
    return StoredChunk(
        offset,
        chunk.length - at,
        chunk.first_line + before,
        chunk.lines - before,
        chunk.data[at:],
        [(max(0, start - at), ms) for start, ms in chunk.times[read:]],
    )


class LogLine(NamedTuple):
    """One line. t: time (RFC 3339) of the launcher's read with its first byte, "" if unknown. cut: omitted characters.

    A tuple, because a fast log produces a hundred thousand of them per second.
    """

    n: int
    t: str
    text: str
    cut: int = 0


def size_of(text: str) -> int:
    """Approximate bytes of a line with this text in a frame."""
    length = len(text)
    return length + length // 16 + LINE_BYTES


@dataclass(frozen=True)
class Hole:
    """Lines that were not stored."""

    first: int
    last: int
    size: int  # bytes


class LineCutter:
    """Feed chunks in order; each call yields the lines above `after` that became complete."""

    def __init__(self, *, after: int = 0, text_max: int = TEXT_MAX) -> None:
        self._after = after
        self._text_max = text_max
        self._number = 0  # of the line that is being collected
        self._kept = b""
        self._dropped = 0  # bytes of it beyond KEPT_BYTES
        self._time = ""
        self.holes: list[Hole] = []

    def feed(self, chunk: StoredChunk) -> Iterator[LogLine]:
        if not self._number:
            self._number = chunk.first_line
        if chunk.lost:
            self._skip(chunk)
            return
        data, offset = chunk.data, 0
        known = min(self._after - self._number + 1, chunk.lines)
        if known > 0:  # skip lines up to `after` in one step
            offset = data.rfind(b"\n") + 1 if known == chunk.lines else _after_lines(data, known)
            data = data[offset:]
            self._number += known
            self._forget()
        pieces = data.split(b"\n")
        starts = [at for at, _ in chunk.times]
        plain = 0
        if (
            not self._kept
            and not self._dropped
            and (lines := self._plain(data, pieces, chunk, starts, offset))
        ):
            yield from lines
            plain = len(lines)
            offset = len(chunk.data) - len(pieces[-1])
            self._number += plain
        for piece in pieces[plain:-1]:
            if self._kept or self._dropped or len(piece) > PLAIN_BYTES or b"\r" in piece:
                self._gather(piece, chunk, starts, offset)
                yield self._finish()
            else:
                text = piece.decode("utf-8", "replace")
                shown = text[: self._text_max]
                yield LogLine(
                    self._number, _time_at(chunk.times, starts, offset), shown, len(text) - len(shown)
                )
            self._number += 1
            offset += len(piece) + 1
        if pieces[-1] and self._number > self._after:
            self._gather(pieces[-1], chunk, starts, offset)

    def rest(self) -> LogLine | None:
        """The unfinished last line, if any."""
        if not self._kept and not self._dropped:
            return None
        kept, dropped, time = self._kept, self._dropped, self._time
        line = self._finish()
        self._kept, self._dropped, self._time = kept, dropped, time
        return line

    def _plain(
        self, data: bytes, pieces: list[bytes], chunk: StoredChunk, starts: list[int], offset: int
    ) -> list[LogLine]:
        """All complete lines at once if each is short, valid UTF-8 and without carriage returns; else none.

        Nearly all chunks qualify.
        """
        count = len(pieces) - 1
        sizes = list(map(len, pieces))
        if not count or max(sizes) > min(PLAIN_BYTES, self._text_max) or b"\r" in data:
            return []
        try:
            texts = data.decode().split("\n")
        except UnicodeDecodeError:
            return []
        if not starts or starts[-1] <= offset:  # all from one read of the launcher
            times = [_time_at(chunk.times, starts, offset)] * count
        else:
            begins = [offset + end + n for n, end in enumerate(accumulate(sizes, initial=0))]
            times = _times_at(chunk.times, starts, begins[:count])
        numbers = range(self._number, self._number + count)
        new, none = tuple.__new__, [0] * count
        return [new(LogLine, row) for row in zip(numbers, times, texts[:count], none, strict=True)]

    def _gather(self, piece: bytes, chunk: StoredChunk, starts: list[int], offset: int) -> None:
        if not self._kept and not self._dropped:
            self._time = _time_at(chunk.times, starts, offset)
        whole = self._kept + piece
        rewritten = whole.rfind(b"\r", 0, len(whole.rstrip(b"\r")))
        if rewritten >= 0:
            whole, self._dropped = whole[rewritten + 1 :], 0
        self._kept = whole[:KEPT_BYTES]
        self._dropped += len(whole) - len(self._kept)

    def _finish(self) -> LogLine:
        text = self._kept.rstrip(b"\r").decode("utf-8", "replace")
        shown = text[: self._text_max]
        line = LogLine(self._number, self._time, shown, len(text) - len(shown) + self._dropped)
        self._forget()
        return line

    def _forget(self) -> None:
        self._kept, self._dropped, self._time = b"", 0, ""

    def _skip(self, chunk: StoredChunk) -> None:
        if not chunk.lines:
            self._dropped += chunk.length
            return
        last = self._number + chunk.lines - 1
        if last > self._after:
            self.holes.append(Hole(max(self._number, self._after + 1), last, chunk.length))
        self._forget()
        self._number = last + 1


@dataclass(frozen=True, slots=True)
class Plain:
    """Complete lines as columns, the first of them numbered `first`, and the unfinished line after them."""

    first: int
    times: list[str]
    texts: list[str]
    tail: LogLine | None


def plain(chunks: Sequence[StoredChunk], after: int) -> Plain | None:
    """The lines above `after` if each is short, valid UTF-8 and without carriage returns; else None.

    The same result as a LineCutter's at a fifth of the cost, because no object per line is created. The chunks must be
    contiguous and start with one in which a line up to `after` begins, or with the stream's first byte.
    """
    data, times = _joined(chunks, after)
    if not data or b"\r" in data:
        return None
    try:
        texts = data.decode().split("\n")
    except UnicodeDecodeError:
        return None
    if len(texts) == 1 or max(map(len, texts)) > TEXT_MAX:
        return None
    starts = [at for at, _ in times]
    if not starts or starts[-1] <= 0:  # all from one read of the launcher
        line_times = [_time_at(times, starts, 0)] * len(texts)
    else:
        sizes = map(len, texts if data.isascii() else data.split(b"\n"))
        line_times = _times_at(
            times, starts, [end + n for n, end in enumerate(accumulate(sizes, initial=0))][:-1]
        )
    rest, rest_time = texts.pop(), line_times.pop()
    return Plain(
        after + 1, line_times, texts, LogLine(after + 1 + len(texts), rest_time, rest) if rest else None
    )


def _joined(chunks: Sequence[StoredChunk], after: int) -> tuple[bytes, ReadTimes]:
    """The bytes above line `after` and the times of their reads by offset within them; empty if parts are lost."""
    first = chunks[0]
    known = after - first.first_line + 1
    if any(chunk.lost for chunk in chunks) or known > first.lines or (known <= 0 and first.offset > 0):
        return b"", []
    begin = 0
    if known > 0:
        begin = first.data.rfind(b"\n") + 1 if known == first.lines else _after_lines(first.data, known)
    base = first.offset + begin
    data = b"".join([first.data[begin:], *(chunk.data for chunk in chunks[1:])])
    times: list[tuple[int, int]] = []
    for chunk in chunks:
        if not chunk.times or chunk.times[0][0] > 0:
            times.append((chunk.offset - base, UNKNOWN))
        times += [(chunk.offset + at - base, ms) for at, ms in chunk.times]
    return data, times


def _after_lines(data: bytes, count: int) -> int:
    """The offset at which the line after this number of complete lines begins."""
    return len(data) - len(data.split(b"\n", count)[count])


def cut(chunks: Iterable[StoredChunk], *, after: int = 0, text_max: int = TEXT_MAX) -> list[LogLine]:
    """All complete lines above `after`."""
    cutter = LineCutter(after=after, text_max=text_max)
    return [line for chunk in chunks for line in cutter.feed(chunk)]


def _time_at(times: ReadTimes, starts: list[int], offset: int) -> str:
    at = bisect_right(starts, offset) - 1
    if at < 0 or times[at][1] == UNKNOWN:
        return ""
    seconds, milliseconds = divmod(times[at][1], 1000)
    return f"{_second(seconds)}.{milliseconds:03d}Z"


def _times_at(times: ReadTimes, starts: list[int], offsets: list[int]) -> list[str]:
    """_time_at for ascending offsets: one read of the launcher usually has many lines."""
    found: list[str] = []
    while len(found) < len(offsets):
        at = bisect_right(starts, offsets[len(found)])
        end = bisect_left(offsets, starts[at]) if at < len(starts) else len(offsets)
        found += [_time_at(times, starts, offsets[len(found)])] * (end - len(found))
    return found


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    """Cached: a fast log has thousands of lines per second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
