"""Blocks of downloads take turns: a few users whose blocks take long do not hold up pages or other users."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import pytest
from django.test.client import AsyncRequestFactory
from whitenoise.responders import Response, StaticFile

from portal.database import shares
from portal.streaming import (
    FILES,
    FILES_LIMITS,
    STREAMS,
    TABLES_LIMITS,
    Blocks,
    Download,
    StaticFilesMiddleware,
)

WITHIN_S = 60
PAIRS = ((STREAMS, TABLES_LIMITS), (FILES, FILES_LIMITS))


class Gate:
    """Holds the thread of every block until it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._entered = threading.Semaphore(0)

    async def holds(self, threads: int) -> None:
        """Return once it holds so many more."""
        for _ in range(threads):
            assert await asyncio.to_thread(self._entered.acquire, timeout=WITHIN_S)

    def holds_more(self) -> bool:
        return self._entered.acquire(blocking=False)

    def blocks(self) -> Blocks:
        self._entered.release()
        assert self._open.wait(WITHIN_S)
        yield b"slow"

    def open(self) -> None:
        self._open.set()


async def whole(response: Any) -> bytes:
    content: AsyncIterator[bytes] = aiter(response)
    async with asyncio.timeout(WITHIN_S):
        return b"".join([block async for block in content])


@pytest.mark.parametrize(("threads", "limits"), PAIRS, ids=["tables", "files"])
async def test_slow_blocks_of_three_users_hold_up_neither_static_files_nor_a_fourth(
    threads: Any, limits: Any
) -> None:
    gate = Gate()
    slow = [
        Download(user, gate.blocks(), threads) for user in (1, 2, 3) for _ in range(min(3, limits.per_user))
    ]
    reading = [asyncio.create_task(whole(each)) for each in slow]
    await gate.holds(3 * limits.at_once)

    def quick() -> Blocks:
        yield b"quick"

    other = Download(4, quick(), threads)
    assert await whole(other) == b"quick"
    static = StaticFilesMiddleware.serve(_File(), AsyncRequestFactory().get("/static/app.js"))
    assert await whole(static) == b"code"
    assert not gate.holds_more()
    assert 3 * limits.at_once < shares.STREAMS
    gate.open()
    assert await asyncio.gather(*reading) == [b"slow"] * len(slow)
    for each in (*slow, other):
        each.close()


async def test_who_leaves_while_a_block_is_read_gets_no_further_thread_until_it_is_read() -> None:
    """Else one user could hold all threads, by asking and leaving."""
    gate = Gate()
    left = Download(1, gate.blocks(), STREAMS)
    leaving = asyncio.create_task(whole(left))
    await gate.holds(1)
    leaving.cancel()
    again = Download(1, gate.blocks(), STREAMS)
    reading = asyncio.create_task(whole(again))
    await asyncio.sleep(0)
    assert await whole(Download(2, iter_of(b"other"), STREAMS)) == b"other"
    assert not gate.holds_more()
    gate.open()
    assert await reading == b"slow"
    with pytest.raises(asyncio.CancelledError):
        await leaving
    left.close()
    again.close()


def iter_of(block: bytes) -> Blocks:
    yield block


class _File(StaticFile):
    def __init__(self) -> None:
        """As one that was found on the disk."""

    def get_response(self, method: str, headers: Any) -> Response:
        return Response(HTTPStatus.OK, [("Content-Length", "4")], io.BytesIO(b"code"))
