"""Which lists are believed: none that is older than what this process has seen or written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from gpu_scheduler.clusters.base import ClusterBusy
from gpu_scheduler.clusters.kubernetes.client import Api, Object, RequestRejected

T = TypeVar("T")

PAGE = 500
"""Objects that a list is read by. kubectl reads so many."""
FORGOTTEN = 410
"""HTTP status of a list whose version is no longer known: 5 to 10 minutes after its first page."""
TRIES = 3
"""Readings of a list before the caller gets ClusterBusy."""

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


def listed(
    api: Api,
    path: str,
    newest: Newest,
    query: Mapping[str, str],
    keep: Callable[[Object], T],
) -> tuple[list[T], str]:
    """What keep makes of each object of a list, and the list's version. Raises ClusterBusy.

    The list is read in pages, and nothing but what was kept outlives its page: a cluster can have more pods than this
    process has memory for. All pages are of one version. One that the API server has forgotten meanwhile, or that
    another server answers with a version of its own, makes the list begin again.
    """
    for _ in range(TRIES):
        least = newest.least()
        try:
            found, version = _pages(api, path, query, keep)
        except RequestRejected as error:
            if error.status != FORGOTTEN:
                raise
            continue
        if version is not None:
            newest.take(number(version), least=least)
            return found, version
    raise ClusterBusy(f"The Kubernetes API has forgotten {TRIES} lists of {path} before they were read.")


def _pages(
    api: Api, path: str, query: Mapping[str, str], keep: Callable[[Object], T]
) -> tuple[list[T], str | None]:
    """One reading of all pages. Without a version if they are not of the same one."""
    kept: list[T] = []
    version, rest = None, ""
    while True:
        page = api.get(path, **{"limit": str(PAGE), **query}, **({"continue": rest} if rest else {}))
        if version not in (None, page["metadata"]["resourceVersion"]):
            return [], None
        version = page["metadata"]["resourceVersion"]
        kept += map(keep, page["items"])
        rest = page["metadata"].get("continue", "")
        if not rest:
            return kept, version


def version_of(api: Api, path: str, newest: Newest) -> str:
    """The version that a list of this collection would have now, and whether it may be listed: reads one object at
    most, so it costs the same on a large cluster. Raises ClusterBusy."""
    least = newest.least()
    version = str(api.get(path, limit="1")["metadata"]["resourceVersion"])
    newest.take(number(version), least=least)
    return version


def number(version: str) -> int:
    """Versions are numbers that grow with every change of the cluster (KEP-5504)."""
    with suppress(ValueError):
        return int(version)
    return 0
