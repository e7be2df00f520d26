"""A third driver, for the tests: slow, unreliable, and with a cache that lags behind. It proves the seam.

Every call takes CALL_S. One call in FAILS_EVERY raises ClusterBusy, in turns before and after its work, as if the
response was lost. observe() shows what was true up to LAG_S ago, except for what this process itself changed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from gpu_scheduler.clusters.base import (
    Capabilities,
    ClusterBusy,
    GangSpec,
    LaunchRefused,
    Observation,
    RefusalCode,
    Removal,
)
from gpu_scheduler.clusters.memory import MemoryCluster
from gpu_scheduler.model import Node

Result = TypeVar("Result")
CALL_S = 0.2
LAG_S = 0.5
FAILS_EVERY = 4


class Unreliable(ClusterBusy):
    """This driver's own failures."""


class SlowCluster:
    """Puts latency, failures and a cache before a cluster in memory. says_not_found: a direct look says so."""

    name = "slow"
    capabilities = Capabilities(slot_types=frozenset({"cpu"}), remedy="Be patient.")

    def __init__(self, cluster: MemoryCluster, *, says_not_found: bool = True) -> None:
        self.cluster = cluster
        self._says_not_found = says_not_found
        self._calls = 0
        self._lock = threading.Lock()
        self._cached: Observation | None = None

    @classmethod
    def connect(cls, settings: Mapping[str, str]) -> SlowCluster:
        return cls(MemoryCluster([Node.with_slots("node-a", "cpu", 4)]))

    def nodes(self) -> list[Node]:
        return self._call(self.cluster.nodes)

    def launch(self, spec: GangSpec) -> None:
        if spec.image is not None:
            raise LaunchRefused("Images are not supported here.", code=RefusalCode.IMAGE_ERROR)
        self._effect(lambda: self.cluster.launch(spec))

    def observe(self, names: Sequence[str] | None = None) -> Observation:
        cached = self._cached
        if cached is not None and time.monotonic() - cached.seen_at <= LAG_S:
            if names is None:
                return cached
            if all(name in cached.gangs for name in names):
                return replace(cached, gangs={name: cached.gangs[name] for name in sorted(names)})
        seen_at = time.monotonic()
        found = replace(self._call(self.cluster.observe), seen_at=seen_at)
        self._cached = found
        if names is None:
            return found
        gangs = {name: found.gangs[name] for name in sorted(names) if name in found.gangs}
        missing = frozenset(names) - gangs.keys()
        return replace(found, gangs=gangs, not_found=missing if self._says_not_found else frozenset())

    def stop(self, name: str, *, grace_s: float) -> None:
        self._effect(lambda: self.cluster.stop(name, grace_s=grace_s))

    def remove(self, name: str, *, uids: Sequence[str] | None = None) -> Removal:
        return self._effect(lambda: self.cluster.remove(name, uids=uids))

    def watch(self, on_change: Callable[[set[str]], None]) -> LateWatch:
        return LateWatch(self.cluster, on_change)

    def forget(self) -> None:
        """Let the cache be too old."""
        self._cached = None

    def _effect(self, work: Callable[[], Result]) -> Result:
        try:
            return self._call(work)
        finally:
            self._cached = None

    def _call(self, work: Callable[[], Result]) -> Result:
        with self._lock:
            self._calls += 1
            turn, rest = divmod(self._calls, FAILS_EVERY)
        time.sleep(CALL_S)
        if rest == 0 and turn % 2:
            raise Unreliable("the request was lost")
        result = work()
        if rest == 0:
            raise Unreliable("the response was lost")
        return result


class LateWatch:
    """Reports each change CALL_S late."""

    def __init__(self, cluster: MemoryCluster, on_change: Callable[[set[str]], None]) -> None:
        self._on_change = on_change
        self._closed = False
        self._watch = cluster.watch(self._later)

    def _later(self, names: set[str]) -> None:
        timer = threading.Timer(CALL_S, self._report, [names])
        timer.daemon = True
        timer.start()

    def _report(self, names: set[str]) -> None:
        if not self._closed:
            self._on_change(names)

    def close(self) -> None:
        self._closed = True
        self._watch.close()


class Patient(SlowCluster):
    """Tries again after this driver's own failures, as the lifecycle does."""

    def _call(self, work: Callable[[], Result]) -> Result:
        while True:
            try:
                return super()._call(work)
            except Unreliable:
                continue
