"""`job:{id}:logs:{attempt}:{rank}`: complete lines, numbered without a hole; the unfinished one as a state."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from jobs.selectors import log_cache, logs
from jobs.selectors.log_lines import Hole, LogLine, Plain, plain, size_of
from portal.live.frames import (
    FRAME_BYTES,
    FRAME_ITEMS,
    ChannelSource,
    FrameBatch,
    ReadRequest,
    ViewerFrame,
    cut_items,
    gap_frame,
    items_frame,
)
from portal.live.protocol import Channel

PAGE_LINES = 2_000  # of one learner in one look, so that many loud ones take turns
TAIL_EVERY_S = 0.25  # a progress bar is shown this often


class LogSource(ChannelSource):
    missed_is_fetched = True
    counts_rows = False

    def head(self, channel: Channel) -> int:
        page = logs.read_lines(_stream(channel), tail=1)
        if page.head is None:
            return 0
        return max(page.head.lines, page.lines[-1].n if page.lines else 0)

    def cached(self, request: ReadRequest) -> FrameBatch | None:
        """What this very process has just stored is passed on without reading it back."""
        asked = logs.LogCursor(_stream(request.channel), request.after)
        found = log_cache.chunks_of(asked)
        if found is None:
            return None
        head, chunks = found
        if not head.sealed and (lines := plain(chunks, request.after)) is not None:
            return _plain_batch(request, lines)
        return _batch(request, logs.page_of(asked, head, chunks, limit=PAGE_LINES))

    def read(self, requests: Sequence[ReadRequest]) -> dict[str, FrameBatch]:
        asked = {_stream(request.channel): request for request in requests}
        pages = logs.read_many(
            [logs.LogCursor(stream, request.after) for stream, request in asked.items()], limit=PAGE_LINES
        )
        return {asked[stream].channel.name: _batch(asked[stream], page) for stream, page in pages.items()}


def _stream(channel: Channel) -> logs.Stream:
    return (channel.job_id, channel.attempt, channel.rank)


def _plain_batch(request: ReadRequest, found: Plain) -> FrameBatch:
    """As _batch, of a log that grows, without an object per line: a loud one brings a hundred thousand a second."""
    more = len(found.texts) > PAGE_LINES
    tail = None if more else found.tail
    items = [
        {"n": n, "t": t, "text": text}
        for n, t, text in zip(
            range(found.first, found.first + PAGE_LINES), found.times, found.texts, strict=False
        )
    ]
    frames = _items_frames(request.channel.name, items, {"sealed": False, "tail": tail and _item(*tail)})
    return FrameBatch(frames, request.after + len(items), (tail, False, time.monotonic()), more)


def _batch(request: ReadRequest, found: logs.LogPage) -> FrameBatch:
    upto = found.next if request.upto is None else min(found.next, request.upto)
    lines = found.lines if upto == found.next else [line for line in found.lines if line.n <= upto]
    holes = [hole for hole in found.holes if hole.first <= upto]
    more = found.more or upto < found.next
    sealed = bool(found.head and found.head.sealed and not more)
    tail = None if more else found.tail
    state = {"sealed": sealed, "tail": tail and _item(*tail)}
    frames = _frames(request.channel.name, request.after, lines, holes, state)
    if holes and not lines and not more:  # no line carries the state, and a log may end in what was not kept
        end = max(request.after, upto, holes[-1].last)
        frames.append(items_frame(request.channel.name, end + 1, end, [], **state))
    stamp = (tail, sealed, time.monotonic())
    if not frames:
        if request.stamp is not None and not _is_news(request.stamp, stamp):
            return FrameBatch([], max(request.after, upto), request.stamp, more)
        frames = [items_frame(request.channel.name, request.after + 1, request.after, [], **state)]
    return FrameBatch(frames, max(request.after, upto), stamp, more)


def _is_news(before: tuple[Any, bool, float], now: tuple[Any, bool, float]) -> bool:
    if before[1] != now[1]:
        return True
    return before[0] != now[0] and now[2] - before[2] >= TAIL_EVERY_S


def _frames(
    ch: str, after: int, lines: list[LogLine], holes: list[Hole], state: dict[str, Any]
) -> list[ViewerFrame]:
    """Runs of lines and the gaps between them, in order; the last run carries the state."""
    frames: list[ViewerFrame] = []
    start = 0
    while start < len(lines):
        end = _end_of_run(lines, start)
        items = [_item(*line) for line in lines[start:end]]
        frames += _items_frames(ch, items, state if end == len(lines) else {})
        start = end
    frames += [gap_frame(ch, max(hole.first, after + 1), hole.last, lost=True) for hole in holes]
    return sorted(frames, key=lambda frame: frame.first)


def _items_frames(ch: str, items: list[dict[str, Any]], state: dict[str, Any]) -> list[ViewerFrame]:
    """Frames of lines without a hole, the last with the state; nearly always one, so made before weighed."""
    first = items[0]["n"]
    if len(items) <= FRAME_ITEMS:
        whole = items_frame(ch, first, items[-1]["n"], items, **state)
        if whole.size <= FRAME_BYTES or len(items) == 1:
            return [whole]
    parts = cut_items(first, items, [size_of(item["text"]) for item in items])
    return [items_frame(ch, *part, **(state if part is parts[-1] else {})) for part in parts]


def _end_of_run(lines: list[LogLine], start: int) -> int:
    """Where the numbers leave a hole; nearly always at the end."""
    if lines[-1].n - lines[start].n == len(lines) - 1 - start:
        return len(lines)
    return next(end for end in range(start + 1, len(lines)) if lines[end].n != lines[end - 1].n + 1)


def _item(n: int, t: str, text: str, cut: int) -> dict[str, Any]:
    item: dict[str, Any] = {"n": n, "t": t, "text": text}
    return item | {"cut": cut} if cut else item
