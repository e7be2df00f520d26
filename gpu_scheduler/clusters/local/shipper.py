"""Keeps one learner's shipper running until it has delivered everything.

The shipper's only state is the spool, so it may die at any time and is restarted after a pause. One that runs other
code than the installed one, such as a shipper that outlived an upgrade, is replaced: it may speak another version of
the wire protocol than the server. The launcher and the program beside it keep running.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from gpu_scheduler.clusters.base import EndReason
from gpu_scheduler.clusters.local import environment, processes
from gpu_scheduler.clusters.local.context import DaemonContext, last_output, read_plain
from gpu_scheduler.clusters.local.environment import Folders
from gpu_scheduler.clusters.local.processes import Process
from gpu_scheduler.clusters.local.store import GangRecord, LearnerRecord

logger = logging.getLogger(__name__)

DONE, OTHER_VERSION, FENCED, MISCONFIGURED = 0, 75, 76, 78
"""Exit codes of ``learner_agent shipper``. Any other is a death. OTHER_VERSION: the server speaks another version."""
BACKOFF_S = 0.2
BACKOFF_MAX_S = 15.0
QUICK_DEATHS = 10
"""The learner fails after this many deaths in a row, each within QUICK_S of the start and without progress: after about
a minute. Progress means that the server acknowledged more of its log."""
QUICK_S = 60.0
UNSTARTED_S = 600.0
"""Seconds that a machine may be unable to start a shipper (full disk, no memory); then the learner fails."""


@dataclass(frozen=True, slots=True)
class ShipperFailure:
    """The shipper will not be restarted. ends_program: the program must be ended, too."""

    reason: EndReason
    message: str
    ends_program: bool = True


class ShipperProcess:
    """Starts one shipper, restarts it, and knows when it is done. Times are of the boot clock."""

    def __init__(
        self, context: DaemonContext, gang: GangRecord, record: LearnerRecord, folders: Folders
    ) -> None:
        self.process: Process | None = None
        self._context = context
        self._gang = gang
        self._record = record
        self._folders = folders
        self._started_at = 0.0
        self._due = 0.0
        self._quick_deaths = 0
        self._unstarted_since: float | None = None
        self._acked: bytes | None = None

    @property
    def mark(self) -> str:
        return f"{self._record.mark}.shipper"

    def find_again(self, now: float) -> None:
        """Reattach to the shipper that an earlier daemon started."""
        self.process = processes.reattach(self._record.shipper, self.mark, self._context.boot)
        if self.process is not None:
            self._record.shipper = self.process.identity
            if self._record.shipper_code != code_version(self._context.agent):
                logger.info("replacing a shipper of another version", extra={"learner": self._record.uid})
                self.process.signal(signal.SIGKILL)
        self._started_at = now

    def start(self, now: float) -> None:
        """Raises OSError."""
        agent = self._context.agent
        code = code_version(agent)
        self._folders.root.mkdir(parents=True, exist_ok=True)  # a program may have removed it
        env = environment.of_shipper(
            self._gang.launch,
            self._record.rank,
            folders=self._folders,
            data_root=self._context.datasets,
            import_from=agent.parent,
            mark=self.mark,
            sandbox=self._context.sandboxing.of_learner(self._folders, (), (self._context.datasets, agent)),
        )
        cwd, output, boot = self._folders.root, self._folders.shipper_log, self._context.boot
        forks = self._context.shippers
        forked = forks and forks.start(
            ["shipper"], version=code, env=env, cwd=cwd, output=output, boot=boot, now=now
        )
        self.process = forked or processes.start(
            [self._context.python, "-m", agent.name, "shipper"], env=env, cwd=cwd, output=output, boot=boot
        )
        self._started_at = now
        self._unstarted_since = None
        self._record.shipper = self.process.identity
        self._record.shipper_code = code

    def advance(self, now: float) -> ShipperFailure | None:
        """Handle its end: done, failed for good, or to be restarted after a pause."""
        if self._record.shipper_done:
            return None
        if self.process is not None:
            if self.process.is_alive():
                if now - self._started_at > QUICK_S:
                    self._quick_deaths = 0
                return None
            code, self.process = self.process.exit_code, None
            if code != DONE and (failure := self._assess(code, now)) is not None:
                self._record.shipper_done = True
                return failure
            self._record.shipper_done = code == DONE
        if not self._record.shipper_done and now >= self._due:
            return self._restart(now)
        return None

    def _assess(self, code: int | None, now: float) -> ShipperFailure | None:
        """Decide whether to restart a shipper that ended before it was done."""
        if code == FENCED:
            # The server has closed the attempt; the shipper has made the launcher end.
            return ShipperFailure(
                EndReason.FENCED, "The server no longer accepts reports of this attempt.", ends_program=False
            )
        if code == MISCONFIGURED:
            return ShipperFailure(
                EndReason.DEPLOY_FAILED, f"The shipper could not start: {self._last_output()}"
            )
        if code == OTHER_VERSION:
            # The server was upgraded, or rolled back, before this daemon and the installed code. That may take long,
            # and costs the program nothing: the spool keeps what it prints.
            self._due = now + BACKOFF_MAX_S
            return None
        before, self._acked = self._acked, self._acknowledged()
        self._quick_deaths = self._quick_deaths + 1 if before == self._acked else 1
        if self._quick_deaths >= QUICK_DEATHS:
            return ShipperFailure(
                EndReason.SHIPPER_FAILED, f"The shipper keeps failing: {self._last_output()}"
            )
        pause = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** (self._quick_deaths - 1))
        self._due = now + pause
        logger.warning("shipper died", extra={"learner": self._record.uid, "code": code, "again_in_s": pause})
        return None

    def _restart(self, now: float) -> ShipperFailure | None:
        if (self._folders.state / "shipper" / "done.json").exists():
            # It succeeded while no daemon was running to see its exit code.
            self._record.shipper_done = True
            return None
        try:
            self.start(now)
        except OSError as error:
            logger.warning("shipper not started", extra={"learner": self._record.uid, "error": str(error)})
            self._due = now + 1.0
            if self._unstarted_since is None:
                self._unstarted_since = now
            if now - self._unstarted_since > UNSTARTED_S:
                self._record.shipper_done = True
                return ShipperFailure(EndReason.SHIPPER_FAILED, f"The shipper cannot be started: {error}")
        return None

    def _acknowledged(self) -> bytes:
        try:
            return read_plain(self._folders.state / "log" / "acked", max_bytes=100)
        except (OSError, ValueError):
            return b""

    def _last_output(self) -> str:
        return last_output(self._folders.shipper_log)


def code_version(package: Path) -> str:
    """A fingerprint of the package's code as it is installed now; files that look unchanged are not read again.

    Raises OSError.
    """
    stamp = tuple(_stamps(str(package)))
    known = _versions.get(package)
    if known is None or known[0] != stamp:
        known = _versions[package] = (stamp, _fingerprint(package))
    return known[1]


Stamp = tuple[str, int, int, int]
_versions: dict[Path, tuple[tuple[Stamp, ...], str]] = {}


def _stamps(folder: str) -> Iterator[Stamp]:
    """Path, size, inode and time of change of each file of code; that time is the kernel's, which no tool sets back."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=attrgetter("name")):
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    yield from _stamps(entry.path)
            elif entry.name.endswith(".py"):
                row = entry.stat()
                yield entry.path, row.st_size, row.st_ino, row.st_ctime_ns


def _fingerprint(package: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
