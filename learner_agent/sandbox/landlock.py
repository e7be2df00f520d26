"""Landlock: which files a process and all that it starts may open, and whom they may signal.

It needs no privilege, and cannot be taken off again. What is not granted is denied. A process can neither trace nor
read the memory, environment or open files of one outside its own domain. Bits and structures: linux/landlock.h.
"""

from __future__ import annotations

import ctypes
import os
import stat
from typing import Iterable, Mapping

from learner_agent.sandbox import kernel

ABI_MIN = 6
"""The first that keeps signals and abstract sockets inside. With an older one a job could kill the platform."""

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_BLOCK = 1 << 6, 1 << 11
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
ALL = (1 << 16) - 1
FOR_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV

READ = EXECUTE | READ_FILE | READ_DIR
WRITE = ALL & ~(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV)
DEVICE = READ_FILE | WRITE_FILE | IOCTL_DEV | READ_DIR
UNLISTED = WRITE & ~READ_DIR
"""Files whose names the others must not learn."""

_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2
_VERSION = 1
_PATH_BENEATH = 1


class _Ruleset(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def abi() -> int:
    """The kernel's version of Landlock. Raises OSError where there is none."""
    return kernel.syscall(kernel.LANDLOCK_CREATE_RULESET, "Landlock", None, 0, _VERSION)


def ruleset(rights: Mapping[str, int], *, scoped: bool) -> int:
    """A handle of rules, closed at exec. rights by path; a link's are those of what it leads to, such as systemd's
    resolv.conf, and a path that does not exist gives access to nothing.

    scoped: signals and abstract sockets reach only processes that enter these rules, too. Raises OSError.
    """
    asked = _Ruleset(ALL, 0, _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if scoped else 0)
    handle = kernel.syscall(
        kernel.LANDLOCK_CREATE_RULESET,
        "landlock_create_ruleset",
        ctypes.byref(asked),
        ctypes.sizeof(asked),
        0,
    )
    try:
        os.set_inheritable(handle, False)
        for path, allowed in rights.items():
            _allow(handle, path, allowed)
    except BaseException:
        os.close(handle)
        raise
    return handle


def restrict(handle: int) -> None:
    """Enter the rules, for good. The process must not be able to gain privileges. Raises OSError."""
    kernel.syscall(kernel.LANDLOCK_RESTRICT_SELF, "landlock_restrict_self", handle, 0)


def merged(*granted: "tuple[Iterable[str], int]") -> "dict[str, int]":
    """Rights by path; a path that is named twice gets both."""
    rights: "dict[str, int]" = {}
    for paths, allowed in granted:
        for path in paths:
            rights[path] = rights.get(path, 0) | allowed
    return rights


def _allow(ruleset_handle: int, path: str, allowed: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        mode = os.fstat(place).st_mode
        if stat.S_ISCHR(mode) and allowed & WRITE_FILE:
            allowed |= DEVICE  # one that is named itself; those in a folder of its own are not controlled
        if not stat.S_ISDIR(mode):
            allowed &= FOR_FILES
        rule = _Beneath(allowed, place)
        kernel.syscall(
            kernel.LANDLOCK_ADD_RULE, "landlock_add_rule: " + path,
            ruleset_handle, _PATH_BENEATH, ctypes.byref(rule), 0,
        )  # fmt: skip
    finally:
        os.close(place)
