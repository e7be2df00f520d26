"""What all learners of one daemon share, and how it reads files that a program may have written."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.clusters.local.environment import Folders
from gpu_scheduler.clusters.local.fork_server import ForkServer, ForkServers
from gpu_scheduler.clusters.local.gpus import NO_GPUS, Gpus
from gpu_scheduler.clusters.local.isolation import OFF, Sandboxing
from gpu_scheduler.clusters.local.memory_limits import Cgroups
from gpu_scheduler.clusters.local.store import LearnerRecord

LAST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class DaemonContext:
    """agent: the directory of the learner agent's package. python: the platform's, for shippers. shippers, launchers:
    fork them when many start; without it each is a fresh interpreter."""

    data: Path
    agent: Path
    python: str
    boot: str
    cgroups: Cgroups | None
    sandboxing: Sandboxing = OFF
    gpus: Gpus = NO_GPUS
    shippers: ForkServer | None = None
    launchers: ForkServers | None = None

    @property
    def datasets(self) -> Path:
        return self.data / "datasets"

    @property
    def shared_by_programs(self) -> tuple[Path, ...]:
        """What every program reads: the data sets, the agent that it imports, and the runtimes with pip."""
        return (self.datasets, self.agent, self.data / "runtimes")

    def folders(self, gang: str, learner: LearnerRecord) -> Folders:
        return Folders(self.data / "nodes" / learner.node / f"{gang}-{learner.rank}")


def read_plain(path: Path, *, max_bytes: int) -> bytes:
    """The whole of a plain file. Raises OSError if it is none, ValueError above max_bytes bytes.

    A program may have put a link, a FIFO or anything else there, and one daemon serves all tenants.
    """
    with open(_open(path), "rb") as source:
        content = source.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"{path} holds more than {max_bytes} bytes")
    return content


def _open(path: Path) -> int:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)  # open() would refuse a directory and leave its handle with us
    raise OSError(errno.EINVAL, "not a plain file", str(path))


def clean(text: str) -> str:
    """Text of a program in a form that every store accepts: without NUL and surrogates."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def last_output(log: Path) -> str:
    """The last lines that a process of the platform printed, as one line."""
    try:
        with open(_open(log), "rb") as source:
            source.seek(-min(LAST_BYTES, os.fstat(source.fileno()).st_size), os.SEEK_END)
            lines = source.read(LAST_BYTES).decode(errors="replace").strip().split("\n")
    except OSError:
        lines = []
    return " ".join(lines[-4:])[-400:].strip() or "it printed nothing."
