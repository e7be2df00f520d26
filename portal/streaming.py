"""File and log downloads under ASGI: blocks are read in threads, so that a slow client does not delay others."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator
from typing import IO, Any

from django.core.handlers.asgi import ASGIRequest
from django.http import StreamingHttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware

from portal.database import shares
from portal.database.threads import DatabaseThreads

Blocks = Generator[bytes, None, None]
BLOCK = 256 * 1024
STREAMS = DatabaseThreads(shares.STREAMS, "stream", release=True)
"""Read all tables and static files, one block at a time. A connection to the database is returned after each block, so
that a client that reads slowly holds none."""
FILES = DatabaseThreads(8, "file", release=True)
"""Read the blobs of all downloads, without the database: a store that hangs may hold all of these threads."""
PER_USER = 16
"""Files of one user at a time, per web process: each keeps some blocks in memory, however slowly it is read."""


TABLES_PER_USER = 3
"""The same of tables: the database may need long for a block, and pages load static files by the same threads."""


class TooManyDownloads(Exception):
    """The user has as many downloads of this kind under way as they may."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.most = most


class Download(StreamingHttpResponse):
    """A streamed response that counts as one of its user's downloads until it is closed. Raises TooManyDownloads."""

    def __init__(
        self, user_id: int, blocks: Blocks, threads: DatabaseThreads = STREAMS, **options: Any
    ) -> None:
        is_table = threads is STREAMS
        release = _DOWNLOADS.start((user_id, is_table), TABLES_PER_USER if is_table else PER_USER)
        self._release = weakref.finalize(self, release)  # also if it is dropped before anything is sent
        super().__init__(in_thread(blocks, threads), **options)

    def close(self) -> None:
        super().close()
        self._release()


class _Downloads:
    """The number of downloads under way, by user and whether they are tables."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count: Counter[tuple[int, bool]] = Counter()

    def start(self, whose: tuple[int, bool], most: int) -> Callable[[], None]:
        """Count one more; returns the function that ends it. Raises TooManyDownloads."""
        with self._lock:
            if self._count[whose] >= most:
                raise TooManyDownloads(most)
            self._count[whose] += 1
        return lambda: self._end(whose)

    def _end(self, whose: tuple[int, bool]) -> None:
        with self._lock:
            self._count[whose] -= 1
            if not self._count[whose]:
                del self._count[whose]


_DOWNLOADS = _Downloads()


async def in_thread(blocks: Blocks, threads: DatabaseThreads = STREAMS) -> AsyncIterator[bytes]:
    """Yield the same blocks, each read without blocking the event loop."""
    reading: asyncio.Future[bytes] | None = None
    try:
        while block := await asyncio.shield(reading := asyncio.ensure_future(threads.run(next, blocks, b""))):
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
            response.streaming_content = in_thread(_blocks(file))
        return response


def _blocks(file: IO[bytes] | None) -> Blocks:
    while file is not None and (block := file.read(BLOCK)):
        yield block
