"""What Linux does for a process that asks: signal it when its parent dies, give it orphans, show another command."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from signal import Signals

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Processes that lose their parent meanwhile become our children. Raises OSError where the kernel cannot do it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def die_with(parent: int, signal: Signals) -> None:
    """Receive the signal when the parent dies; end at once if it has died already. Raises OSError."""
    _prctl(_PR_SET_PDEATHSIG, signal)
    if os.getppid() != parent:
        os._exit(os.EX_UNAVAILABLE)


def show_command(command: Sequence[str]) -> None:
    """Write a command over the one that this process was started with: it is what /proc and `ps` show.

    It is cut off where there is no room. A last byte that is not zero says that the first zero ends it (proc(5)).
    """
    with open("/proc/self/stat") as row:
        start, end = map(int, row.read().rpartition(")")[2].split()[45:47])
    room = end - start
    text = " ".join(command).encode()[: room - 2]
    ctypes.memmove(start, text.ljust(room - 1, b"\0") + b".", room)


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        raise OSError("this is not Linux")
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
