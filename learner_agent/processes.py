"""Process control of the launcher: its program dies with it, leaves it its orphans, and is signaled as a group."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal

_F_SETPIPE_SZ = 1031
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of processes that the program leaves behind, so that the launcher can kill and reap them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """In a child before its exec: be killed when the parent dies, even if it has died already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def exit_code(status: int) -> int:
    """The exit code as a shell reports it: 128 + signal if a signal ended the process."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def group_lives(group: int) -> bool:
    """True if any process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # what is left runs as another user
    return True


def signal_group(group: int, number: int) -> None:
    """Send a signal to every process of the group."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass  # no process of the group is left, or what is left runs as another user


def children() -> "list[int]":
    """Processes that left the program's session and became children of this one, their subreaper."""
    try:
        with open("/proc/self/task/%d/children" % os.getpid()) as listing:
            return [int(word) for word in listing.read().split()]
    except (OSError, ValueError):
        return []


def kill_children() -> None:
    for pid in children():
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass


def widen(pipe: int, size: int) -> None:
    """Request a pipe of size bytes, so that a burst of output does not wait for the launcher."""
    try:
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, size)
    except OSError:
        pass  # above the machine's limit for one user: it keeps the default of 64 KiB


def drain(pipe: int) -> None:
    """Discard what is in a non-blocking pipe."""
    try:
        while os.read(pipe, 4096):
            pass
    except BlockingIOError:
        pass


def _prctl(option: int, value: int) -> None:
    try:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
    except (OSError, AttributeError):
        pass  # not Linux: leftovers are then found by the process that started this one
