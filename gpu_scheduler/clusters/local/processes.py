"""Linux processes: start them detached, identify them again, find their descendants, kill and measure them.

A process is known by its pid and its start time, so that a number given to another process later is never
mistaken for it. What a learner starts carries a mark in its environment, so that it is found again even after
everything between it and us has died.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import stat
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OWN_THREADS = Path("/proc/self/task")
MARK = "LUTHIER_PROCESS_MARK"
_PR_SET_CHILD_SUBREAPER = 36
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_DEAD = frozenset("ZX")
OUTPUT_BYTES = 1024 * 1024
MOST = max(4096, 128 * len(os.sched_getaffinity(0)))
"""Processes and threads of one learner, generous: each of many workers may start a thread for each core."""
KILLED = 128 + signal.SIGKILL
"""The exit code of a program that was killed, if no other is known."""

spawning = threading.Lock()
"""Held while a child is started and noted, and while unknown children are swept away."""


@dataclass(frozen=True, slots=True)
class Stat:
    """One row of the process table. started: clock ticks since the machine's start."""

    pid: int
    parent: int
    state: str
    started: int
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Identity:
    """Identifies a process permanently; boot is the id of this boot of the machine."""

    pid: int
    started: int
    boot: str

    def as_json(self) -> dict[str, Any]:
        return {"pid": self.pid, "started": self.started, "boot": self.boot}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Identity:
        return cls(int(value["pid"]), int(value["started"]), str(value["boot"]))


