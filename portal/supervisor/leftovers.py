"""Processes of an earlier start that outlived it: found by pid and birth time, asked to end, then killed.

The kernel signals the services when the supervisor dies, so this matters only between a fork and that request to the
kernel, on systems without it, and while the services of a killed supervisor are still saving their work.
"""

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from portal.supervisor.report import Report

GRACE_S = 20
PROCESSES, CHILDREN, URL = "processes.json", "children.json", "url"


@dataclass(frozen=True)
class Noted:
    """One process that we started. born: seconds since the epoch, so that a reused pid is not mistaken for it."""

    name: str
    pid: int
    born: float
    stop_signal: int


class Register:
    """The processes of this start: `processes.json` for the next start, `children.json` for people and tests."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._noted: dict[str, Noted] = {}

    def note(self, name: str, pid: int, stop_signal: signal.Signals) -> None:
        try:
            born = psutil.Process(pid).create_time()
        except psutil.NoSuchProcess:
            return  # it died at once; there is nothing to clean up
        self._noted[name] = Noted(name, pid, born, int(stop_signal))
        _write(self._run / PROCESSES, [vars(noted) for noted in self._noted.values()])
        pids = {noted.name: noted.pid for noted in self._noted.values()}
        _write(self._run / CHILDREN, pids | {"up": os.getpid()})

    def clear(self) -> None:
        for name in (PROCESSES, CHILDREN, URL):
            (self._run / name).unlink(missing_ok=True)


def end_leftovers(run: Path, report: Report) -> None:
    """End what an earlier supervisor left running. Returns when all of it is gone."""
    path = run / PROCESSES
    alive = [process for noted in _read(path) if (process := _find(noted))]
    if alive:
        report.say(
            f"Stopping what an earlier start left running ({len(alive)} process{'es' * (len(alive) != 1)})"
        )
    signals = {noted.pid: noted.stop_signal for noted in _read(path)}
    for process in reversed(alive):
        _signal(process, signals[process.pid])
    deadline = time.monotonic() + GRACE_S
    while alive and time.monotonic() < deadline:
        _, alive = psutil.wait_procs(alive, timeout=0.5)
    for process in alive:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=5)
    path.unlink(missing_ok=True)


def remove_stale_locks(data: Path, sockets: Path) -> None:
    """Remove the lock files of a dead PostgreSQL.

    PostgreSQL itself takes any process with its pid for it: a stranger, or a zombie that init does not reap.
    A postmaster's children work in `data` for a moment after its death; until they are gone the locks protect it.
    """
    locks = (data / "postmaster.pid", *sockets.glob(".s.PGSQL.*"))
    deadline = time.monotonic() + GRACE_S
    while any(lock.exists() for lock in locks):
        if not _works_in(data):
            for lock in locks:
                lock.unlink(missing_ok=True)
        elif time.monotonic() > deadline:
            return  # PostgreSQL says who it is
        else:
            time.sleep(0.05)


def _works_in(folder: Path) -> bool:
    """True if a process works in the folder, as PostgreSQL's do in their data; a zombie works nowhere."""
    return any(process.info["cwd"] == str(folder) for process in psutil.process_iter(["cwd"]))


def _write(path: Path, content: object) -> None:
    """All of it or nothing: a reader never sees half a file."""
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(content))
    draft.replace(path)


def _read(path: Path) -> list[Noted]:
    try:
        return [Noted(**entry) for entry in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError):
        return []  # absent, or cut off by a crash of the machine: then no process is left either


def _find(noted: Noted) -> psutil.Process | None:
    try:
        process = psutil.Process(noted.pid)
        same = abs(process.create_time() - noted.born) < 0.05 and process.status() != psutil.STATUS_ZOMBIE
        return process if same else None
    except psutil.Error:
        return None


def _signal(process: psutil.Process, number: int) -> None:
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        pass
