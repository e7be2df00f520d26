"""Mounts and System V IPC of a process's own.

Landlock says which files may be opened, but not whose mode, owner or times may be changed; on a read-only mount none
can be. And /dev/shm, where programs share memory, is one folder for all jobs: here each learner gets its own. What
Landlock does not deny either is a connection to a socket that has a path: folders with such sockets are covered.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from typing import Optional, Sequence, Tuple

from learner_agent.sandbox import hiding, kernel

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


def enter(
    writable: Sequence[str],
    tmp: Optional[str],
    readable: Sequence[str] = (),
    private: Sequence[str] = (),
    memory_mib: int = 0,
) -> bool:
    """Leave the machine's mounts: everything is read-only but the writable folders, /dev/shm is new, and of private
    folders and of those with sockets of services only what is writable or readable is left.

    tmp: a folder that takes the place of /tmp. memory_mib: the size of /dev/shm; 0: the kernel's. The process must have
    one thread. Returns whether it has users of its own, too: then its processes are counted apart. Raises OSError.
    """
    here = os.getcwd()
    put_back = [*readable, *hiding.names()]
    own_users = _unshare()
    _mount(None, "/", None, _REC | _PRIVATE)
    granted = [*writable, *put_back]
    hidden = [place for place in hiding.folders(granted, private) if tmp is None or place != TMP]
    own_tmp = [] if tmp is None else [TMP]
    links = hiding.links(
        hidden, [*granted, *own_tmp, *(os.path.join(path, "bin", "python") for path in readable)]
    )
    kept = [(path, _clone(path)) for path in map(os.path.realpath, writable)]
    _make_read_only("/", _AT_RECURSIVE)
    read_only = [(path, _clone(path)) for path in hiding.below(hidden, put_back)]
    for place in hidden:
        _mount("tmpfs", place, "tmpfs", _NOSUID | _NODEV, b"mode=755,size=16m")
    for link, target in links.items():
        os.makedirs(os.path.dirname(link), exist_ok=True)
        os.symlink(target, link)
    _attach(read_only + kept)
    for path in map(os.path.realpath, own_tmp):
        os.makedirs(path, exist_ok=True)  # /tmp may be a link into a covered folder
    for place in hidden:
        _make_read_only(place, 0)
    if os.path.isdir(SHARED_MEMORY):
        size = b",size=%dm" % memory_mib if memory_mib else b""
        _mount("tmpfs", SHARED_MEMORY, "tmpfs", _NOSUID | _NODEV, b"mode=1777" + size)
    if tmp is not None:
        _mount(tmp, TMP, None, _BIND | _REC)
    _leave_what_is_covered(here)
    return own_users


def _attach(clones: Sequence[Tuple[str, int]]) -> None:
    for path, handle in clones:
        if not os.path.lexists(path):  # only in a folder that was covered
            _make_place(path, is_folder=stat.S_ISDIR(os.fstat(handle).st_mode))
        kernel.syscall(
            kernel.MOVE_MOUNT, "move_mount: " + path,
            handle, b"", _AT_FDCWD, os.fsencode(path), _MOVE_EMPTY_PATH,
        )  # fmt: skip
        os.close(handle)


def _make_place(path: str, *, is_folder: bool) -> None:
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))


def _leave_what_is_covered(here: str) -> None:
    """From a folder below a covered one, `..` leads to what it hides."""
    try:
        os.chdir(here)
    except OSError:
        os.chdir(os.sep)


def _unshare() -> bool:
    """As root directly; any other user gets the right from a user namespace, in which it stays the same user: True."""
    user, group = os.getuid(), os.getgid()
    try:
        kernel.checked(kernel.libc.unshare(_NEWNS | _NEWIPC), "unshare")
        return False
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
    return True


def _clone(path: str) -> int:
    """A copy of the mounts at path, attached nowhere."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE
    return kernel.syscall(kernel.OPEN_TREE, "open_tree: " + path, _AT_FDCWD, os.fsencode(path), flags)


def _make_read_only(path: str, flags: int) -> None:
    attributes = _Attributes(set=_ATTR_RDONLY)
    kernel.syscall(
        kernel.MOUNT_SETATTR, "mount_setattr: " + path,
        _AT_FDCWD, os.fsencode(path), flags, ctypes.byref(attributes), ctypes.sizeof(attributes),
    )  # fmt: skip


def _mount(
    source: Optional[str], target: str, kind: Optional[str], flags: int, data: Optional[bytes] = None
) -> None:
    words = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    kernel.checked(kernel.libc.mount(*words, ctypes.c_ulong(flags), data), "mount: " + target)
