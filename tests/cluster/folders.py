"""Where the suite's clusters keep their files, and what is left of clusters whose run was killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

from tools.kube.cluster import stop
from tools.kube.nodes import CGROUPS

FOLDERS = "luthier-kube-"
MEMORY, DISK = Path("/dev/shm"), Path(tempfile.gettempdir())
ROOM = 12 * 2**30
"""Bytes of memory from which on clusters are in it: two with real nodes need 5 GB, besides all programs."""
LIMITS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
"""Files of a container's memory below its cgroup: the limit and what is used, of version 2 and of version 1."""


def new_folder(purpose: str) -> Path:
    """A short path, with this process's pid, so that a later run removes what a killed one left. In memory where there
    is room: the images of two nodes are 40,000 files, and a disk may take a minute to remove them."""
    remove_abandoned()
    root = MEMORY if has_room(MEMORY) else DISK
    return root / f"{FOLDERS}{purpose}-{os.getpid()}"


def has_room(folder: Path, cgroup: Path = CGROUPS) -> bool:
    if not folder.is_dir() or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    left = [shutil.disk_usage(folder).free, psutil.virtual_memory().available, *left_by_limits(cgroup)]
    return min(left) >= ROOM


def left_by_limits(cgroup: Path) -> list[int]:
    """Bytes until each limit of the container in which this runs. Files that the kernel may forget are not in use."""
    left = []
    for limit, used in LIMITS:
        with suppress(OSError, ValueError):  # no such version, or "max"
            in_use = int((cgroup / used).read_text()) - cached((cgroup / used).with_name("memory.stat"))
            left.append(int((cgroup / limit).read_text()) - in_use)
    return left


def cached(stat: Path) -> int:
    """Bytes of files, with those of the cgroups below. Version 1 counts them apart."""
    found = dict(line.split() for line in stat.read_text().splitlines())
    return int(found.get("total_inactive_file", found["inactive_file"]))


def remove_abandoned() -> None:
    for folder in (path for root in (MEMORY, DISK) for path in root.glob(f"{FOLDERS}*")):
        pid = folder.name.rpartition("-")[2]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            stop(folder)
