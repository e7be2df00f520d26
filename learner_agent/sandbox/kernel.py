"""System calls that Python has no names for, by ctypes."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any

PR_SET_SECCOMP = 22
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47

# The same on every architecture since they were added to Linux 5.2 and later.
OPEN_TREE = 428
MOVE_MOUNT = 429
MOUNT_SETATTR = 442
LANDLOCK_CREATE_RULESET = 444
LANDLOCK_ADD_RULE = 445
LANDLOCK_RESTRICT_SELF = 446

MACHINE = platform.machine()
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def checked(result: int, what: str) -> int:
    """The result of a call. Raises OSError with the call's name."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (what, os.strerror(number)))
    return result


def syscall(number: int, what: str, *arguments: Any) -> int:
    """Raises OSError."""
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return checked(libc.syscall(ctypes.c_long(number), *words), what)


def prctl(option: int, what: str, *values: Any) -> int:
    """Raises OSError."""
    words = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in values]
    words += [ctypes.c_ulong(0)] * (4 - len(words))
    return checked(libc.prctl(option, *words), what)