_adopts = False
"""Whether orphaned descendants become children of ours."""


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def become_subreaper() -> None:
    """Become the parent of orphaned descendants instead of process 1."""
    global _adopts
    _adopts = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def stat_of(pid: int) -> Stat | None:
    """The process's row, None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name may hold spaces and brackets; the last bracket ends it. Then fields 3 and on, see proc(5).
    fields = text[text.rindex(")") + 2 :].split()
    return Stat(pid, int(fields[1]), fields[0], int(fields[19]), int(fields[21]) * _PAGE_BYTES)


def table() -> dict[int, Stat]:
    """Every process of the machine, by pid."""
    rows = (stat_of(int(entry.name)) for entry in os.scandir("/proc") if entry.name.isdigit())
    return {row.pid: row for row in rows if row is not None}


class Process:
    """A process that we started or found again; its end is seen through a pidfd, without polling."""

    def __init__(self, identity: Identity, pidfd: int | None, *, ours: bool) -> None:
        self.identity = identity
        self._pidfd = pidfd
        self._ours = ours
        self.exit_code: int | None = None
        """Known only of a child of ours; 128 + signal if a signal ended it."""

    @property
    def pid(self) -> int:
        return self.identity.pid

    def fileno(self) -> int:
        """For select: readable once the process has ended."""
        return -1 if self._pidfd is None else self._pidfd

    def is_alive(self) -> bool:
        """Look, and reap it if it is a child of ours that has ended."""
        if self._pidfd is None:
            return False
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if not poll.poll(0):
            return True
        if self._ours:
            with suppress(ChildProcessError):
                _, status = os.waitpid(self.pid, os.WNOHANG)
                code = os.waitstatus_to_exitcode(status)
                self.exit_code = code if code >= 0 else 128 - code
        os.close(self._pidfd)
        self._pidfd = None
        return False

    def signal(self, number: int) -> None:
        """Send a signal to this very process; nothing happens if it has ended."""
        if self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)


def start(command: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: Path, boot: str) -> Process:
    """Start a process in a session of its own, so that no signal of a terminal reaches it.

    Raises OSError. output gets what it prints; the file is replaced above one mebibyte.
    """
    log = open_output(output)
    try:
        with spawning:
            child = subprocess.Popen(
                list(command),
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            # It is waited for by its pidfd; Popen must neither warn nor wait.
            child.returncode = 0
            note_child(child.pid)
    finally:
        os.close(log)
    return follow(child.pid, boot)


def follow(pid: int, boot: str) -> Process:
    """A child of ours that was started just now and noted. Raises OSError, and then it is killed."""
    try:
        row = stat_of(pid)
        if row is None:  # a child of ours stays in the table until we reap it
            raise OSError(errno.EMFILE, "the process table cannot be read")
        return Process(Identity(pid, row.started, boot), os.pidfd_open(pid), ours=True)
    except OSError:  # no handles are left: a retry must not find two of it
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def open_output(output: Path) -> int:
    """Open a log to append to it. What a program put in its place, a link, a FIFO or a folder, is put aside."""
    with suppress(FileNotFoundError):
        found = output.lstat()
        if not stat.S_ISREG(found.st_mode):
            output.rename(f"{output}.{time.time_ns()}.odd")
        elif found.st_size > OUTPUT_BYTES:
            output.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    log = os.open(output, flags, 0o600)
    if stat.S_ISREG(os.fstat(log).st_mode):
        return log
    os.close(log)  # put there just now
    raise OSError(errno.EINVAL, "not a plain file", str(output))


def find_again(identity: Identity, boot: str) -> Process | None:
    """The process of an earlier daemon, None if it has ended."""
    if identity.boot != boot:
        return None
    try:
        pidfd = os.pidfd_open(identity.pid)
    except OSError:
        return None
    row = stat_of(identity.pid)
    if row is None or row.started != identity.started or row.state in _DEAD:
        os.close(pidfd)
        return None
    return Process(identity, pidfd, ours=False)


def find_marked(mark: str, boot: str) -> Process | None:
    """The topmost process with this mark, for one that was started but never recorded."""
    rows = table()
    marked = set(_marked([mark], rows))
    for pid in sorted(marked):
        if rows[pid].parent not in marked:
            return find_again(Identity(pid, rows[pid].started, boot), boot)
    return None


def reattach(identity: Identity | None, mark: str, boot: str) -> Process | None:
    """The process of an earlier daemon: by its recorded identity, or by its mark if none was recorded."""
    return find_marked(mark, boot) if identity is None else find_again(identity, boot)


_children: set[int] = set()


def note_child(pid: int) -> None:
    """Keep a child of ours from being swept away; the caller holds ``spawning`` and waits for it."""
    _children.add(pid)


def sweep_orphans() -> None:
    """Kill and reap children that we did not start: what the programs of dead launchers left behind."""
    with spawning:
        listed = _listed_children()
        if listed is None:
            return
        for pid in listed - _children:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        # A list that is read while a child ends may lack another one.
        _children.intersection_update({pid for pid in _children if pid in listed or stat_of(pid) is not None})


def has_orphans() -> bool:
    """Whether a child of ours is one that we did not start: what a dead launcher left behind. True if unknown."""
    with spawning:
        listed = _listed_children() if _adopts else None
        return listed is None or not listed <= _children


def _listed_children() -> set[int] | None:
    """None if they cannot be read: a kernel may be built without the lists."""
    found: set[int] = set()
    try:
        for task in OWN_THREADS.iterdir():
            try:
                found.update(map(int, (task / "children").read_text().split()))
            except FileNotFoundError:
                if task.exists():  # else a thread that has just ended
                    return None
    except OSError:
        return None
    return found


def descendants(pid: int, rows: Mapping[int, Stat]) -> list[int]:
    """All processes beneath this one, parents first."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for row in rows.values():
        children[row.parent].append(row.pid)
    found = list(children[pid])
    for child in found:
        found.extend(children[child])
    return found


def kill_tree(process: Process | None, marks: Iterable[str], *, root_too: bool) -> int:
    """SIGKILL what a process started, and whatever carries one of the marks; returns how many there were.

    Without root_too the process itself is spared, so that it can write down how its program ended.
    """
    killed = 0
    rows = table()
    root = process.pid if process is not None and process.is_alive() else 0
    targets = dict.fromkeys([*(descendants(root, rows) if root else ()), *_marked(marks, rows)])
    for pid in targets:
        if pid == root or rows[pid].state in _DEAD:
            continue
        known = Identity(pid, rows[pid].started, "")
        target = find_again(known, "")
        if target is not None:
            target.signal(signal.SIGKILL)
            target.is_alive()
            killed += 1
    if root and root_too and process is not None:
        process.signal(signal.SIGKILL)
        killed += 1
    return killed


def _marked(marks: Iterable[str], rows: Mapping[int, Stat]) -> list[int]:
    wanted = {f"{MARK}={mark}".encode() for mark in marks}
    found = []
    for pid, row in rows.items():
        if row.state in _DEAD or not wanted:
            continue
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted.intersection(words):
            found.append(pid)
    return found
