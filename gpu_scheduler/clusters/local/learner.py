"""One learner: its launcher (which runs the program) and its shipper (which talks to the server).

The spool is the interface between them: the launcher writes the program's exit code to ``exit``, so that a daemon knows
it even if it was not running at the time. A shipper that dies is restarted; a launcher is not, because its program died
too.
"""

from __future__ import annotations

import errno
import logging
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpu_scheduler.clusters.base import (
    ENDED,
    STOPPED_BEFORE_PROGRAM,
    STOPPED_CODE,
    EndReason,
    LearnerPhase,
    LearnerReport,
    memory_exceeded,
    memory_numbers,
)
from gpu_scheduler.clusters.local import ending as endings
from gpu_scheduler.clusters.local import environment, layers, processes
from gpu_scheduler.clusters.local.context import DaemonContext, clean, last_output
from gpu_scheduler.clusters.local.memory_limits import MIB, shared_memory_beside
from gpu_scheduler.clusters.local.packages import Ready
from gpu_scheduler.clusters.local.processes import Process, Stat
from gpu_scheduler.clusters.local.shipper import ShipperProcess, code_version
from gpu_scheduler.clusters.local.store import GangRecord, LearnerRecord

logger = logging.getLogger(__name__)

LOST_S = 3.0
"""Seconds that a dead launcher's ``exit`` may be missing; its shipper writes it after one second."""
LAUNCHER_SLACK_S = 2.0
"""Seconds that a launcher may take to record the end of a program that the daemon killed."""
SIGNALED = 128
LEFT = {
    EndReason.NODE_LOST: "The node was shut down.",
    EndReason.PLATFORM_STOPPED: "The platform was stopped.",
}


