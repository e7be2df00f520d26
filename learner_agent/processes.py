"""What the launcher asks of the kernel for its program: to end with us, to fall to us, to be signalled as a group."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal

_F_SETPIPE_SZ = 1031
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Let what the program leaves behind fall to us, so that we can end and reap it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """In a child before its exec: be killed when the parent dies, also if it has died already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def exit_code(status: int) -> int:
    """As a shell says it: 128 + signal if a signal ended it."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # what is left became another user
    return True


def signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass  # nobody of the group is left, or what is left became another user


def kill_children() -> None:
    """Kill what left the program's session and fell to us, its subreaper."""
    try:
        with open("/proc/self/task/%d/children" % os.getpid()) as listing:
            pids = [int(word) for word in listing.read().split()]
    except (OSError, ValueError):
        return
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass


def widen(pipe: int, size: int) -> None:
    """Ask for a large pipe, so that a burst never waits for us."""
    try:
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, size)
    except OSError:
        pass  # above the machine's limit for one user: the usual 64 KiB then


def drain(pipe: int) -> None:
    """Take what is in a pipe that does not block."""
    try:
        while os.read(pipe, 4096):
            pass
    except BlockingIOError:
        pass


def _prctl(option: int, value: int) -> None:
    try:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
    except (OSError, AttributeError):
        pass  # not Linux: leftovers are then found by whoever started us
