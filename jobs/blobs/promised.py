"""Room on the disk for files that were accepted and have not arrived: what is free is not yet all used.

The sum over all rows takes as long as there are rows. So each process adds up what it accepts itself, and reads the sum
only once that could matter; then offers are judged one at a time, over all processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from django.db import connection

from jobs import storage

SHARE = 16
"""Of what is free, one part is promised without a look at the rows: that is right for as many web processes."""
LOCK = 4_770_003
SUM = """
SELECT coalesce(sum(b.size - b.received), 0) FROM jobs_blob b WHERE NOT b.verified AND EXISTS (
  SELECT FROM jsonb_array_elements_text(b.requested_from) AS asked (job)
  JOIN jobs_attempt a ON a.job_id = asked.job AND a.held)
"""
"""Of files that a live attempt may still send: what a lost learner left half sent is promised no more."""


class Promised:
    """What this process knows to be promised, in bytes: the sum when it last read it, and its own since."""

    def __init__(self) -> None:
        self._bytes: int | None = None
        self._lock = threading.Lock()

    def require(self, needed: int, room: Callable[[], int | None]) -> None:
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
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s, 0)", [LOCK])
            cursor.execute(SUM)
            promised = int(cursor.fetchone()[0])
        free = room() or 0  # after the sum: what arrives in between counts in both
        if promised + needed > free:
            raise storage.DiskFull(max(0, free - promised), needed)
        with self._lock:
            self._bytes = promised + needed


promised = Promised()
