"""One learner: its launcher (which runs the program) and its shipper (which talks to the server).

The spool between them is the interface: the program's exit code is what the launcher wrote to ``exit``, so it is
known even to a daemon that was not there when it ended. A shipper that dies is started again; a launcher is not,
for its program died with it.
"""

from __future__ import annotations

import errno
import logging
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpu_scheduler.clusters.base import ENDED, EndReason, LearnerPhase, LearnerReport
from gpu_scheduler.clusters.local import ending as endings
from gpu_scheduler.clusters.local import environment, processes
from gpu_scheduler.clusters.local.house import House, clean, last_words
from gpu_scheduler.clusters.local.memory import MIB
from gpu_scheduler.clusters.local.processes import Process, Stat
from gpu_scheduler.clusters.local.shipper import Shipper
from gpu_scheduler.clusters.local.store import GangRecord, LearnerRecord

logger = logging.getLogger(__name__)

LOST_S = 3.0
"""How long a dead launcher's ``exit`` may be missing: its shipper writes one in its place after a second."""
LAUNCHER_SLACK_S = 2.0
"""How long a launcher may take to write down the end of a program that we killed."""
SIGNALLED = 128


class Learner:
    """One rank of a gang. ``look`` brings the record up to date; times are of the boot clock."""

    def __init__(self, house: House, gang: GangRecord, record: LearnerRecord) -> None:
        self.record = record
        self.folders = house.folders(gang.launch.name, record)
        self.removing = False
        self._house = house
        self._gang = gang
        self._launcher: Process | None = None
        self._shipper = Shipper(house, gang, record, self.folders)
        self._launcher_dead_at: float | None = None
        self._termed = False
        self._killed_at: float | None = None
        self._peak_bytes = 0
        self._confined = False

    @property
    def ended(self) -> bool:
        return self.record.phase in ENDED

    def report(self) -> LearnerReport:
        record = self.record
        # Said while it is being stopped, so that nobody takes its end for a halt that somebody wished.
        leaving = EndReason.NODE_LOST if self._gang.node_lost and not self.ended else None
        return LearnerReport(
            rank=record.rank,
            node=record.node,
            uid=record.uid,
            phase=record.phase,
            exit_code=record.exit_code,
            reason=record.reason or leaving,
            message=clean(record.message),
            evidence=dict(record.evidence),
            over=record.phase is not LearnerPhase.PREPARING and not self._has_launcher(),
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
            self._gang.node_lost,
        )

    def _has_launcher(self) -> bool:
        return self._launcher is not None and self._launcher.is_alive()

    def pidfds(self) -> list[int]:
        """What becomes readable when one of the processes ends."""
        found = (process.fileno() for process in self._processes())
        return [pidfd for pidfd in found if pidfd >= 0]

    def _processes(self) -> list[Process]:
        return [process for process in (self._launcher, self._shipper.process) if process is not None]

    # Starting and finding again

    def find_again(self, now: float) -> None:
        """After a restart of the daemon: take up what still runs. What never started is started by ``run``."""
        if not self.record.started or self.ended:
            return
        self._launcher = processes.take_up(self.record.launcher, self.record.mark, self._house.boot)
        if self._launcher is not None:
            self.record.launcher = self._launcher.identity
        self._shipper.find_again(now)
        self._confined = self._house.cgroups is not None and self._house.cgroups.holds(self.record.mark)

    def prepare(self) -> None:
        """Make the directories; all ranks do so before any is started."""
        self.folders.make()
        if len(self._gang.learners) > 1:
            hosts = "".join(f"{environment.LOOPBACK}\n" for _ in self._gang.learners)
            (self.folders.state / "hostfile").write_text(hosts)

    def run(self, runtime: Path, devices: Sequence[str], now: float) -> None:
        """Start the processes that are not there yet. Raises OSError; calling it again goes on."""
        self.record.started = True
        if self.record.shipper is None:
            self._shipper.start(now)
        if self.record.launcher is None:
            self._start_launcher(runtime, devices)
        self.record.phase = (
            LearnerPhase.RUNNING
        )  # not before: a launcher that is still to come is no dead one

    def _start_launcher(self, runtime: Path, devices: Sequence[str]) -> None:
        launch, mark = self._gang.launch, self.record.mark
        command = [str(runtime / "bin" / "python"), "-E", "-s", str(self._house.agent), "launcher"]
        if not isinstance(launch.command, str):
            command += ["--", *launch.command]
        env = environment.of_launcher(
            launch,
            self.record.rank,
            folders=self.folders,
            runtime=runtime,
            devices=devices,
            ports=self._gang.ports,
            mark=mark,
        )
        self._launcher = processes.start(
            command,
            env=env,
            cwd=self.folders.code,
            output=self.folders.launcher_log,
            boot=self._house.boot,
        )
        self.record.launcher = self._launcher.identity
        if self._house.cgroups is not None and launch.memory_mib > 0:
            self._confined = self._house.cgroups.confine(mark, self._launcher.pid, launch.memory_mib)

    # Watching

    def look(self, now: float) -> bool:
        """Notice what happened since; True if the record changed. Raises OSError."""
        # PREPARING on disk may mean that an earlier daemon died while it started the gang: `run` goes on with it.
        if self.ended or self.removing or self.record.phase is LearnerPhase.PREPARING:
            return False
        before = self._seen()
        self._look_at_launcher(now)
        ending = None
        if self._launcher_dead_at is not None:  # before that, only a program can have written one
            ending = endings.read(self.folders)
            if ending is None and not endings.began(self.folders):
                ending = self._speak_for_launcher()
        self.record.exit_code = endings.code_of(ending)
        if (given_up := self._shipper.look(now)) is not None:
            self._doom(given_up.reason, given_up.message)
            if given_up.ends_program:
                processes.kill_tree(self._launcher, [self.record.mark], root_too=True)
        if self._launcher_dead_at is not None and self.record.shipper_done:
            waited = now - self._launcher_dead_at >= LOST_S
            if ending is not None or waited or self.record.doomed:
                self._finish(ending)
        return before != self._seen()

    def _seen(self) -> tuple[object, ...]:
        record = self.record
        return record.phase, record.exit_code, record.shipper, record.shipper_done, record.doomed

    def _look_at_launcher(self, now: float) -> None:
        if not self._has_launcher() and self._launcher_dead_at is None:
            self._launcher_dead_at = now
            # The program dies with its launcher; what it had started is ours to end.
            processes.kill_tree(None, [self.record.mark], root_too=True)

    def _speak_for_launcher(self) -> Mapping[str, Any]:
        """The launcher is gone and did nothing: say so in the spool, and why if it could not even start."""
        stopped = self._gang.stop_at is not None
        code = None if self._launcher is None else self._launcher.exit_code
        if not stopped and code is not None and code < SIGNALLED:
            self._doom(
                EndReason.DEPLOY_FAILED,
                f"The launcher could not start: {last_words(self.folders.launcher_log)}",
            )
        return endings.write_in_its_place(self.folders, stopped=stopped)

    def watch_memory(self, rows: Mapping[int, Stat]) -> None:
        """Remember the most memory the program held; end it above its limit where no cgroup does."""
        if self.ended or self.removing or self._launcher is None or self._launcher.fileno() < 0:
            return
        held = sum(rows[pid].rss_bytes for pid in processes.descendants(self._launcher.pid, rows))
        self._peak_bytes = max(self._peak_bytes, held)
        limit_mib = self._gang.launch.memory_mib
        if limit_mib > 0 and held > limit_mib * MIB and not self._confined and not self.record.doomed:
            # Said before the kill, so that nobody ever sees the exit code without its reason.
            self._note_out_of_memory(held // MIB)
            logger.info("out of memory", extra={"learner": self.record.uid, "held_mib": held // MIB})
            processes.kill_tree(self._launcher, [self.record.mark], root_too=False)

    # Ending

    def press(self, now: float, *, kill_at: float) -> None:
        """Carry on a stop: SIGTERM once, SIGKILL to the program at kill_at, then to its launcher."""
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
        """A stop while the gang starts: what has no launcher yet ends here; what has one is pressed like any other."""
        if self.record.phase is not LearnerPhase.PREPARING:
            return
        if self.record.launcher is not None:
            self.record.phase = LearnerPhase.RUNNING
            return
        if self.record.started:
            self.kill()  # its shipper may be there
        self.fail(reason, "Stopped before it started.", exit_code=endings.STOPPED_CODE)

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
        left = processes.kill_tree(None, [self.record.mark, self._shipper.mark], root_too=True)
        alive = [process for process in self._processes() if process.is_alive()]
        return left == 0 and not alive

    def clear(self, trash: Path) -> None:
        """Take the directory away at once; its content is deleted by whoever empties the trash."""
        if self._house.cgroups is not None:
            self._house.cgroups.drop(self.record.mark)
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
        """Both processes are gone: what is left to say about this learner."""
        record = self.record
        record.exit_code = endings.code_of(ending)
        self._note_memory()
        if not record.doomed:
            if ending is None or ending.get("lost"):
                record.reason = EndReason.LAUNCHER_LOST
                record.message = "The learner's processes died and left no exit code."
            elif not ending.get("started", True):
                record.reason, record.message = endings.refusal(self.folders)
        if self._gang.node_lost and self._was_interrupted(ending):
            record.reason, record.message = EndReason.NODE_LOST, "The node was shut down."
        record.reason = record.reason or EndReason.EXITED
        succeeded = record.exit_code == 0 and record.reason is EndReason.EXITED
        record.phase = LearnerPhase.SUCCEEDED if succeeded else LearnerPhase.FAILED
        logger.info(
            "learner ended", extra={"learner": record.uid, "code": record.exit_code, "reason": record.reason}
        )

    def _was_interrupted(self, ending: Mapping[str, Any] | None) -> bool:
        """Say whether the program ended because the node went, not because it was through."""
        if ending is None:
            return True
        return not ending.get("finished") and (bool(ending.get("halted")) or self.record.exit_code != 0)

    def _doom(self, reason: EndReason, message: str) -> None:
        """The first reason for which we end a learner is the one that counts."""
        if not self.record.doomed:
            self.record.doomed = self.record.reason = reason
            self.record.message = message

    def _note_memory(self) -> None:
        record, cgroups = self.record, self._house.cgroups
        peak_mib = self._peak_bytes // MIB
        if cgroups is not None and self._confined:
            peak_mib = max(peak_mib, cgroups.peak_mib(record.mark) or 0)
            if cgroups.killed(record.mark):
                self._note_out_of_memory(peak_mib)
        if peak_mib:
            record.evidence["peak_memory_mib"] = max(peak_mib, record.evidence.get("peak_memory_mib", 0))

    def _note_out_of_memory(self, held_mib: int) -> None:
        limit = self._gang.launch.memory_mib
        self._doom(
            EndReason.OUT_OF_MEMORY, f"The learner used {held_mib} MiB of memory, its limit is {limit} MiB."
        )
        self.record.evidence |= {
            "reason": "out_of_memory",
            "peak_memory_mib": held_mib,
            "memory_limit_mib": limit,
        }
