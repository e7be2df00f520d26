"""What one web process knows of its learners: who is connected, and how each stands.

One query a second answers for all of them, and a hint that a job changed brings the next one forward; so a halt
is out at once, and within a second if no hint ever comes.
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
from portal.database.threads import DatabaseThreads

if TYPE_CHECKING:
    from portal.live.learner_consumer import LearnerConsumer

logger = logging.getLogger(__name__)

CHECK_S = 1.0
T = TypeVar("T")

THREADS = DatabaseThreads(4, "learners")


async def in_database(work: Callable[..., T], *arguments: Any) -> T:
    """Run work in one of the learners' threads, once more if its connection died since it was last used."""
    try:
        return await THREADS.run(work, *arguments)
    except DatabaseError as error:
        if not database_away(error):
            raise
        return await THREADS.run(work, *arguments)


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

    def on_hint(self, hint: Hint) -> None:
        """A job changed: look now. Called from any thread."""
        loop, look = self._loop, self._look
        if hint.subject is Subject.JOB and loop is not None and look is not None and not loop.is_closed():
            loop.call_soon_threadsafe(look.set)

    async def _run(self, look: asyncio.Event) -> None:
        async with pubsub.subscribed(self.on_hint):
            while True:
                try:
                    await asyncio.wait_for(look.wait(), CHECK_S)
                except TimeoutError:
                    pass
                look.clear()
                try:
                    await self._refresh()
                except (
                    Exception
                ):  # a fault of ours: without this loop no learner of this process hears a halt
                    logger.exception("learners not looked after")

    async def _refresh(self) -> None:
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
