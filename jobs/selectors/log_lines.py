"""Cut a learner's stored bytes into numbered lines. Pure: chunks in, lines out, memory bounded.

A line ends with a newline. Where the program rewrote it with carriage returns, as progress bars do, its text is the
last version; the stored bytes keep them all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

KEPT_BYTES = 256 * 1024  # of one line; what a program prints beyond is counted, not shown
PLAIN_BYTES = 64 * 1024  # lines up to here need none of the care that longer ones do
LINE_BYTES = 60  # of a line in a frame besides its text
TEXT_MAX = 10_000  # characters of a line's text unless the whole line is asked for

Moments = Sequence[tuple[int, int]]
"""(offset, milliseconds since the epoch) of each read of the launcher, ascending."""
UNKNOWN = -1  # instead of the milliseconds: nobody noted when these bytes were read


@dataclass(frozen=True)
class StoredChunk:
    """Stored bytes of one stream. times: (offset within the chunk, milliseconds since the epoch), ascending.

    lost: the bytes were not kept; data is empty, and length and lines say how much is missing.
    """

    offset: int
    length: int
    first_line: int
    lines: int
    data: bytes
    times: list[tuple[int, int]]
    lost: bool = False


class LogLine(NamedTuple):
    """One line. t: RFC 3339 of the read that brought its first byte, "" if unknown. cut: characters left out.

    A tuple, because a loud log makes a hundred thousand of them a second.
    """

    n: int
    t: str
    text: str
    cut: int = 0


def size_of(text: str) -> int:
    """Roughly the bytes in a frame of a line with this text."""
    length = len(text)
    return length + length // 16 + LINE_BYTES


@dataclass(frozen=True)
class Hole:
    """Lines that were not kept."""

    first: int
    last: int
    size: int  # bytes


class LineCutter:
    """Feed chunks in order; take lines with a number above `after` as they become complete."""

    def __init__(self, *, after: int = 0, text_max: int = TEXT_MAX) -> None:
        self._after = after
        self._text_max = text_max
        self._number = 0  # of the line being gathered
        self._kept = b""
        self._dropped = 0  # bytes of it that were not kept
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
        if known > 0:  # lines that nobody asked for are stepped over as a whole
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
        """The unfinished last line, if it has begun."""
        if not self._kept and not self._dropped:
            return None
        kept, dropped, time = self._kept, self._dropped, self._time
        line = self._finish()
        self._kept, self._dropped, self._time = kept, dropped, time
        return line

    def _plain(
        self, data: bytes, pieces: list[bytes], chunk: StoredChunk, starts: list[int], offset: int
    ) -> list[LogLine]:
        """All complete lines at once where each is short, sound and written once, as nearly all are; else none."""
        count = len(pieces) - 1
        sizes = list(map(len, pieces))
        if not count or max(sizes) > min(PLAIN_BYTES, self._text_max) or b"\r" in data:
            return []
        try:
            texts = data.decode().split("\n")
        except UnicodeDecodeError:
            return []
        if not starts or starts[-1] <= offset:  # one read of the launcher brought them all
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
    """Complete lines in columns, the first of them numbered `first`, and the unfinished one behind them."""

    first: int
    times: list[str]
    texts: list[str]
    tail: LogLine | None


def plain(chunks: Sequence[StoredChunk], after: int) -> Plain | None:
    """The lines above `after` where each is short, sound and written once, as nearly all are; else None.

    The same as a LineCutter finds, at a fifth of its cost: no object per line is made. The chunks follow each other
    from one in which a line up to `after` begins, or from the stream's first byte.
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
    if not starts or starts[-1] <= 0:  # one read of the launcher brought them all
        told = [_time_at(times, starts, 0)] * len(texts)
    else:
        sizes = map(len, texts if data.isascii() else data.split(b"\n"))
        told = _times_at(times, starts, [end + n for n, end in enumerate(accumulate(sizes, initial=0))][:-1])
    rest, rest_time = texts.pop(), told.pop()
    return Plain(after + 1, told, texts, LogLine(after + 1 + len(texts), rest_time, rest) if rest else None)


def _joined(chunks: Sequence[StoredChunk], after: int) -> tuple[bytes, Moments]:
    """The bytes above line `after` and the moments of their reads, by offset within them; nothing if parts are lost."""
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
    """Where the line after so many complete ones begins."""
    return len(data) - len(data.split(b"\n", count)[count])


def cut(chunks: Iterable[StoredChunk], *, after: int = 0, text_max: int = TEXT_MAX) -> list[LogLine]:
    """All complete lines above `after`."""
    cutter = LineCutter(after=after, text_max=text_max)
    return [line for chunk in chunks for line in cutter.feed(chunk)]


def _time_at(times: Moments, starts: list[int], offset: int) -> str:
    at = bisect_right(starts, offset) - 1
    if at < 0 or times[at][1] == UNKNOWN:
        return ""
    seconds, milliseconds = divmod(times[at][1], 1000)
    return f"{_second(seconds)}.{milliseconds:03d}Z"


def _times_at(times: Moments, starts: list[int], offsets: list[int]) -> list[str]:
    """As _time_at for ascending offsets: a read of the launcher usually brought many lines."""
    found: list[str] = []
    while len(found) < len(offsets):
        at = bisect_right(starts, offsets[len(found)])
        end = bisect_left(offsets, starts[at]) if at < len(starts) else len(offsets)
        found += [_time_at(times, starts, offsets[len(found)])] * (end - len(found))
    return found


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    """The same for all lines of a second, and a loud log has thousands of those."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
