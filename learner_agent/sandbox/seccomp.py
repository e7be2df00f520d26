"""System calls that a program has no use for, and that reach past its files: kernel, mounts, keys, other processes.

A filter sees numbers only, no paths; it adds to Landlock, which sees paths only.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from typing import List, Tuple

from learner_agent.sandbox import kernel

# By name: the numbers on x86_64 and aarch64 (asm/unistd_64.h, asm-generic/unistd.h).
_DENIED = {
    "open_by_handle_at": (304, 265), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "acct": (163, 89), "quotactl": (179, 60),
    "bpf": (321, 280), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "fanotify_init": (300, 262),
}  # fmt: skip
_ABSENT = {
    "io_uring_setup": (425, 425), "clone3": (435, 435), "inotify_init": (253, 26), "inotify_init1": (294, 26),
}  # fmt: skip
"""Answered as by a kernel without them, so that callers take another way: for the first two, an older one whose
arguments a filter can see. inotify would name the files of any folder whose path is known, and Landlock does not deny
it; callers that can look again and again instead do so after this error (decision 0114)."""
_SYSTEM_V = {
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
}  # fmt: skip
"""One name space for all processes of the machine, unless they have a namespace of their own."""
_REFUSED_UNLESS = (
    ("prlimit", (302, 261), 0, 0), ("setpriority", (141, 140), 0, 0), ("ioprio_set", (251, 30), 0, 1),
)  # fmt: skip
"""(name, numbers, argument, the only value of it): limits of any process of the same user, and priorities of a group or
of all that a user runs. 0 and 1 say that one process is meant."""
_IGNORED_UNLESS = (
    ("setpriority", (141, 140), 1, 0), ("ioprio_set", (251, 30), 1, 0), ("sched_setparam", (142, 118), 0, 0),
    ("sched_setscheduler", (144, 119), 0, 0), ("sched_setattr", (314, 274), 0, 0),
    ("sched_setaffinity", (203, 122), 0, 0),
)  # fmt: skip
"""Likewise, answered as done, and nothing is done: they have an effect on any process of the same user, such as no CPU
time for the platform. 0 is the caller. A filter does not know whose another number is, and programs name their own: an
error would end a thread that is bound to a core, or a program that lowers its priority. Nothing is done then either."""
_CLONE, _FCNTL = (56, 220), (72, 25)
_NEW_NAMESPACES = 0x7E020000
_SETLEASE, _NOTIFY, _SETDELEG = 1024, 1026, 1040
"""A lease on a file that can be read, and a delegation (Linux 6.19), delay the next process that opens it, by
lease-break-time (45 s). F_NOTIFY says when something in a folder changes."""
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_MODE_FILTER = 2


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def program(*, own_ipc: bool) -> bytes:
    """The filter for this machine. own_ipc: the process has an IPC namespace. Raises OSError for other machines."""
    if kernel.MACHINE not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, "seccomp: no filter for " + kernel.MACHINE)
    column = list(_ARCHITECTURES).index(kernel.MACHINE)
    denied, absent = dict(_DENIED), dict(_ABSENT)
    if not own_ipc:
        absent.update(_SYSTEM_V)
    refuse = _ERROR | errno.EPERM
    steps: List[Tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURES[kernel.MACHINE]),
        (_RETURN, 0, 0, refuse),  # calls of 32-bit programs have other numbers
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, refuse),
    ]
    for numbers, answer in ((denied, refuse), (absent, _ERROR | errno.ENOSYS)):
        for pair in numbers.values():
            steps += [(_EQUAL, 0, 1, pair[column]), (_RETURN, 0, 0, answer)]
    for unless, answer in ((_REFUSED_UNLESS, refuse), (_IGNORED_UNLESS, _ERROR)):
        for _, pair, argument, value in unless:
            steps += _unless_equal(pair[column], argument, value, answer)
    steps += [
        (_EQUAL, 0, 6, _FCNTL[column]),
        (_LOAD, 0, 0, _argument(1)),
        (_EQUAL, 2, 0, _SETLEASE),
        (_EQUAL, 1, 0, _NOTIFY),
        (_EQUAL, 0, 1, _SETDELEG),
        (_RETURN, 0, 0, refuse),
        (_LOAD, 0, 0, _NUMBER),
    ]
    # A user namespace would give it privileges inside, and with them more of the kernel to attack.
    steps += [
        (_EQUAL, 0, 3, _CLONE[column]),
        (_LOAD, 0, 0, _argument(0)),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
    ]
    steps += [(_RETURN, 0, 0, refuse), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _argument(place: int) -> int:
    """Where the lower half of an argument is: the kernel reads no more of an int."""
    return _ARGUMENTS + 8 * place


def _unless_equal(number: int, argument: int, value: int, answer: int) -> List[Tuple[int, int, int, int]]:
    """Answer this call unless its argument has the value. The number is loaded before and after."""
    return [
        (_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, _argument(argument)),
        (_EQUAL, 1, 0, value),
        (_RETURN, 0, 0, answer),
        (_LOAD, 0, 0, _NUMBER),
    ]


def install(code: bytes) -> None:
    """For this process and all that it starts, for good. Raises OSError."""
    found = _Program(len(code) // 8, code)
    kernel.prctl(kernel.PR_SET_SECCOMP, "seccomp", _MODE_FILTER, ctypes.byref(found))
