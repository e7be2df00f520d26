"""One writer per web process: takes all waiting frames of all learners, commits them, then acknowledges.

So the line of a quiet learner is stored at once, and busy learners share a commit. These take turns in rounds: commit,
notify viewers, pause, acknowledge, and commit again once the frames that the acknowledgments allowed have arrived.
While the database is unavailable nothing is dropped: the batch waits here, sockets stay open, and windows fill.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from django.db import Error as DatabaseError
from django.db import connection

from jobs import counters, wake
from jobs.failpoints import fp
from jobs.ingest.store import Committed, commit
from jobs.retries import database_away
from jobs.tokens import Grant
from learner_agent.wire import Ack, Data, Nack, StreamFrame

logger = logging.getLogger(__name__)

MAX_BATCH_BYTES = 8 * 1024 * 1024
MAX_BACKOFF_S = 2.0
BUSY_BYTES = 64 * 1024
BUSY_INTERVAL_S = 0.05
"""After a batch above BUSY_BYTES the next commit begins about this long after the last one began. Learners send as soon
as they are acknowledged, so without a pause busy ones would use all cores for ever smaller frames. Only the
acknowledgment waits: so lines accumulate where they are printed, and none that has arrived waits for a commit."""
GATHER_S = 0.01
"""The part of it for the way to the learners and back: acknowledgments are sent this much earlier."""
LATE_S = 0.04
"""How long the next commit waits at most for learners that were acknowledged. One that arrives after a commit has begun
waits for the next one, and from then on learners would alternate, each in every second commit only."""
BUSY_ITEM_BYTES = 2048
"""A learner that sent this much has more when it is acknowledged; the commit does not wait for others."""
REQUESTS_APART_S = 0.2
"""Jobs whose learners report in this time are reconciled together."""
ITEM_BYTES = 512
"""Weight of a frame without log."""


@dataclass(frozen=True, slots=True)
class Item:
    """One waiting frame. respond is called from the writer's thread with the number of frames that are done and the
    frames to send; None if they can never be stored."""

    grant: Grant
    frame: StreamFrame
    respond: Callable[[int, list[Ack | Nack] | None], None]

    @property
    def weight(self) -> int:
        return ITEM_BYTES + (len(self.frame.payload) if isinstance(self.frame, Data) else 0)


class Writer:
    """A thread with its own database connection. submit may be called from any thread."""

    def __init__(self) -> None:
        self._waiting: list[Item] = []
        self._missing: set[int] = set()
        """Ids of learners whose frames the next commit waits for."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._notifier = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ingest-notifier")
        self._requests = _Requests(self._notifier)

    def submit(self, item: Item) -> None:
        """Add a frame to the next commit."""
        with self._changed:
            self._waiting.append(item)
            if self._thread is None:
                self._stopping = False
                self._thread = threading.Thread(target=self._run, name="ingest-writer", daemon=True)
                self._thread.start()
            self._missing.discard(item.grant.learner_id)
            if (
                not self._missing
            ):  # each time it wakes up, it takes the interpreter from the thread that adds the next frame
                self._changed.notify()

    def stop(self) -> None:
        """End the thread; waiting frames remain unacknowledged, so their learners send them again."""
        with self._changed:
            self._stopping, thread, self._thread = True, self._thread, None
            self._waiting.clear()
            self._changed.notify()
        if thread is not None:
            thread.join(timeout=10)
        self._notifier.submit(
            lambda: connection.close()
        ).result()  # the lambda: the connection of that thread, not of this one

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
            connections: dict[int, Callable[..., None]] = {}
            for item in self._waiting:
                # The learner has connected again: what answers its old frames must not reach the new connection, whose
                # shipper may be another process that numbers its events from 1 again.
                if connections.setdefault(item.grant.learner_id, item.respond) != item.respond:
                    break
                weight += item.weight
                count += 1
                if weight >= MAX_BATCH_BYTES:
                    break
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            return batch

    def _gather(self, acknowledged: set[int]) -> None:
        """Wait until acknowledged learners have sent what they printed meanwhile, so that one commit has it all."""
        with self._changed:
            self._missing = acknowledged - {item.grant.learner_id for item in self._waiting}
            self._changed.wait_for(lambda: self._stopping or not self._missing, LATE_S)
            self._missing = set()

    def _settle(self, batch: Sequence[Item]) -> None:
        """Commit a batch, however long the database is unavailable, then respond."""
        pause = 0.05
        while not self._stopping:
            try:
                self._commit(batch)
                return
            except DatabaseError as error:
                if not database_away(error):
                    self._isolate_failing(batch)
                    return
                counters.INGEST_WAITS.inc()
                logger.warning("ingest waits for the database", extra={"error": str(error)[:200]})
            except Exception:  # such as the driver's ValueError for a value that no column takes
                self._isolate_failing(batch)
                return
            connection.close()
            time.sleep(pause)
            pause = min(MAX_BACKOFF_S, pause * 2)

    def _isolate_failing(self, batch: Sequence[Item]) -> None:
        """Find the frame that cannot be stored: it must cost no other learner its connection."""
        if len(batch) == 1:
            logger.exception("a frame cannot be stored", extra={"job": batch[0].grant.job_id})
            counters.INGEST_REFUSED.inc()
            batch[0].respond(1, None)
            return
        for item in batch:
            self._settle([item])

    def _commit(self, batch: Sequence[Item]) -> None:
        responses_due_at = time.monotonic() + BUSY_INTERVAL_S - GATHER_S
        is_busy = sum(item.weight for item in batch) > BUSY_BYTES
        done = commit([(item.grant, item.frame) for item in batch])
        fp("ingest.after_commit")
        _count(done)
        done.publish()
        fp("ingest.after_publish")
        if done.to_reconcile:
            self._requests.add(done.to_reconcile)
        if is_busy:
            time.sleep(max(0.0, responses_due_at - time.monotonic()))
        settled = Counter((item.respond, item.grant.learner_id) for item in batch)
        for (respond, learner_id), count in settled.items():
            respond(count, done.responses.get(learner_id))
        fp("ingest.after_responses")
        if is_busy:
            self._gather({item.grant.learner_id for item in batch if item.weight >= BUSY_ITEM_BYTES})


