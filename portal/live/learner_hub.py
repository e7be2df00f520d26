"""The learners that are connected to one web process, and their current intents.

One query per second reads all of them, and a hint that a job changed triggers the next one early; so a halt is sent
at once, and within a second if the hint is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import Error as DatabaseError

from jobs import pubsub
from jobs.ingest.intents import note_seen, session_states
from jobs.pubsub import Hint, Subject
from jobs.retries import database_away
from portal.database import shares
from portal.database.threads import DatabaseThreads

if TYPE_CHECKING:
    from portal.live.learner_consumer import LearnerConsumer

logger = logging.getLogger(__name__)

CHECK_S = 1.0
APART_S = 0.1
"""Between two queries that hints trigger: one reads the intents of all learners, and hints are of any job."""
T = TypeVar("T")

THREADS = DatabaseThreads(shares.LEARNERS, "learners")
OFFERS = DatabaseThreads(shares.OFFERS, "offers")
"""Offers have threads of their own: one of thousands of files takes seconds, and no halt may wait for it."""


async def in_database(work: Callable[..., T], *arguments: Any, threads: DatabaseThreads = THREADS) -> T:
    """Run work in one of the learners' threads, once more if its connection died since it was last used."""
    try:
        return await threads.run(work, *arguments)
    except DatabaseError as error:
        if not database_away(error):
            raise
        return await threads.run(work, *arguments)


class LearnerHub:
    """The learners of one event loop."""

    def __init__(self) -> None:
        self._learners: set[LearnerConsumer] = set()
        self._wake: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def join(self, learner: LearnerConsumer) -> None:
        """Add a connection; the first one of a loop starts the polling."""
        if self._loop is not learner.loop or self._task is None or self._task.done():
            self._learners.clear()
            self._loop, self._wake = learner.loop, asyncio.Event()
            self._task = learner.loop.create_task(self._run(self._wake))
        self._learners.add(learner)

    def leave(self, learner: LearnerConsumer) -> None:
        self._learners.discard(learner)
        if not self._learners and self._task is not None and self._loop is learner.loop:
            self._task.cancel()
            self._task = None

    def on_hint(self, _: Hint) -> None:
        """A job changed: read the intents now. Called from any thread."""
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None and not loop.is_closed():
            loop.call_soon_threadsafe(wake.set)

    async def _run(self, wake: asyncio.Event) -> None:
        async with pubsub.subscribed(self.on_hint, {Subject.JOB}):
            while True:
                try:
                    await asyncio.wait_for(wake.wait(), CHECK_S)
                except TimeoutError:
                    pass
                wake.clear()
                try:
                    await self._refresh()
                except Exception:  # without this loop no learner of this process would receive a halt
                    logger.exception("reading the learners' intents failed")
                await self._rest()

    async def _rest(self) -> None:
        await asyncio.sleep(APART_S)

    async def _refresh(self) -> None:
        learners = {id(learner): learner for learner in self._learners if learner.grant is not None}
        ids = {learner.grant.learner_id for learner in learners.values() if learner.grant is not None}
        if not ids:
            return
        try:
            found = await in_database(session_states, ids)
            caught_up = (learner for learner in learners.values() if learner.is_caught_up)
            if alive := {learner.grant.learner_id for learner in caught_up if learner.grant is not None}:
                await in_database(note_seen, alive)
        except DatabaseError as error:
            logger.warning("learners' intents not read", extra={"error": str(error)[:200]})
            return
        for learner in learners.values():
            if learner.grant is not None and learner in self._learners:
                learner.update(found.get(learner.grant.learner_id))


hub = LearnerHub()
