"""File and log downloads under ASGI: blocks are read in threads, so that a slow client does not delay others."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from typing import IO, Any

from django.core.handlers.asgi import ASGIRequest
from django.http import StreamingHttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware

from portal.database import shares
from portal.database.threads import DatabaseThreads

Blocks = Generator[bytes, None, None]
BLOCK = 256 * 1024
STREAMS = DatabaseThreads(shares.STREAMS, "stream", release=True)
"""Read all tables, one block at a time. A connection to the database is returned after each block, so that a client
that reads slowly holds none."""
FILES = DatabaseThreads(8, "file", release=True)
"""Read the blobs of all downloads, without the database: a store that hangs may hold all of these threads."""
PLAIN = DatabaseThreads(4, "plain", release=True)
"""Read static files and end responses. Neither database nor store is needed for it, so neither can hold up a page."""


@dataclass(frozen=True)
class Limits:
    """Of downloads of one kind, per web process.

    per_user, in_all: under way at a time; each keeps some blocks in memory, however slowly it is read.
    at_once: blocks of one user that are read at a time. Each holds a thread for as long as the database or the store
    needs, so a few users cannot hold all threads of the kind.
    """

    per_user: int
    in_all: int
    at_once: int


TABLES_LIMITS = Limits(per_user=3, in_all=48, at_once=1)
FILES_LIMITS = Limits(per_user=16, in_all=256, at_once=2)


class TooManyDownloads(Exception):
    """As many downloads of this kind are under way as may be. own: of the user, not of all users together."""

    def __init__(self, most: int, *, own: bool) -> None:
        super().__init__(most)
        self.most, self.own = most, own


class Download(StreamingHttpResponse):
    """A streamed response that counts as one of its user's downloads until it is closed. Raises TooManyDownloads."""

    def __init__(
        self, user_id: int, blocks: Blocks, threads: DatabaseThreads = STREAMS, **options: Any
    ) -> None:
        kind = _TABLES if threads is STREAMS else _BLOBS
        turns, release = kind.start(user_id)
        self._release = weakref.finalize(self, release)  # also if it is dropped before anything is sent
        super().__init__(in_thread(blocks, threads, turns), **options)

    def close(self) -> None:
        super().close()
        self._release()


class _Downloads:
    """The downloads of one kind that are under way, by user."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._lock = threading.Lock()
        self._count: Counter[int] = Counter()
        self._turns: dict[int, asyncio.Semaphore] = {}

    def start(self, user_id: int) -> tuple[asyncio.Semaphore, Callable[[], None]]:
        """Count one more; the turns that its blocks take, and the function that ends it. Raises TooManyDownloads."""
        with self._lock:
            if self._count[user_id] >= self.limits.per_user:
                raise TooManyDownloads(self.limits.per_user, own=True)
            if self._count.total() >= self.limits.in_all:
                raise TooManyDownloads(self.limits.in_all, own=False)
            self._count[user_id] += 1
            turns = self._turns.setdefault(user_id, asyncio.Semaphore(self.limits.at_once))
        return turns, lambda: self._end(user_id)

    def _end(self, user_id: int) -> None:
        with self._lock:
            self._count[user_id] -= 1
            if not self._count[user_id]:
                del self._count[user_id], self._turns[user_id]


_TABLES, _BLOBS = _Downloads(TABLES_LIMITS), _Downloads(FILES_LIMITS)


async def in_thread(
    blocks: Blocks, threads: DatabaseThreads, turns: asyncio.Semaphore
) -> AsyncIterator[bytes]:
    """Yield the same blocks, each read without blocking the event loop, and in its turn."""
    reading: asyncio.Future[bytes] | None = None
    try:
        while True:
            await turns.acquire()
            reading = asyncio.ensure_future(threads.run(next, blocks, b""))
            # When the thread is free, which may be long after the client has left.
            reading.add_done_callback(lambda _: turns.release())
            if not (block := await asyncio.shield(reading)):
                break
            yield block
    finally:
        if reading is not None:  # a client that leaves does not end the thread that reads for it
            await asyncio.wait([reading])
        await threads.run(blocks.close)  # closes its file


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """WhiteNoise with streamed files: its own iterator would be read completely before the first byte is sent."""

    @staticmethod
    def serve(static_file: Any, request: Any) -> Any:
        response = WhiteNoiseMiddleware.serve(static_file, request)
        if isinstance(request, ASGIRequest):
            file, response.file_to_stream = response.file_to_stream, None
            response.streaming_content = in_thread(_blocks(file), PLAIN, asyncio.Semaphore(1))
        return response


def _blocks(file: IO[bytes] | None) -> Blocks:
    while file is not None and (block := file.read(BLOCK)):
        yield block
