"""A driver's cache of its gangs, fed by a stream of changes. Safe to share between threads.

The stream numbers its changes (revision). After its own change a driver calls ``require`` with that revision; the cache
returns nothing older, so a process always reads its own writes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from gpu_scheduler.clusters.base import STALE_S, GangReport, Observation, Watches


class GangCache:
    """Answers nothing before ``replace``, and nothing after ``lose`` before the next one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._gangs: dict[str, GangReport] = {}
        self._seen_at: float | None = None
        self._revision = self._required = 0
        self.watches = Watches()

    def replace(self, gangs: Iterable[GangReport], revision: int) -> None:
        """Take over all gangs, after a start or a gap. Every gang known before or now counts as changed."""
        fresh = {gang.name: gang for gang in gangs}
        with self._lock:
            changed = self._gangs.keys() | fresh.keys()
            self._gangs = fresh
            self._advance(revision)
        self.watches.notify(changed)

    def update(self, changed: Iterable[GangReport], gone: Collection[str], revision: int) -> None:
        """Apply changes. Without any, the cluster confirms that there were none.

        Changes do not complete a cache that was lost or never filled; the watches still learn of them.
        """
        fresh = {gang.name: gang for gang in changed}
        with self._lock:
            if self._seen_at is not None:
                self._gangs |= fresh
                for name in gone:
                    self._gangs.pop(name, None)
                self._advance(revision)
        self.watches.notify(fresh.keys() | set(gone))

    def _advance(self, revision: int) -> None:
        self._revision = revision
        self._seen_at = self._clock()

    def last(self, name: str) -> GangReport | None:
        """What was last noted of this gang, however long ago; None: it was not there, or nothing was ever noted."""
        with self._lock:
            return self._gangs.get(name)

    def lose(self) -> None:
        """The stream broke: nothing here counts any more until ``replace``."""
        with self._lock:
            self._seen_at = None

    def require(self, revision: int) -> None:
        """Return nothing older than this revision, which this process has caused."""
        with self._lock:
            self._required = max(self._required, revision)

    def observation(self, names: Sequence[str] | None) -> Observation | None:
        """What the cache shows; None if the cluster itself must be asked: stale, lost, or a name is missing."""
        with self._lock:
            seen_at = self._seen_at
            if seen_at is None or self._clock() - seen_at > STALE_S or self._revision < self._required:
                return None
            if names is None:
                return Observation(dict(sorted(self._gangs.items())), seen_at)
            if any(name not in self._gangs for name in names):
                return None
            return Observation({name: self._gangs[name] for name in sorted(names)}, seen_at)
