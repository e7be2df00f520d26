"""Which gangs changed since when: numbered, so that a watch gets only what is new to it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from gpu_scheduler.clusters.base import GangReport
from gpu_scheduler.clusters.local.store import boot_clock

KEPT = 2000
"""Older changes are forgotten: a watch that is further behind gets everything."""


@dataclass(frozen=True, slots=True)
class Changes:
    """all: changed holds every gang, not only the changed ones."""

    revision: int
    all: bool
    changed: list[GangReport]
    gone: list[str]


class Journal:
    """Guarded by the given lock. Revisions start from the boot clock (µs), so they increase across daemon restarts."""

    def __init__(self, lock: threading.RLock) -> None:
        self.revision = int(boot_clock() * 1_000_000)
        self._condition = threading.Condition(lock)
        self._changes: OrderedDict[str, int] = OrderedDict()
        self._oldest = self.revision

    def changed(self, name: str) -> int:
        """Note a change of this gang, its removal included; returns the new revision."""
        self.revision += 1
        self._changes[name] = self.revision
        self._changes.move_to_end(name)
        if len(self._changes) > KEPT:
            _, self._oldest = self._changes.popitem(last=False)
        self._condition.notify_all()
        return self.revision

    def since(self, revision: int | None, wait_s: float) -> list[str] | None:
        """Gangs that changed after this revision, waiting up to wait_s seconds for one; None: any may have changed."""
        if revision is None or revision < self._oldest or revision > self.revision:
            return None
        self._condition.wait_for(lambda: self.revision > revision, wait_s)
        if revision < self._oldest:
            return None
        names: list[str] = []
        for name, at in reversed(self._changes.items()):
            if at <= revision:
                break
            names.append(name)
        return names
