"""The versions of packages of jobs that wait: chosen by the resolver that prepares gangs, with nothing installed.

Nothing of it is stored: a daemon that dies chooses again when it is asked again.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from dataclasses import asdict

from gpu_scheduler.clusters.base import ClusterBusy, EnvironmentSpec, LaunchRefused
from gpu_scheduler.clusters.local.builder import Preparing
from gpu_scheduler.clusters.local.packages import Environments, PackagesBuild
from gpu_scheduler.clusters.local.runtime_failure import RuntimeFailed

logger = logging.getLogger(__name__)

AT_ONCE = 2
LIMIT_S = 120.0
"""Of one resolution, as a package index may answer slowly forever."""
MEMORY_BYTES = 4 * 2**30
"""Of one resolver."""
KEPT_S = 60.0
"""How long an answer stays, a failure, too: the many jobs of a sweep are one resolution."""
KEPT = 500


class Choices:
    """The choices of one daemon. Thread-safe; nothing of it blocks."""

    def __init__(self, environments: Environments, *, limit_s: float = LIMIT_S) -> None:
        self._environments = environments
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._running: dict[str, PackagesBuild] = {}
        self._answers: dict[str, tuple[float, PackagesBuild]] = {}
        self._closed = False

    def choose(self, spec: EnvironmentSpec) -> tuple[str, ...] | None:
        """See base.ChoosesPackages."""
        key = json.dumps(asdict(spec), sort_keys=True)
        with self._lock:
            self._forget()
            if key in self._running:
                return None
            if key not in self._answers:
                self._start(key, spec)
                return None
            _, build = self._answers[key]
        if build.failed is None:
            return build.lock
        if build.failed.temporary:
            raise ClusterBusy(str(build.failed))
        raise LaunchRefused(str(build.failed))

    def close(self) -> None:
        """Cancel what is being chosen, and begin no more."""
        with self._lock:
            self._closed = True
            running = list(self._running.values())
        for build in running:
            build.cancel()

    def _start(self, key: str, spec: EnvironmentSpec) -> None:
        """Raises ClusterBusy if that is not possible now. What only a launch can say is left to it."""
        if self._closed or len(self._running) >= AT_ONCE:
            raise ClusterBusy("The versions of other jobs' packages are being chosen.")
        if refusal := self._environments.refusal(spec):
            raise ClusterBusy(refusal)
        try:
            base = self._environments.base(spec)
        except RuntimeFailed as failed:
            raise ClusterBusy(str(failed)) from failed
        if isinstance(base, Preparing):
            raise ClusterBusy(base.text)
        build = self._running[key] = self._environments.choice(spec, base)
        if prlimit := shutil.which("prlimit"):
            build.within = (prlimit, f"--data={MEMORY_BYTES}")
        threading.Thread(target=self._run, args=(key, build), name="choice of versions", daemon=True).start()

    def _run(self, key: str, build: PackagesBuild) -> None:
        limit = threading.Timer(self._limit_s, build.cancel)
        limit.daemon = True
        limit.start()
        try:
            build.choose()
        finally:
            limit.cancel()
            with self._lock:
                del self._running[key]
                self._answers[key] = (time.monotonic(), build)
        if build.failed is not None:
            logger.info("versions of packages not chosen", extra={"error": str(build.failed)})

    def _forget(self) -> None:
        """Answers are in the order of their times."""
        since = time.monotonic() - KEPT_S
        for key, (at, _) in list(self._answers.items()):
            if at >= since and len(self._answers) <= KEPT:
                return
            del self._answers[key]