def _count(done: Committed) -> None:
    counters.INGEST_COMMITS.inc()
    counters.INGEST_LINES.inc(done.lines)
    counters.INGEST_BYTES.inc(done.bytes)
    counters.INGEST_POINTS.inc(done.points)


class _Requests:
    """Has the lifecycle reconcile jobs: the first at once, those that follow so soon together. In another thread: it
    may wait for a job's row or for the broker."""

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self._thread = thread
        self._lock = threading.Lock()
        self._jobs: set[str] = set()
        self._next_at = 0.0

    def add(self, job_ids: Collection[str]) -> None:
        with self._lock:
            waiting = bool(self._jobs)
            self._jobs.update(job_ids)
        if not waiting:
            self._thread.submit(self._send)

    def _send(self) -> None:
        time.sleep(max(0.0, self._next_at - time.monotonic()))
        with self._lock:
            job_ids, self._jobs = self._jobs, set()
        self._next_at = time.monotonic() + REQUESTS_APART_S
        if self._wakes(job_ids) is not None and (error := self._wakes(job_ids)) is not None:
            logger.warning(
                "reconciliation not requested; the ticker will do it",
                extra={"jobs": sorted(job_ids), "error": str(error)[:200]},
            )

    def _wakes(self, job_ids: Collection[str]) -> DatabaseError | None:
        """What went wrong. The next try has a new connection."""
        try:
            wake.reconcile_all(job_ids)
        except DatabaseError as error:
            connection.close()
            return error
        return None


writer = Writer()
