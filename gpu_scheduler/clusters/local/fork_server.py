"""Where the daemon has launchers and shippers from when many start: a process that has imported what they need forks
them.

A fresh interpreter and its imports are most of what both cost a small job. A server (learner_agent.fork_server) is
started when a second start follows within a minute, and ends by itself when none is needed any more; a lone job costs
nothing more. What is forked is a child of the daemon with a mark, a session and an exit code like any other. Whatever
is wrong with the server, it is started the plain way. Shippers have one server; launchers have one for each Python.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpu_scheduler.clusters.local import processes
from gpu_scheduler.clusters.local.processes import MARK, Process

logger = logging.getLogger(__name__)

BUSY_S = 60.0
"""The server is started when two starts are no further apart."""
PAUSE_S = 60.0
"""After a failure everything starts the plain way for so long."""
ANSWER_S = 2.0
"""The daemon's other work waits for an answer, at most so long."""
END_S = 1.0
"""So long a killed server is waited for at once; after that the daemon's passes see its end."""
SHOWN_CHARS = 512
"""Room for what /proc shows of a forked process."""


class ForkServer:
    """Forks processes of one command. For one thread; times are of the boot clock."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> None:
        """env: the server's own, with nothing of any job."""
        self._command, self._cwd = list(command), cwd
        self._env = {**env, MARK: "-" * SHOWN_CHARS}
        self._process: Process | None = None
        self._ending: list[Process] = []
        self._connection: socket.socket | None = None
        self._is_ready = False
        self._version = ""
        self._asked_at = float("-inf")
        self._paused_until = float("-inf")

    def start(
        self,
        arguments: Sequence[str],
        *,
        version: str,
        env: Mapping[str, str],
        cwd: Path,
        output: Path,
        boot: str,
        now: float,
    ) -> Process | None:
        """A process forked from the server; None if there is none, so that the caller starts it.

        version: of the code that it must run. Raises OSError where `processes.start` would, too.
        """
        is_busy, self._asked_at = now - self._asked_at <= BUSY_S, now
        self.reap(now)
        if self._process is not None and version != self._version:
            self.close()
        if self._process is None:
            if is_busy and now >= self._paused_until:
                try:
                    self._launch(version, boot)
                except OSError as error:
                    self._give_up(now, str(error))
            return None
        if not self._has_become_ready():
            return None
        # What is wrong with the files of one process says nothing about the server, on which others depend.
        with (
            open(processes.open_output(output), "ab") as log,
            open(os.memfd_create("request"), "wb") as request,
        ):
            asked = {"arguments": list(arguments), "env": dict(env), "cwd": str(cwd)}
            request.write(json.dumps(asked).encode())
            request.flush()
            request.seek(0)
            try:
                pid = self._fork(log.fileno(), request.fileno())
            except (OSError, ValueError) as error:
                self._give_up(now, str(error))
                self.close()
                processes.kill_tree(None, [env[MARK]], root_too=True)  # had it started one before it failed
                return None
        return None if pid is None else processes.follow(pid, boot)

    def is_idle(self, now: float) -> bool:
        """True if it has no process and would start none now: then a new one is as good."""
        is_quiet = now - self._asked_at > BUSY_S and now >= self._paused_until
        return self._process is None and not self._ending and is_quiet

    def reap(self, now: float) -> None:
        """See the end of servers; called regularly, so that none stays a zombie."""
        self._ending = [process for process in self._ending if process.is_alive()]
        if self._process is not None and not self._process.is_alive():
            if not self._has_become_ready():
                self._give_up(now, "it ended before it was ready")
            self.close()

    def close(self) -> None:
        """End the server. What it forked lives on, except a process that has not begun."""
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            self._connection.close()
        if self._process is not None and self._process.is_alive():
            self._process.signal(signal.SIGKILL)
            _await(self._process, END_S)
            if self._process.is_alive():
                self._ending.append(self._process)
        self._connection = self._process = None
        self._is_ready = False

    def _give_up(self, now: float, why: str) -> None:
        logger.warning("fork server failed", extra={"why": why, "paused_s": PAUSE_S})
        self._paused_until = now + PAUSE_S

    def _launch(self, version: str, boot: str) -> None:
        """Start it; the next calls see whether it is ready. Raises OSError."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its, processes.spawning:
            child = subprocess.Popen(
                self._command,
                env=self._env,
                cwd=self._cwd,
                stdin=its.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            child.returncode = 0  # it is waited for by its pidfd
            processes.note_child(child.pid)
        self._connection, self._version = ours, version
        self._process = processes.follow(child.pid, boot)

    def _has_become_ready(self) -> bool:
        assert self._connection is not None
        if not self._is_ready and _await(self._connection, 0):
            with suppress(OSError):
                self._is_ready = bool(self._connection.recv(16))
        return self._is_ready

    def _fork(self, log: int, request: int) -> int | None:
        """The new process's pid; None if this one cannot be forked. Raises OSError, ValueError."""
        assert self._connection is not None
        give_up = time.monotonic() + ANSWER_S
        with processes.spawning:
            self._connection.settimeout(ANSWER_S)
            socket.send_fds(self._connection, [b"."], [log, request])
            answer = json.loads(self._connection.recv(4096))
            # From its answer on the process may be an orphan, and after this the daemon's child for certain.
            self._connection.settimeout(max(0.001, give_up - time.monotonic()))
            self._connection.recv(16)
            if "pid" in answer:
                processes.note_child(answer["pid"])
                return int(answer["pid"])
        logger.warning("not forked", extra={"why": answer["error"]})
        return None


class ForkServers:
    """One server for each Python, made when it is first asked for."""

    def __init__(self, make: Callable[[Path], ForkServer]) -> None:
        self._make = make
        self._servers: dict[Path, ForkServer] = {}

    def of(self, python: Path) -> ForkServer:
        if python not in self._servers:
            self._servers[python] = self._make(python)
        return self._servers[python]

    def reap(self, now: float) -> None:
        for python, server in list(self._servers.items()):
            server.reap(now)
            if server.is_idle(now):
                del self._servers[python]

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


def _await(file: Process | socket.socket, seconds: float) -> bool:
    """Wait until a socket can be read, or a process has ended: True."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
