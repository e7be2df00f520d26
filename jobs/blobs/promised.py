"""Room on the disk for files that were accepted and have not arrived: what is free is not yet all used.

Triggers keep a row per job, so the sum takes as long as there are jobs that send. Each process adds up what it accepts
itself, and reads the sum only once that could matter; then offers are judged one at a time, over all processes.

A promise lapses unless a part of it arrives every few minutes: a job that sends nothing takes no room from others.
What it sends later is taken as long as it takes no room that is promised to others.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

from django.db import connection, transaction

from jobs import storage
from jobs.models import Blob
from learner_agent.wire_fields import MAX_FILES

SHARE = 16
"""Of what is free, one part is promised without a look at the rows: that is right for as many web processes."""
MOST_FILES = 100_000
"""That a job may have offered and not sent; more if it has so many learners that each may have FILES_OF_A_LEARNER."""
FILES_OF_A_LEARNER = 2 * MAX_FILES
"""A checkpoint and results: learners that end at once offer theirs at once, and a refusal of results is for good."""
LAPSES_S = 300
PART = 100
"""A promise lapses after LAPSES_S in which less than one part of so many has arrived. The triggers know both."""
LOCK = 4_770_003
SUM = f"""
SELECT coalesce(sum(p.bytes), 0) FROM jobs_promise p
WHERE p.renewed_at > now() - interval '{LAPSES_S} seconds'
  AND EXISTS (SELECT FROM jobs_attempt a WHERE a.job_id = p.job_id AND a.held)
"""
"""Of jobs that may still send: what a lost learner left half sent is promised no more."""
FILES = """
SELECT coalesce(max(p.files), 0), coalesce(max(a.learners), 0) FROM jobs_attempt a
LEFT JOIN jobs_promise p ON p.job_id = a.job_id WHERE a.job_id = %s AND a.held
"""
"""That a job has offered and not sent, and the learners of its attempt."""
LAPSED = f"""
SELECT FROM jobs_promise WHERE job_id = %s AND renewed_at <= now() - interval '{LAPSES_S} seconds'
"""
RENEW = f"""
UPDATE jobs_promise SET renewed_at = now(), measured_from = bytes
WHERE job_id = %s AND (measured_from - bytes) * {PART} >= measured_from AND bytes <= %s
"""

Room = Callable[[], int | None]


class Promised:
    """What this process knows to be promised, in bytes: the sum when it last read it, and its own since."""

    def __init__(self) -> None:
        self._bytes: int | None = None
        self._lock = threading.Lock()

    def require(self, needed: int, room: Room) -> None:
        """Promise so many bytes more, which the transaction writes into rows. Raises storage.DiskFull.

        room: how many the disk has room for; None if unknown, as of a store on other machines.
        """
        free = room()
        if free is None or needed <= 0:
            return
        with self._lock:
            if self._bytes is not None and self._bytes + needed <= free // SHARE:
                self._bytes += needed
                return
        promised = _locked_sum()
        free = room() or 0  # after the sum: what arrives in between counts in both
        if promised + needed > free:
            raise storage.DiskFull(max(0, free - promised), needed, promised)
        with self._lock:
            self._bytes = promised + needed


def require_files(job_id: str, more: int) -> None:
    """Raise storage.TooManyFiles if a job may not offer so many files more before it has sent others."""
    with connection.cursor() as cursor:
        cursor.execute(FILES, [job_id])
        files, learners = cursor.fetchone()
    most = max(MOST_FILES, learners * FILES_OF_A_LEARNER)
    if files + more > most:
        raise storage.TooManyFiles(most)


def require_piece(blob: Blob, size: int, room: Room) -> None:
    """Raise OSError if the promise for a file has lapsed, and what is free is promised to others.

    The promise counts again once a part of it has arrived, and all of it fits.
    """
    job = next(iter(blob.requested_from or ()), None)
    if job is None:
        return
    with connection.cursor() as cursor:
        cursor.execute(LAPSED, [job])
        if cursor.fetchone() is None or (free := room()) is None:
            return
    with transaction.atomic():
        left = free - _locked_sum()
        if size > left:
            raise OSError(errno.ENOSPC, "the disk's room is promised to files that arrive")
        with connection.cursor() as cursor:
            cursor.execute(RENEW, [job, left])


def _locked_sum() -> int:
    """What is promised to all jobs. No other offer is judged until the end of the transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, 0)", [LOCK])
        cursor.execute(SUM)
        return int(cursor.fetchone()[0])


promised = Promised()
