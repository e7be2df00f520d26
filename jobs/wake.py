"""Notify the lifecycle. A hint may be lost, duplicated or delayed: the ticker takes up what is due anyway.

Tasks are named, not imported: only Celery workers import jobs.lifecycle.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection
from functools import partial

from celery import current_app
from django.db import connection, transaction
from django.db.models.functions import Now
from kombu import Queue

from jobs.failpoints import fp
from jobs.models import Job

logger = logging.getLogger(__name__)

EXPIRES_S = 30
SILENCE_S = 2.0
"""Seconds without hints after the broker did not answer: a request never waits for it twice in a row."""

SHARED = 16
"""A worker that takes up a job takes up so many at most: others that are due along with it."""
LOCKED_S = 0.02
APART_S = 0.1
"""Shortest time between two requested cycles: one cycle handles all waiting jobs."""

_silent_until = 0.0


def reconcile(job_id: str) -> None:
    """Make this job due now. Durable at once (it is due), and prompt by a hint after the commit."""
    if Job.objects.filter(pk=job_id, settled=False).update(next_reconcile_at=Now()):
        hint("jobs.tasks.reconcile_job", job_id)


DUE = """
UPDATE jobs_job SET next_reconcile_at = clock_timestamp() WHERE id IN (
  SELECT id FROM jobs_job WHERE id = ANY(%s) AND NOT settled ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
) RETURNING id
"""


def reconcile_all(job_ids: Collection[str]) -> None:
    """As reconcile of each, with one statement and a hint for every SHARED of them. A job whose row is locked is tried
    again after LOCKED_S, as most locks are a transaction of the lifecycle; then it is waited for. It costs the others
    nothing."""
    left = _make_due(job_ids)
    if left:
        time.sleep(LOCKED_S)
        left = _make_due(left)
    for job in left:
        reconcile(job)


def _make_due(job_ids: Collection[str]) -> list[str]:
    """Returns those that are not, as their row is locked or they are settled."""
    with connection.cursor() as cursor:
        cursor.execute(DUE, [list(job_ids)])
        due = [job for (job,) in cursor.fetchall()]
    for job in due[::SHARED]:
        hint("jobs.tasks.reconcile_job", job)
    return sorted(set(job_ids).difference(due))


def cycle() -> None:
    """Request a scheduling cycle soon."""
    transaction.on_commit(_cycle_notifier.notify, robust=True)


def hint(task: str, *args: str) -> None:
    """Send a Celery message after the commit; a broker that is gone costs nothing but latency."""
    transaction.on_commit(partial(_send, task, args), robust=True)


def _send(task: str, args: tuple[str, ...]) -> None:
    global _silent_until
    fp("hint.before_send")
    if time.monotonic() < _silent_until:
        return
    try:
        current_app.send_task(task, args=args, expires=EXPIRES_S, ignore_result=True, retry=False)
    except Exception as error:
        _silent_until = time.monotonic() + SILENCE_S
        logger.warning("broker did not take a hint", extra={"task": task, "error": str(error)})


def drop_cycle_hints() -> None:
    """Delete the requests of cycles that no worker has taken from the broker: the database has what is due."""
    global _silent_until
    if time.monotonic() < _silent_until:
        return
    try:
        # Not its default channel: that waits for a broker that is gone, without an end.
        with current_app.connection_for_write() as broker, broker.channel() as channel:
            Queue(current_app.conf.task_routes["jobs.tasks.run_cycle"]["queue"]).bind(channel).purge()
    except Exception as error:
        _silent_until = time.monotonic() + SILENCE_S
        logger.warning("broker did not drop hints", extra={"error": str(error)})


class _CycleNotifier:
    """Sends the first of many requests at once and one for all that follow within APART_S after that."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start empty: also after a fork, where the parent's timer does not exist."""
        self._lock = threading.Lock()
        self._quiet_until = 0.0
        self._waiting = False

    def notify(self) -> None:
        with self._lock:
            wait_s = self._quiet_until - time.monotonic()
            if self._waiting:
                return
            self._waiting = wait_s > 0
            if not self._waiting:
                self._quiet_until = time.monotonic() + APART_S
        if wait_s > 0:
            timer = threading.Timer(wait_s, self._late)
            timer.daemon = True
            timer.start()
        else:
            _send("jobs.tasks.run_cycle", ())

    def _late(self) -> None:
        with self._lock:
            self._waiting = False
            self._quiet_until = time.monotonic() + APART_S
        _send("jobs.tasks.run_cycle", ())


_cycle_notifier = _CycleNotifier()
os.register_at_fork(after_in_child=_cycle_notifier.reset)
