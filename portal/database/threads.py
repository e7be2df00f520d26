"""Threads in which the event loop runs blocking work that uses the database.

All such work of the web process runs in `DatabaseThreads`: requests, the readers of the live channels, the learners'
connections and streams. Each of these has threads of its own, because none may wait for another; what they do with
connections is the same. What was measured and considered: docs/adr/0024-one-kind-of-database-threads.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from django.db import connections

from jobs.retries import database_away

T = TypeVar("T")
CLOSE_S = 10.0


class DatabaseThreads:
    """A fixed number of threads.

    Each keeps the connection that its work opens until `close`, or until it breaks: for work many times a second. With
    release=True the connection goes back to the pool after each work.
    """

    def __init__(self, count: int, name: str, *, release: bool = False) -> None:
        self._count = count
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._guarded = _released if release else _guarded

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run work in one of the threads, in a copy of the caller's context; more work than threads waits in order."""
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, context.run, self._guarded, work, arguments)

    def close(self) -> None:
        """Finish the work under way and close every thread's connection. Blocks until that work ends."""
        together = threading.Barrier(
            self._count
        )  # so that each thread takes one of these, and none takes two

        def close_own() -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                together.wait(CLOSE_S)
            connections.close_all()

        for future in [self._executor.submit(close_own) for _ in range(self._count)]:
            future.result()


def _guarded(work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    """Close a connection that does not answer, so that the thread's next work opens another."""
    try:
        return work(*arguments)
    except Exception as error:
        if database_away(error):
            connections.close_all()
        raise


def _released(work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    try:
        return work(*arguments)
    finally:
        connections.close_all()
