"""One writer per web process: takes all that waits from all learners, commits it, then acknowledges.

So a quiet learner's line is stored at once and loud ones share a commit. Loud ones go in a round: commit, viewers,
pause, acknowledgements, and the next commit as soon as all that they set free has come. While the database is away
nothing is dropped: the batch waits here, the sockets stay, and the learners' windows fill.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from django.db import Error as DatabaseError
from django.db import connection

from jobs import wake
from jobs.failpoints import fp
from jobs.ingest.store import commit
from jobs.retries import database_away
from jobs.tokens import Grant
from learner_agent.wire import Ack, Data, Nack, StreamFrame

logger = logging.getLogger(__name__)

MAX_BATCH_BYTES = 8 * 1024 * 1024
MAX_BACKOFF_S = 2.0
LOUD_BYTES = 64 * 1024
LOUD_EVERY_S = 0.05
"""After a batch above LOUD_BYTES the next commit begins about this long after the last one began. Learners send what
they have as soon as they are answered, so without it loud ones would fill the cores with ever smaller frames. It is the
answer that waits, not what it brings: so lines gather where they are printed, and none waits here, too."""
GATHER_S = 0.01
"""Of that for the way to the learners and back; answers go out so much earlier."""
LATE_S = 0.04
"""How long those who were answered are waited for at most. Whoever comes after the commit has begun waits for the next
one, and from then on the learners would take turns: each would be heard in every second round only."""
LOUD_ITEM_BYTES = 2048
"""A learner who sent so much at once surely has more when he is answered; nobody waits for the others."""
ITEM_BYTES = 512
"""What a frame without log counts for."""


@dataclass(frozen=True, slots=True)
class Item:
    """One frame that waits. answer is called from the writer's thread: so many frames are settled, and what to say;
    None if they can never be stored."""

    grant: Grant
    frame: StreamFrame
    answer: Callable[[int, list[Ack | Nack] | None], None]

    @property
    def weight(self) -> int:
        return ITEM_BYTES + (len(self.frame.payload) if isinstance(self.frame, Data) else 0)


class Writer:
    """A thread with a connection of its own. submit may be called from any thread."""

    def __init__(self) -> None:
        self._waiting: list[Item] = []
        self._missing: set[int] = set()
        """Learners whose frames the next commit waits for."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._notifier = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ingest-notifier")

    def submit(self, item: Item) -> None:
        """Let a frame join the next commit."""
        with self._changed:
            self._waiting.append(item)
            if self._thread is None:
                self._stopping = False
                self._thread = threading.Thread(target=self._run, name="ingest-writer", daemon=True)
                self._thread.start()
            self._missing.discard(item.grant.learner_id)
            if (
                not self._missing
            ):  # each time it wakes, the writer takes the interpreter from who brings the next one
                self._changed.notify()

    def stop(self) -> None:
        """End the thread; frames that wait stay unacknowledged, so their learners send them again."""
        with self._changed:
            self._stopping, thread, self._thread = True, self._thread, None
            self._waiting.clear()
            self._changed.notify()
        if thread is not None:
            thread.join(timeout=10)
        self._notifier.submit(
            lambda: connection.close()
        ).result()  # the lambda: that thread's connection, not ours

    def _run(self) -> None:
        try:
            while batch := self._take():
                self._settle(batch)
        finally:
            connection.close()

    def _take(self) -> list[Item]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping)
            if self._stopping:
                return []
            weight, count = 0, 0
            for item in self._waiting:
                weight += item.weight
                count += 1
                if weight >= MAX_BATCH_BYTES:
                    break
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            return batch

    def _gather(self, answered: set[int]) -> None:
        """Wait until they have sent what they printed meanwhile, so that it goes together."""
        with self._changed:
            self._missing = answered - {item.grant.learner_id for item in self._waiting}
            self._changed.wait_for(lambda: self._stopping or not self._missing, LATE_S)
            self._missing = set()

    def _settle(self, batch: Sequence[Item]) -> None:
        """Commit a batch, however long the database is away, then answer."""
        pause = 0.05
        while not self._stopping:
            try:
                self._commit(batch)
                return
            except DatabaseError as error:
                if not database_away(error):
                    self._isolate_failing(batch)
                    return
                logger.warning("ingest waits for the database", extra={"error": str(error)[:200]})
            except Exception:  # such as the driver's ValueError for what no column takes
                self._isolate_failing(batch)
                return
            connection.close()
            time.sleep(pause)
            pause = min(MAX_BACKOFF_S, pause * 2)

    def _isolate_failing(self, batch: Sequence[Item]) -> None:
        """One of these frames cannot be stored: find it, for it must cost no other learner his connection."""
        if len(batch) == 1:
            logger.exception("a frame cannot be stored", extra={"job": batch[0].grant.job_id})
            batch[0].answer(1, None)
            return
        for item in batch:
            self._settle([item])

    def _commit(self, batch: Sequence[Item]) -> None:
        answers_due = time.monotonic() + LOUD_EVERY_S - GATHER_S
        is_loud = sum(item.weight for item in batch) > LOUD_BYTES
        done = commit([(item.grant, item.frame) for item in batch])
        fp("ingest.after_commit")
        done.publish()
        fp("ingest.after_publish")
        for job_id in done.to_reconcile:
            self._notifier.submit(_wake, job_id)
        if is_loud:
            time.sleep(max(0.0, answers_due - time.monotonic()))
        settled = Counter((item.answer, item.grant.learner_id) for item in batch)
        for (answer, learner_id), count in settled.items():
            answer(count, done.answers.get(learner_id))
        fp("ingest.after_answers")
        if is_loud:
            self._gather({item.grant.learner_id for item in batch if item.weight >= LOUD_ITEM_BYTES})


def _wake(job_id: str) -> None:
    """Let the lifecycle look. In a thread of its own: it may have to wait for the job's row or for the broker."""
    try:
        wake.reconcile(job_id)
    except DatabaseError as error:
        connection.close()
        logger.warning(
            "lifecycle not woken; its ticker looks anyway", extra={"job": job_id, "error": str(error)[:200]}
        )


writer = Writer()
