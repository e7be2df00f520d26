"""A real node daemon in a temporary folder, with a fake agent and a runtime that needs no building."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gpu_scheduler.clusters.base import ClusterBusy
from gpu_scheduler.clusters.local.builder import READY
from gpu_scheduler.clusters.local.client import Address, ping
from gpu_scheduler.clusters.local.driver import LocalCluster
from gpu_scheduler.clusters.local.runtimes import Runtimes

PROJECT = Path(__file__).resolve().parents[3]
FAKE_AGENT = Path(__file__).with_name("fake_agent")
TIMEOUT_S = 60.0
"""So long a busy machine may take for what takes a moment elsewhere; no test waits it out."""


class NodeDaemon:
    """Starts, kills and restarts one daemon on one folder; no process outlives ``close``."""

    def __init__(
        self,
        *,
        nodes: str = "node-a:cpu:4:rack=r1:block=b1,node-b:cpu:4",
        agent: Path = FAKE_AGENT,
        options: Sequence[str] = (),
    ) -> None:
        # A Unix socket's path is short by law; pytest's folders are not.
        self._folder = tempfile.TemporaryDirectory(prefix="node-", ignore_cleanup_errors=True)
        self.data = Path(self._folder.name) / "data"
        self.socket = Path(self._folder.name) / "node.sock"
        self.log = Path(self._folder.name) / "daemon.log"
        self.requirements = Path(self._folder.name) / "runtimes"
        self._nodes = nodes
        self._agent = agent
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._provide_runtime()
        self.address = Address(self.socket, Path(self._folder.name) / "node.key")
        self.address.key.write_text("the-key-of-a-node-daemon-under-test")
        self.cluster = LocalCluster(self.address)

    def _provide_runtime(self) -> None:
        """A finished runtime named fake whose Python is the suite's own."""
        self.requirements.mkdir()
        (self.requirements / "fake.txt").write_text("")
        runtime = Runtimes(self.data, self.requirements).folder("fake")
        (runtime / "bin").mkdir(parents=True)
        (runtime / "bin" / "python").symlink_to(sys.executable)
        (runtime / READY).touch()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        options = {
            "--data": self.data,
            "--socket": self.socket,
            "--key": self.address.key,
            "--nodes": self._nodes,
            "--agent": self._agent,
            "--runtimes": self.requirements,
        }
        words = [str(word) for option in options.items() for word in option]
        command = [sys.executable, "-m", "gpu_scheduler.clusters.local", *words, *self._options]
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(command, cwd=PROJECT, stdout=log, stderr=log)
        wait_for(self._is_ready, what=lambda: self.log.read_text())

    def _is_ready(self) -> bool:
        try:
            return ping(self.address)["pid"] == self.pid
        except ClusterBusy:
            return False

    def kill(self) -> None:
        """SIGKILL: learners live on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def terminate(self, *, within_s: float = TIMEOUT_S) -> int:
        """SIGTERM, and wait until it has gone; its exit code."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(within_s)
        self._process = None
        return code

    def close(self) -> None:
        if self._process is None:
            self.start()
        for name in self.cluster.observe().gangs:
            self.cluster.remove(name)
        self.terminate()
        try:
            wait_for(lambda: not self.processes(), what=self._left_behind)
        finally:
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._folder.cleanup()

    def _left_behind(self) -> list[str]:
        """Command lines of what should be gone."""
        return [" ".join(words) for words in self.commands().values()]

    def processes(self) -> list[int]:
        return list(self.commands())

    def commands(self) -> dict[int, list[str]]:
        """The command line of every living process that has something to do with this daemon's folder.

        Each is read once: a process may be gone by the next look.
        """
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    command = (entry / "cmdline").read_bytes()
                    text = (entry / "environ").read_bytes() + command
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                except OSError:
                    continue
                if os.fsencode(self._folder.name) in text and state not in "ZX":
                    found[int(entry.name)] = os.fsdecode(command).rstrip("\0").split("\0")
        return found

    def learner(self, gang: str, rank: int = 0, node: str = "node-a") -> Path:
        return self.data / "nodes" / node / f"{gang}-{rank}"


@contextmanager
def running_daemon(**options: object) -> Iterator[NodeDaemon]:
    daemon = NodeDaemon(**options)  # type: ignore[arg-type]
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.close()


def wait_for(
    holds: Callable[[], object], *, within_s: float = TIMEOUT_S, what: Callable[[], object] = str
) -> None:
    """Await a condition."""
    give_up = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < give_up, f"never came true: {what()}"
        time.sleep(0.02)
