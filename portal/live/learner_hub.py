"""What one web process knows of its learners: who is connected, and how each stands.

One query a second answers for all of them, and a hint that a job changed brings the next one forward; so a halt
is out at once, and within a second if no hint ever comes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import Error as DatabaseError
from django.db import connection

from jobs import pubsub
from jobs.ingest.intents import note_seen, session_states
from jobs.pubsub import Hint, Subject
from jobs.retries import database_away

if TYPE_CHECKING:
    from portal.live.learner_consumer import LearnerConsumer

logger = logging.getLogger(__name__)

LOOK_S = 1.0
THREADS = 4
Answer = TypeVar("Answer")

_threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="agent-db")


async def in_database(work: Callable[..., Answer], *arguments: Any) -> Answer:
    """Run work in one of the threads that keep a database connection for learners."""
    return await asyncio.get_running_loop().run_in_executor(_threads, _guarded, work, arguments)


def _guarded(work: Callable[..., Answer], arguments: tuple[Any, ...]) -> Answer:
    """Try once more on a fresh connection when the kept one has died in the meantime."""
    for last in (False, True):
        try:
            return work(*arguments)
        except DatabaseError as error:
            if not database_away(error):
                raise
            connection.close()
            if last:
                raise
    raise AssertionError("unreachable")


def close_threads() -> None:
    """Give the threads' connections back; for tests, whose database goes away."""
    together = threading.Barrier(THREADS)

    def close() -> None:
        together.wait(timeout=10)  # so that each thread takes one of these, and none takes two
        connection.close()

    for future in [_threads.submit(close) for _ in range(THREADS)]:
        future.result()


class LearnerHub:
    """The learners of one event loop."""

    def __init__(self) -> None:
        self._learners: set[LearnerConsumer] = set()
        self._look: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def join(self, learner: LearnerConsumer) -> None:
        """Take a connection in; the first one of a loop starts the looking."""
        if self._loop is not learner.loop or self._task is None or self._task.done():
            self._learners.clear()
            self._loop, self._look = learner.loop, asyncio.Event()
            self._task = learner.loop.create_task(self._run(self._look))
        self._learners.add(learner)

    def leave(self, learner: LearnerConsumer) -> None:
        self._learners.discard(learner)
        if not self._learners and self._task is not None and self._loop is learner.loop:
            self._task.cancel()
            self._task = None

    def hear(self, hint: Hint) -> None:
        """A job changed: look now. Called from any thread."""
        loop, look = self._loop, self._look
        if hint.subject is Subject.JOB and loop is not None and look is not None and not loop.is_closed():
            loop.call_soon_threadsafe(look.set)

    async def _run(self, look: asyncio.Event) -> None:
        async with pubsub.subscribed(self.hear):
            while True:
                try:
                    await asyncio.wait_for(look.wait(), LOOK_S)
                except TimeoutError:
                    pass
                look.clear()
                try:
                    await self._tell()
                except (
                    Exception
                ):  # a fault of ours: without this loop no learner of this process hears a halt
                    logger.exception("learners not looked after")

    async def _tell(self) -> None:
        learners = {id(learner): learner for learner in self._learners if learner.grant is not None}
        ids = {learner.grant.learner_id for learner in learners.values() if learner.grant is not None}
        if not ids:
            return
        try:
            found = await in_database(session_states, ids)
            caught_up = (learner for learner in learners.values() if learner.is_caught_up)
            if heard := {learner.grant.learner_id for learner in caught_up if learner.grant is not None}:
                await in_database(note_seen, heard)
        except DatabaseError as error:
            logger.warning("learners' wishes not read", extra={"error": str(error)[:200]})
            return
        for learner in learners.values():
            if learner.grant is not None and learner in self._learners:
                learner.update(found.get(learner.grant.learner_id))


hub = LearnerHub()
