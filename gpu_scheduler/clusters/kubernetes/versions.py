"""Which lists are believed: none that is older than what this process has seen or written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from gpu_scheduler.clusters.base import ClusterBusy
from gpu_scheduler.clusters.kubernetes.client import Api, Object

OUTDATED_S = 60.0
"""Seconds for which lists are refused that are older than what this process has seen or written, from the first one on.
An API server never returns such a list, but a cache in front of one may, and what it lacks is not gone. Not for longer:
an etcd that was restored from a backup counts from lower versions on."""
OLDER = "The Kubernetes API returned a list that is older than what it showed before."


class Newest:
    """The newest version of a collection that this process has seen or written. Safe to share between threads.

    on_restart: called when older lists are believed, because none has been newer for OUTDATED_S.
    """

    def __init__(self, clock: Callable[[], float], on_restart: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._on_restart = on_restart
        self._lock = threading.Lock()
        self._version = 0
        self._refused_at: float | None = None
        """When the first list was refused, if nothing has been as new as expected since."""

    def note(self, version: int) -> None:
        with self._lock:
            if version >= self._version:
                self._version, self._refused_at = version, None

    def least(self) -> int:
        """The version that a list has at least if it is requested now."""
        with self._lock:
            return self._version

    def take(self, version: int, *, least: int) -> None:
        """Believe a list of this version. Raises ClusterBusy if it is outdated."""
        if version >= least:
            with self._lock:
                self._version, self._refused_at = max(self._version, version), None
            return
        with self._lock:
            now = self._clock()
            if self._refused_at is None:
                self._refused_at = now
            if now - self._refused_at <= OUTDATED_S:
                raise ClusterBusy(OLDER)
            self._version, self._refused_at = version, None
        self._on_restart()


def listed(api: Api, path: str, newest: Newest, query: dict[str, str]) -> tuple[list[Object], str]:
    """The objects of a list, and its version. Raises ClusterBusy."""
    least = newest.least()
    found = api.get(path, **query)
    version = found["metadata"]["resourceVersion"]
    newest.take(number(version), least=least)
    return found["items"], version


def number(version: str) -> int:
    """Versions are numbers that grow with every change of the cluster (KEP-5504)."""
    with suppress(ValueError):
        return int(version)
    return 0