class LocalLearner:
    """One rank of a gang. ``advance`` brings the record up to date; times are of the boot clock."""

    def __init__(self, context: DaemonContext, gang: GangRecord, record: LearnerRecord) -> None:
        self.record = record
        self.folders = context.folders(gang.launch.name, record)
        self.removing = False
        self._context = context
        self._gang = gang
        self._launcher: Process | None = None
        self._shipper = ShipperProcess(context, gang, record, self.folders)
        self._launcher_dead_at: float | None = None
        self._termed = False
        self._killed_at: float | None = None
        self._peak_bytes = 0
        self._confined = False
        self._is_found_again = False

    @property
    def ended(self) -> bool:
        return self.record.phase in ENDED

    def report(self) -> LearnerReport:
        record = self.record
        # Reported before the end, so that the end is not mistaken for a requested halt.
        leaving = None if self.ended else record.leaving
        return LearnerReport(
            rank=record.rank,
            node=record.node,
            uid=record.uid,
            phase=record.phase,
            exit_code=record.exit_code,
            reason=record.reason or leaving,
            message=clean(record.message),
            numbers=dict(record.numbers),
            output=record.output,
            program_ended=record.phase is not LearnerPhase.PREPARING and not self._has_launcher(),
        )

    def shown(self) -> tuple[object, ...]:
        """What decides the report, without the cost of making one."""
        record = self.record
        return (
            record.phase,
            record.exit_code,
            record.reason,
            record.message,
            self._launcher_dead_at is None,
            record.leaving,
        )

    def _has_launcher(self) -> bool:
        return self._launcher is not None and self._launcher.is_alive()

    def has_program(self) -> bool:
        """Whether its program, or a setup command, has begun and not ended."""
        return self._has_launcher() and endings.began(self.folders)

    def pidfds(self) -> list[int]:
        """What becomes readable when one of the processes ends."""
        found = (process.fileno() for process in self._processes())
        return [pidfd for pidfd in found if pidfd >= 0]

    def _processes(self) -> list[Process]:
        return [process for process in (self._launcher, self._shipper.process) if process is not None]

    # Starting and reattaching

    def find_again(self, now: float) -> None:
        """Reattach to what still runs after a restart of the daemon. ``run`` starts what never started."""
        if not self.record.started or self.ended:
            return
        self._is_found_again = True
        self._launcher = processes.reattach(self.record.launcher, self.record.mark, self._context.boot)
        if self._launcher is not None:
            self.record.launcher = self._launcher.identity
        self._shipper.find_again(now)
        self._confined = self._context.cgroups is not None and self._context.cgroups.exists(self.record.mark)

    def prepare(self, packages: Path, pip: Path | None) -> None:
        """Make the directories and its own environment over the packages; all ranks do so before any is started."""
        self.folders.make()
        layers.make_own(self.folders.environment, packages, pip)
        if self._gang.launch.is_distributed:
            hosts = "".join(f"{environment.LOOPBACK}\n" for _ in self._gang.learners)
            (self.folders.state / "hostfile").write_text(hosts)

    def run(self, ready: Ready, devices: Sequence[str], now: float) -> None:
        """Start the processes that do not run yet. Raises OSError; calling it again continues."""
        self.record.started = True
        if self.record.shipper is None:
            self._shipper.start(now)
        if self.record.launcher is None:
            self._start_launcher(ready, devices, now)
        # Last, because a RUNNING learner without a launcher counts as one whose launcher died.
        self.record.phase = LearnerPhase.RUNNING

    def _start_launcher(self, ready: Ready, devices: Sequence[str], now: float) -> None:
        launch, mark, context = self._gang.launch, self.record.mark, self._context
        # By the runtime's Python: what is in the job's own packages is the program's business.
        python = ready.base / "bin" / "python"
        arguments = ["launcher"]
        if not isinstance(launch.command, str):
            arguments += ["--", *launch.command]
        sandbox = context.sandboxing.of_learner(
            self.folders,
            (ready.base, ready.top),
            context.shared_by_programs,
            devices=context.gpus.files(devices),
            memory_mib=launch.memory_mib,
            most_processes=processes.MOST,
        )
        env = environment.of_launcher(
            launch,
            self.record.rank,
            folders=self.folders,
            packages=(ready.top, ready.base),
            devices=devices if sandbox is None else context.gpus.names(devices),
            ports=self._gang.ports,
            mark=mark,
            sandbox=sandbox,
        )
        cwd, output, boot = self.folders.code, self.folders.launcher_log, context.boot
        forks = None if context.launchers is None else context.launchers.of(python)
        forked = forks and forks.start(
            arguments,
            version=f"{code_version(context.agent)} {_identity(python)}",
            env=env,
            cwd=cwd,
            output=output,
            boot=boot,
            now=now,
        )
        self._launcher = forked or processes.start(
            [*environment.agent_command(python, context.agent), *arguments],
            env=env, cwd=cwd, output=output, boot=boot,
        )  # fmt: skip
        self.record.launcher = self._launcher.identity
        if context.cgroups is not None:
            is_confined = context.cgroups.confine(mark, self._launcher.pid, launch.memory_mib, processes.MOST)
            self._confined = is_confined and launch.memory_mib > 0

    # Watching

    def advance(self, now: float) -> bool:
        """Update the record; True if it changed. Raises OSError."""
        # PREPARING on disk may mean that an earlier daemon died while it started the gang: `run` continues it.
        if self.ended or self.removing or self.record.phase is LearnerPhase.PREPARING:
            return False
        before = self._seen()
        self._check_launcher(now)
        ending = None
        if self._launcher_dead_at is not None:  # before that, only a program can have written one
            ending = endings.read(self.folders)
            if ending is None and not endings.began(self.folders):
                ending = self._write_exit_of_launcher()
        self.record.exit_code = endings.code_of(ending)
        if (failure := self._shipper.advance(now)) is not None:
            self._note_kill_reason(failure.reason, failure.message)
            if failure.ends_program:
                processes.kill_tree(self._launcher, [self.record.mark], root_too=True)
        if self._launcher_dead_at is not None and self.record.shipper_done:
            waited = now - self._launcher_dead_at >= LOST_S
            if ending is not None or waited or self.record.kill_reason:
                self._finish(ending)
        return before != self._seen()

    def _seen(self) -> tuple[object, ...]:
        record = self.record
        return record.phase, record.exit_code, record.shipper, record.shipper_done, record.kill_reason

    def _check_launcher(self, now: float) -> None:
        if not self._has_launcher() and self._launcher_dead_at is None:
            self._launcher_dead_at = now
            # The program dies with its launcher; kill what it had started.
            self._kill_left_behind([self._launcher], [self.record.mark])

    def _write_exit_of_launcher(self) -> Mapping[str, Any]:
        """The launcher ended before it did anything: write so into the spool, and why if it could not start."""
        stopped = self._gang.stop_at is not None
        code = None if self._launcher is None else self._launcher.exit_code
        if not stopped and code is not None and code < SIGNALED:
            self._note_kill_reason(
                EndReason.DEPLOY_FAILED,
                f"The launcher could not start: {last_output(self.folders.launcher_log)}",
            )
        return endings.write_exit_for_launcher(self.folders, stopped=stopped)

    def watch_memory(self, rows: Mapping[int, Stat]) -> None:
        """Record the program's peak memory; kill it above its limit where no cgroup does."""
        if self.ended or self.removing or self._launcher is None or self._launcher.fileno() < 0:
            return
        pids = processes.descendants(self._launcher.pid, rows)
        held = sum(rows[pid].rss_bytes for pid in pids)
        if self._context.sandboxing.namespaces and not self._confined:
            held += shared_memory_beside(self._launcher.pid, pids)
        self._peak_bytes = max(self._peak_bytes, held)
        limit_mib = self._gang.launch.memory_mib
        if limit_mib > 0 and held > limit_mib * MIB and not self._confined and not self.record.kill_reason:
            # Recorded before the kill, so that the exit code never appears without its reason.
            self._note_out_of_memory(held // MIB)
            logger.info("out of memory", extra={"learner": self.record.uid, "held_mib": held // MIB})
            processes.kill_tree(self._launcher, [self.record.mark], root_too=False)

    # Ending

    def note_leaving(self, reason: EndReason) -> None:
        """Its program cannot go on, for this reason; nothing changes for one that has ended, which only delivers."""
        has_exited = not self._has_launcher() and endings.read(self.folders) is not None
        if not self.ended and not has_exited and self.record.leaving is None:
            self.record.leaving = reason

    def enforce_stop(self, now: float, *, kill_at: float) -> None:
        """Enforce a stop: SIGTERM once, SIGKILL to the program at kill_at, then to its launcher."""
        if self.ended or self.removing or self._launcher is None or not self._launcher.is_alive():
            return
        if not self._termed:
            self._termed = True
            self._launcher.signal(signal.SIGTERM)
        if now < kill_at:
            return
        if self._killed_at is None:
            self._killed_at = now
            processes.kill_tree(self._launcher, [self.record.mark], root_too=False)
        elif now - self._killed_at >= LAUNCHER_SLACK_S:
            processes.kill_tree(self._launcher, [self.record.mark], root_too=True)

    def stop_starting(self, reason: EndReason) -> None:
        """Stop a gang that is starting: a learner without a launcher ends here, others are stopped like any other."""
        if self.record.phase is not LearnerPhase.PREPARING:
            return
        if self.record.launcher is not None:
            self.record.phase = LearnerPhase.RUNNING
            return
        if self.record.started:
            self.kill()  # its shipper may be there
        self.fail(reason, STOPPED_BEFORE_PROGRAM, exit_code=STOPPED_CODE)

    def fail(self, reason: EndReason, message: str, *, exit_code: int | None = None) -> None:
        """End a learner whose program never ran."""
        self.record.phase = LearnerPhase.FAILED
        self.record.reason = reason
        self.record.message = message
        self.record.exit_code = exit_code

    def kill(self) -> bool:
        """Kill everything of this learner; True once nothing is left."""
        self.removing = True
        for process in self._processes():
            process.signal(signal.SIGKILL)
        both = [self._launcher, self._shipper.process]
        left = self._kill_left_behind(both, [self.record.mark, self._shipper.mark])
        alive = [process for process in self._processes() if process.is_alive()]
        return left == 0 and not alive

    def _kill_left_behind(self, roots: Sequence[Process | None], marks: Sequence[str]) -> int:
        """Kill what carries a mark; returns how many there were. roots: of all that carries one, if we started it.

        What roots that have ended left behind is our child. If there is none, the machine's processes need no search.
        """
        has_ended = not any(root is not None and root.is_alive() for root in roots)
        if has_ended and not self._is_found_again and not processes.has_orphans():
            return 0
        return processes.kill_tree(None, marks, root_too=True)

    def clear(self, trash: Path) -> None:
        """Move the folder to the trash at once; its files are deleted later."""
        if self._context.cgroups is not None:
            self._context.cgroups.remove(self.record.mark)
        try:
            self._throw_into(trash)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._throw_into(
                self.folders.root.parent / trash.name
            )  # this node's folder is on a disk of its own

    def _throw_into(self, trash: Path) -> None:
        trash.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            self.folders.root.rename(trash / f"{self.folders.root.name}.{self.record.mark}")

    def _finish(self, ending: Mapping[str, Any] | None) -> None:
        """Both processes are gone: set the final state."""
        record = self.record
        record.exit_code = endings.code_of(ending)
        self._note_memory()
        if not record.kill_reason:
            if ending is None or ending.get("lost"):
                record.reason = EndReason.LAUNCHER_LOST
                record.message = "The learner's processes died without an exit code."
            elif not ending.get("started", True):
                record.reason, record.message = endings.refusal(self.folders)
        if record.leaving is not None and self._was_interrupted(ending):
            record.reason, record.message = record.leaving, LEFT[record.leaving]
        record.reason = record.reason or EndReason.EXITED
        succeeded = record.exit_code == 0 and record.reason is EndReason.EXITED
        record.phase = LearnerPhase.SUCCEEDED if succeeded else LearnerPhase.FAILED
        logger.info(
            "learner ended", extra={"learner": record.uid, "code": record.exit_code, "reason": record.reason}
        )

    def _was_interrupted(self, ending: Mapping[str, Any] | None) -> bool:
        """True if the program ended because of the shutdown and not because it had finished."""
        if ending is None:
            return True
        return not ending.get("finished") and (bool(ending.get("halted")) or self.record.exit_code != 0)

    def _note_kill_reason(self, reason: EndReason, message: str) -> None:
        """Record why the daemon ends this learner; the first reason counts."""
        if not self.record.kill_reason:
            self.record.kill_reason = self.record.reason = reason
            self.record.message = message

    def _note_memory(self) -> None:
        record, cgroups = self.record, self._context.cgroups
        peak_mib = self._peak_bytes // MIB
        if cgroups is not None and self._confined:
            peak_mib = max(peak_mib, cgroups.peak_mib(record.mark) or 0)
            if cgroups.killed(record.mark):
                self._note_out_of_memory(peak_mib)
        if peak_mib:
            record.numbers["peak_memory_mib"] = max(peak_mib, record.numbers.get("peak_memory_mib", 0))

    def _note_out_of_memory(self, held_mib: int) -> None:
        limit = self._gang.launch.memory_mib
        self._note_kill_reason(EndReason.OUT_OF_MEMORY, memory_exceeded(held_mib, limit))
        self.record.numbers |= {"reason": EndReason.OUT_OF_MEMORY.value, **memory_numbers(held_mib, limit)}


def _identity(python: Path) -> str:
    """Of the interpreter's file: a runtime may be built again in the same place. Raises OSError."""
    found = python.stat()
    return f"{found.st_dev}:{found.st_ino}:{found.st_mtime_ns}"
