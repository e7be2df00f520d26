"""Bytes of a file on their way out under ASGI: read in threads, so that one slow reader holds up nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from functools import partial
from typing import IO, Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from whitenoise.middleware import WhiteNoiseMiddleware

Blocks = Generator[bytes, None, None]
BLOCK = 256 * 1024


async def in_thread(blocks: Blocks) -> AsyncIterator[bytes]:
    """The same blocks, each fetched without holding up the event loop."""
    take = sync_to_async(partial(next, blocks, b""))
    try:
        while block := await take():
            yield block
    finally:
        await sync_to_async(blocks.close)()  # lets go of its file


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """WhiteNoise, but for how its files are read: it gives Django an iterator that is read whole before it is sent."""

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
