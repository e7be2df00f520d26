"""Mounts and System V IPC of a process's own.

Landlock says which files may be opened, but not whose mode, owner or times may be changed; on a read-only mount none
can be. And /dev/shm, where programs share memory, is one folder for all jobs: here each learner gets its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Optional, Sequence

from learner_agent.sandbox import kernel

SHARED_MEMORY = "/dev/shm"  # noqa: S108 (a mount point)
TMP = "/tmp"  # noqa: S108 (a mount point)

_NEWNS, _NEWIPC, _NEWUSER = 0x00020000, 0x08000000, 0x10000000
_REC, _PRIVATE, _BIND = 16384, 1 << 18, 4096
_NOSUID, _NODEV = 2, 4
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_EMPTY_PATH = 4
_ATTR_RDONLY = 1


class _Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def enter(writable: Sequence[str], tmp: Optional[str]) -> None:
    """Leave the machine's mounts: everything is read-only but the writable folders, /dev/shm is new.

    tmp: a folder that takes the place of /tmp. The process must have one thread. Raises OSError.
    """
    _unshare()
    _mount(None, "/", None, _REC | _PRIVATE)
    kept = [(path, _clone(path)) for path in writable]
    _make_read_only()
    for path, handle in kept:
        kernel.syscall(
            kernel.MOVE_MOUNT, "move_mount: " + path,
            handle, b"", _AT_FDCWD, os.fsencode(path), _MOVE_EMPTY_PATH,
        )  # fmt: skip
        os.close(handle)
    if os.path.isdir(SHARED_MEMORY):
        _mount("tmpfs", SHARED_MEMORY, "tmpfs", _NOSUID | _NODEV, b"mode=1777")
    if tmp is not None:
        _mount(tmp, TMP, None, _BIND | _REC)


def _unshare() -> None:
    """As root directly; any other user gets the right from a user namespace, in which it stays the same user."""
    user, group = os.getuid(), os.getgid()
    try:
        kernel.checked(kernel.libc.unshare(_NEWNS | _NEWIPC), "unshare")
        return
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
    kernel.checked(kernel.libc.unshare(_NEWUSER | _NEWNS | _NEWIPC), "unshare of a user namespace")
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", "%d %d 1" % (user, user)),
        ("gid_map", "%d %d 1" % (group, group)),
    ):
        with open("/proc/self/" + name, "w") as target:
            target.write(content)


def _clone(path: str) -> int:
    """A copy of the mounts at path, attached nowhere."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE
    return kernel.syscall(kernel.OPEN_TREE, "open_tree: " + path, _AT_FDCWD, os.fsencode(path), flags)


def _make_read_only() -> None:
    attributes = _Attributes(set=_ATTR_RDONLY)
    kernel.syscall(
        kernel.MOUNT_SETATTR, "mount_setattr",
        _AT_FDCWD, b"/", _AT_RECURSIVE, ctypes.byref(attributes), ctypes.sizeof(attributes),
    )  # fmt: skip


def _mount(
    source: Optional[str], target: str, kind: Optional[str], flags: int, data: Optional[bytes] = None
) -> None:
    words = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    kernel.checked(kernel.libc.mount(*words, ctypes.c_ulong(flags), data), "mount: " + target)
