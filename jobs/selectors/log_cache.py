"""The newest log chunks that this process has stored, so that viewers need no query to read them.

Holds committed rows only, and only of streams that were read recently. Nothing depends on it: what is missing or too
old here is read from the database, which another process can have written to since.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from jobs.selectors.log_lines import StoredChunk
from jobs.selectors.logs import Head, LogCursor, Stream

KEPT_BYTES = 512 * 1024  # per stream
STREAMS_MAX = 500
READ_WITHIN_S = 5.0  # a stream that was not read for this long is dropped
FRESH_S = 1.0  # after that another process can have stored more: ask the database


@dataclass(slots=True)
class _Cached:
    read_at: float
    stored_at: float = 0.0
    head: Head | None = None
    chunks: deque[StoredChunk] = field(default_factory=deque)
    size: int = 0


_streams: dict[Stream, _Cached] = {}
_lock = threading.Lock()


def remember(stream: Stream, head: Head, chunks: Iterable[StoredChunk]) -> None:
    """Keep chunks that were just committed; call in the order of the commits. Streams without readers are ignored."""
    now = time.monotonic()
    with _lock:
        kept = _streams.get(stream)
        if kept is None:
            return
        if now - kept.read_at > READ_WITHIN_S:
            del _streams[stream]
            return
        kept.head, kept.stored_at = head, now
        for chunk in chunks:
            last = kept.chunks[-1] if kept.chunks else None
            if last is not None and last.offset + last.length != chunk.offset:
                _forget(kept)
            kept.chunks.append(chunk)
            kept.size += chunk.length
        while kept.size > KEPT_BYTES and len(kept.chunks) > 2:
            kept.size -= kept.chunks.popleft().length


def forget(stream: Stream) -> None:
    """Drop a stream whose stored bytes have changed other than by growing."""
    with _lock:
        kept = _streams.get(stream)
        if kept is not None:
            kept.head = None
            _forget(kept)


def chunks_of(want: LogCursor) -> tuple[Head, list[StoredChunk]] | None:
    """The stream's current head and its chunks from the first requested line on; None: ask the database."""
    now = time.monotonic()
    with _lock:
        kept = _streams.get(want.stream)
        if kept is None:
            _make_room()
            _streams[want.stream] = _Cached(now)
            return None
        kept.read_at = now
        head = kept.head
        if head is None or now - kept.stored_at > FRESH_S or want.after > head.lines:
            return None
        chunks: list[StoredChunk] = []
        for chunk in reversed(kept.chunks):
            chunks.insert(0, chunk)
            if chunk.first_line <= want.after:  # the newest one in which the line can begin
                break
    if not chunks or (chunks[0].first_line > want.after and chunks[0].offset > 0):
        return None
    if chunks[-1].offset + chunks[-1].length != head.size:
        return None
    return head, chunks


def _forget(kept: _Cached) -> None:
    kept.chunks.clear()
    kept.size = 0


def _make_room() -> None:
    if len(_streams) >= STREAMS_MAX:
        del _streams[min(_streams, key=lambda stream: _streams[stream].read_at)]
