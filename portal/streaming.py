"""File and log downloads under ASGI: blocks are read in threads, so that a slow client does not delay others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from typing import IO, Any

from django.core.handlers.asgi import ASGIRequest
from whitenoise.middleware import WhiteNoiseMiddleware

from portal.database.threads import DatabaseThreads

Blocks = Generator[bytes, None, None]
BLOCK = 256 * 1024
STREAMS = DatabaseThreads(8, "stream", release=True)
"""Read the files and logs of all downloads, one block at a time."""


async def in_thread(blocks: Blocks) -> AsyncIterator[bytes]:
    """Yield the same blocks, each read without blocking the event loop."""
    try:
        while block := await STREAMS.run(next, blocks, b""):
            yield block
    finally:
        await STREAMS.run(blocks.close)  # closes its file


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
