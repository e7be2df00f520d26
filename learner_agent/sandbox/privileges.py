"""No rights of the superuser, and none to be gained by a program with the setuid bit."""

from __future__ import annotations

import ctypes
import resource

from learner_agent.sandbox import kernel

_VERSION_3 = 0x20080522
_AMBIENT_CLEAR_ALL = 4
_CAPSET = {"x86_64": 126, "aarch64": 91}


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Data(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


def gain_no_more() -> None:
    """From now on no exec gives this process more rights than it has. Raises OSError."""
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, "no_new_privs", 1)


def limit_processes(most: int) -> None:
    """Of this user in this user namespace; it must be the process's own, or the platform's processes count, too. Raises
    OSError."""
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def drop() -> None:
    """Root keeps its number and nothing else: what the bounding set lacks, no exec brings back. Raises OSError."""
    gain_no_more()
    kernel.prctl(kernel.PR_CAP_AMBIENT, "ambient capabilities", _AMBIENT_CLEAR_ALL)
    for capability in range(64):
        if kernel.libc.prctl(kernel.PR_CAPBSET_READ, capability, 0, 0, 0) != 1:
            continue  # unknown to this kernel, or dropped already
        # Without CAP_SETPCAP the set cannot be changed, and no exec can gain anything either: no_new_privs.
        kernel.libc.prctl(kernel.PR_CAPBSET_DROP, capability, 0, 0, 0)
    none = (_Data * 2)()
    kernel.syscall(
        _CAPSET[kernel.MACHINE], "capset", ctypes.byref(_Header(_VERSION_3, 0)), ctypes.byref(none)
    )
