"""Limit a learner's memory: by a cgroup where the machine permits one, and with it its processes, else by polling.

Polling reads the resident memory once per second, so a program may exceed its limit briefly; a cgroup is exact. Both
end it with the reason ``out_of_memory``. Files in /dev/shm are memory, too; a cgroup counts them by itself.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)
MIB = 1024 * 1024
MOUNT = Path("/sys/fs/cgroup")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (a mount point)


class Cgroups:
    """Memory cgroups (version 2), created as siblings of the daemon's own; ``find`` says whether that is possible."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @classmethod
    def find(cls, mount: Path = MOUNT, own: str | None = None) -> Cgroups | None:
        """Cgroups beside this process's own, if the memory controller is delegated to us there."""
        if own is None:
            own = _own_cgroup()
        if own is None:
            return None
        # A cgroup with processes in it delegates nothing, so learners become our siblings.
        parent = (mount / own.strip("/")).parent
        controllers = parent / "cgroup.subtree_control"
        try:
            if "memory" not in controllers.read_text().split():
                return None
            probe = parent / f"luthier-probe-{os.getpid()}"
            probe.mkdir()
            probe.rmdir()
        except OSError:
            return None
        return cls(parent)

    def confine(self, mark: str, pid: int, limit_mib: int, processes: int) -> bool:
        """Put a process, and all it will start, under limits; False if the machine refuses. limit_mib: 0: none.

        processes: with threads; not limited where the controller is not delegated to us.
        """
        folder = self._folder(mark)
        try:
            folder.mkdir(exist_ok=True)
            (folder / "memory.max").write_text(str(limit_mib * MIB) if limit_mib else "max")
            with suppress(OSError):
                (folder / "pids.max").write_text(str(processes))
            with suppress(OSError):
                (folder / "memory.swap.max").write_text("0")
                (folder / "memory.oom.group").write_text("1")
            (folder / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            logger.warning("no memory cgroup", extra={"error": str(error)})
            return False
        return True

    def exists(self, mark: str) -> bool:
        """True if this learner has a cgroup already."""
        return self._folder(mark).is_dir()

    def peak_mib(self, mark: str) -> int | None:
        try:
            return int((self._folder(mark) / "memory.peak").read_text()) // MIB
        except (OSError, ValueError):
            return None

    def killed(self, mark: str) -> bool:
        """True if the kernel killed a process of it because it was out of memory."""
        try:
            events = (self._folder(mark) / "memory.events").read_text().split()
        except OSError:
            return False
        return int(dict(zip(events[::2], events[1::2], strict=False)).get("oom_kill", "0")) > 0

    def remove(self, mark: str) -> None:
        with suppress(OSError):
            self._folder(mark).rmdir()

    def _folder(self, mark: str) -> Path:
        return self._root / f"luthier-{mark}"


def shared_memory_beside(launcher: int, pids: Iterable[int]) -> int:
    """Bytes in the /dev/shm of a launcher's own that none of these processes maps: what is mapped is resident memory of
    theirs. 0 where it is the machine's, or the launcher has ended."""
    place = Path(f"/proc/{launcher}/root", *SHARED_MEMORY.parts[1:])
    try:
        if place.stat().st_dev == SHARED_MEMORY.stat().st_dev:
            return 0
        found = os.statvfs(place)
    except OSError:
        return 0
    used = (found.f_blocks - found.f_bfree) * found.f_frsize
    return max(0, used - sum(map(_mapped, pids))) if used else 0


def _mapped(pid: int) -> int:
    """Resident shared memory of a process, in bytes."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssShmem:"):
                return int(line.split()[1]) * 1024
    return 0


def machine_mib(mount: Path = MOUNT, own: str | None = None) -> int:
    """The memory that processes here may have: the machine's, or less where a control group around us says so."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    place = Path((own if own is not None else _own_cgroup() or "").strip("/"))
    return min([whole, *_limits(mount / group for group in (place, *place.parents))]) // MIB


def _limits(groups: Iterable[Path]) -> Iterator[int]:
    for group in groups:
        with suppress(OSError, ValueError):  # no limit is the word "max"
            yield int((group / "memory.max").read_text())


def _own_cgroup() -> str | None:
    """This process's place in the version 2 hierarchy."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    return next((line[len("0::") :] for line in lines if line.startswith("0::")), None)
