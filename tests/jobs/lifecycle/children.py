"""Workers as processes of their own that a test may kill, and a cluster that outlives them."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Protocol

from django.db import connection

from gpu_scheduler.clusters.base import EnvironmentSpec
from gpu_scheduler.clusters.memory import CAPABILITIES, MemoryCluster
from jobs import clusters, failpoints
from jobs.lifecycle import leases

VERBS = ("nodes", "launch", "observe", "stop", "remove", "choose")


class Reachable(Protocol):
    """A cluster that other processes reach."""

    def connect(self) -> Any:
        """The cluster, for the process that calls this."""


class Served:
    """Lets other processes call the verbs of this process's cluster over a Unix socket."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self._folder = tempfile.TemporaryDirectory()
        self.address = str(Path(self._folder.name) / "cluster")
        self._listener = Listener(self.address, "AF_UNIX")
        self._closing = False
        self._callers: list[Connection] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def connect(self) -> Remote:
        return Remote(self.address)

    def close(self) -> None:
        """End all threads: closing a socket does not wake who waits on it, so the last caller is we ourselves."""
        self._closing = True
        Client(self.address, "AF_UNIX").close()
        self._threads[0].join()
        self._listener.close()
        for caller in self._callers:
            with suppress(OSError), socket.socket(fileno=os.dup(caller.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)  # fails if the child has closed it already
        for thread in self._threads[1:]:
            thread.join()
        self._folder.cleanup()

    def _accept(self) -> None:
        while True:
            caller = self._listener.accept()
            if self._closing:
                caller.close()
                return
            self._callers.append(caller)
            self._threads.append(threading.Thread(target=self._answer, args=(caller,), daemon=True))
            self._threads[-1].start()

    def _answer(self, caller: Connection) -> None:
        """One call after the other until the caller hangs up or dies."""
        try:
            while True:
                verb, arguments, options = caller.recv()
                assert verb in VERBS
                try:
                    caller.send((True, getattr(self.cluster, verb)(*arguments, **options)))
                except Exception as error:
                    caller.send((False, error))
        except (EOFError, OSError, pickle.UnpicklingError):
            caller.close()


class Remote:
    """The same cluster, from another process."""

    name = "memory"
    capabilities = CAPABILITIES

    def __init__(self, address: str) -> None:
        self._server = Client(address, "AF_UNIX")

    def choose(self, environment: EnvironmentSpec) -> tuple[str, ...] | None:
        """Written out: what a cluster may do beyond the contract is found by its attributes."""
        versions: tuple[str, ...] | None = self.__getattr__("choose")(environment)
        return versions

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if verb not in VERBS:
            raise AttributeError(verb)

        def call(*arguments: Any, **options: Any) -> Any:
            self._server.send((verb, arguments, options))
            good, answer = self._server.recv()
            if good:
                return answer
            raise answer

        return call


def in_child(work: Callable[[], object], served: Reachable, *, kill_at: str = "") -> bool:
    """Do the work in a forked worker with a registration of its own. True if it was killed at that point."""
    _, status = os.waitpid(_forked(work, served, signal.SIGKILL, kill_at), 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the worker failed"
    return False


@contextmanager
def frozen_child(work: Callable[[], object], served: Reachable, *, at: str) -> Iterator[None]:
    """A forked worker that is frozen at that point of its work, and killed at the end of the block."""
    pid = _forked(work, served, signal.SIGSTOP, at)
    try:
        _, status = os.waitpid(pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "the worker did not come there"
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _forked(work: Callable[[], object], served: Reachable, at_point: signal.Signals, point: str) -> int:
    """The process id of a worker that sends itself this signal at this failpoint."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            connection.connection = None  # the parent's; its socket must not be spoken on here
            clusters.use(served.connect())
            leases.register_worker(f"child-{os.getpid()}")
            failpoints.arm(lambda name: os.kill(os.getpid(), at_point) if name == point else None)
            work()
            code = 0
        finally:
            os._exit(code)
    return pid
