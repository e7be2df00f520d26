"""Feeds a driver's cache with the node daemon's changes, in a thread that runs while there is a watch."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gpu_scheduler.clusters.base import ClusterError, Observation, OnChange, Watch
from gpu_scheduler.clusters.cache import GangCache
from gpu_scheduler.clusters.local import client, protocol
from gpu_scheduler.clusters.local.client import Address

logger = logging.getLogger(__name__)

RECONNECT_S, RECONNECT_MAX_S = 0.5, 8.0
"""Seconds between two attempts: doubled after each one that brought no change, up to the second number."""


class Feed:
    """One connection to the daemon for all watches of a process."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._cache = GangCache()
        self._lock = threading.Lock()
        self._thread: _Stream | None = None

    def observation(self, names: Sequence[str] | None) -> Observation | None:
        return self._cache.observation(names)

    def require(self, revision: int) -> None:
        self._cache.require(revision)

    def watch(self, on_change: OnChange) -> Watch:
        watch = self._cache.watches.add(on_change, on_close=self._close_if_unwatched)
        with self._lock:
            if self._thread is None:
                self._thread = _Stream(self._address, self._cache)
                self._thread.start()
        return watch

    def _close_if_unwatched(self) -> None:
        with self._lock:
            thread, self._thread = (None, self._thread) if self._cache.watches else (self._thread, None)
        if thread is not None:
            thread.close()


class _Stream(threading.Thread):
    """Reads changes until it is closed; reconnects after every error, with exponential back-off."""

    def __init__(self, address: Address, cache: GangCache) -> None:
        super().__init__(name="cluster watch", daemon=True)
        self._address = address
        self._cache = cache
        self._closed = threading.Event()
        self._connection: socket.socket | None = None
        self._failures = 0

    def run(self) -> None:
        while not self._closed.is_set():
            try:
                self._read()
            except (OSError, ValueError, ClusterError) as error:
                if not self._closed.is_set():
                    logger.info("cluster watch interrupted", extra={"error": str(error)})
            except Exception:
                logger.exception("cluster watch failed")
            self._cache.lose()
            self._closed.wait(min(RECONNECT_MAX_S, RECONNECT_S * 2.0 ** min(self._failures, 10)))
            self._failures += 1

    def _read(self) -> None:
        with client.connect(self._address) as self._connection:
            for change in client.changes(self._address, self._connection):
                if self._closed.is_set():
                    return
                self._apply(change)
                self._failures = 0

    def _apply(self, change: dict[str, Any]) -> None:
        reports = [protocol.report_from_json(report) for report in change["changed"]]
        if change["all"]:
            self._cache.replace(reports, change["revision"])
        else:
            self._cache.update(reports, change["gone"], change["revision"])

    def close(self) -> None:
        """End the thread; waits for it unless it is the caller."""
        self._closed.set()
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self:
            self.join(timeout=5)
