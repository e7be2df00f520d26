"""One learner: its launcher (which runs the program) and its shipper (which talks to the server).

The spool between them is the interface: the program's exit code is what the launcher wrote to ``exit``, so it is
known even to a daemon that was not there when it ended. A shipper that dies is started again; a launcher is not,
for its program died with it.
"""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_scheduler.clusters.base import ENDED, LearnerPhase, LearnerReport
from gpu_scheduler.clusters.local import environment, processes
from gpu_scheduler.clusters.local.environment import Folders
from gpu_scheduler.clusters.local.memory import MIB, Cgroups
from gpu_scheduler.clusters.local.processes import Process, Stat
from gpu_scheduler.clusters.local.store import GangRecord, LearnerRecord

logger = logging.getLogger(__name__)

SHIPPER_DONE, SHIPPER_FENCED, SHIPPER_MISCONFIGURED = 0, 76, 78
SHIPPER_BACKOFF_S = 0.2
SHIPPER_BACKOFF_MAX_S = 15.0
SHIPPER_QUICK_DEATHS = 20
"""So many deaths in a row, each within QUICK_S of its start, and the learner is given up."""
QUICK_S = 10.0
LOST_S = 3.0
"""How long a dead launcher's ``exit`` may be missing: its shipper writes one in its place after a second."""
LAUNCHER_SLACK_S = 2.0
"""How long a launcher may take to write down the end of a program that we killed."""
STOPPED_CODE = 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True)
class House:
    """What all learners of a daemon share. agent: the directory of the learner agent's package."""

    data: Path
    agent: Path
    python: str
    boot: str
    cgroups: Cgroups | None

    def folders(self, gang: str, learner: LearnerRecord) -> Folders:
        return Folders(self.data / "nodes" / learner.node / f"{gang}-{learner.rank}")


class Learner:
    """One rank of a gang. ``look`` brings the record up to date; times are of the boot clock."""

    def __init__(self, house: House, gang: GangRecord, record: LearnerRecord) -> None:
        self.record = record
        self.folders = house.folders(gang.launch.name, record)
        self.removing = False
        self._house = house
        self._gang = gang
        self._launcher: Process | None = None
        self._shipper: Process | None = None
        self._shipper_born = 0.0
        self._shipper_due = 0.0
        self._quick_deaths = 0
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
        return LearnerReport(
            rank=record.rank,
            node=record.node,
            uid=record.uid,
            phase=record.phase,
            exit_code=record.exit_code,
            reason=record.reason,
            message=record.message,
            evidence=dict(record.evidence),
        )

    def pidfds(self) -> list[int]:
        """What becomes readable when one of the processes ends."""
        found = (process.fileno() for process in (self._launcher, self._shipper) if process is not None)
        return [pidfd for pidfd in found if pidfd >= 0]

    # Starting and finding again

    def find_again(self, now: float) -> None:
        """After a restart of the daemon: take up what still runs. What never started is started by ``run``."""
        if not self.record.started or self.ended:
            return
        for which, mark in (("launcher", self.record.mark), ("shipper", self._shipper_mark)):
            identity = getattr(self.record, which)
            boot = self._house.boot
            found = (
                processes.find_marked(mark, boot)
                if identity is None
                else processes.find_again(identity, boot)
            )
            if found is not None:
                setattr(self.record, which, found.identity)
                setattr(self, f"_{which}", found)
        self._shipper_born = now

    def prepare(self) -> None:
        """Make the directories; all ranks do so before any is started."""
        self.folders.make()
        if len(self._gang.learners) > 1:
            hosts = "".join(f"{environment.LOOPBACK}\n" for _ in self._gang.learners)
            (self.folders.state / "hostfile").write_text(hosts)

    def run(self, runtime: Path, devices: Sequence[str], now: float) -> None:
        """Start the processes that are not there yet. Raises OSError; calling it again goes on."""
        self.record.started = True
        self.record.phase = LearnerPhase.RUNNING
        if self.record.shipper is None:
            self._start_shipper(now)
        if self.record.launcher is None:
            self._start_launcher(runtime, devices)

    def _start_launcher(self, runtime: Path, devices: Sequence[str]) -> None:
        launch = self._gang.launch
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
            mark=self.record.mark,
        )
        self._launcher = processes.start(
            command,
            env=env,
            cwd=self.folders.code,
            output=self.folders.root / "launcher.log",
            boot=self._house.boot,
        )
        self.record.launcher = self._launcher.identity
        if self._house.cgroups is not None and launch.memory_mib > 0:
            self._confined = self._house.cgroups.confine(
                self.record.mark, self._launcher.pid, launch.memory_mib
            )

    def _start_shipper(self, now: float) -> None:
        agent = self._house.agent
        env = environment.of_shipper(
            self._gang.launch,
            self.record.rank,
            folders=self.folders,
            data_root=self._house.data / "datasets",
            import_from=agent.parent,
            mark=self._shipper_mark,
        )
        self._shipper = processes.start(
            [self._house.python, "-m", agent.name, "shipper"],
            env=env,
            cwd=self.folders.root,
            output=self._shipper_log,
            boot=self._house.boot,
        )
        self._shipper_born = now
        self.record.shipper = self._shipper.identity

    @property
    def _shipper_mark(self) -> str:
        return f"{self.record.mark}.shipper"

    @property
    def _shipper_log(self) -> Path:
        return self.folders.root / "shipper.log"

    # Watching

    def look(self, now: float) -> bool:
        """Notice what happened since; True if the record changed."""
        # PREPARING on disk may mean that an earlier daemon died while it started the gang: `run` goes on with it.
        if self.ended or self.removing or self.record.phase is LearnerPhase.PREPARING:
            return False
        before = (self.record.exit_code, self.record.shipper, self.record.shipper_done, self.record.doomed)
        launcher_alive = self._launcher is not None and self._launcher.is_alive()
        ending = self._ending()
        if ending is not None and self.record.exit_code is None and not ending.get("lost"):
            self.record.exit_code = int(ending.get("code", processes.KILLED))
        if not launcher_alive and self._launcher_dead_at is None:
            self._launcher_dead_at = now
            # The program dies with its launcher; what it had started is ours to end.
            processes.kill_tree(None, [self.record.mark], root_too=True)
        if ending is None and self._launcher_dead_at is not None and not self._began():
            ending = self._write_exit_in_its_place()
        if not self.record.shipper_done:
            self._look_at_shipper(now)
        if self._launcher_dead_at is not None and self.record.shipper_done:
            waited = now - self._launcher_dead_at >= LOST_S
            if ending is not None or waited or self.record.doomed:
                self._finish(ending)
                return True
        return before != (
            self.record.exit_code,
            self.record.shipper,
            self.record.shipper_done,
            self.record.doomed,
        )

    def _ending(self) -> Mapping[str, Any] | None:
        """How the program ended, in the launcher's words."""
        try:
            value = json.loads(self.folders.exit.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def _began(self) -> bool:
        """Say whether the launcher came as far as starting the program."""
        return (self.folders.state / "phase").exists()

    def _write_exit_in_its_place(self) -> Mapping[str, Any]:
        """A launcher killed before it did anything leaves no word, and its shipper would wait for one for ever.

        One that began is the shipper's to notice: only it knows how much of the log there is.
        """
        stopped = self._gang.stop_at is not None
        ending = {
            "code": STOPPED_CODE if stopped else processes.KILLED,
            "signal": None,
            "started": False,
            "halted": stopped,
            "finished": False,
            "lost": not stopped,
            "size": 0,
            "crc": None,
        }
        temporary = self.folders.exit.with_suffix(".tmp")
        temporary.write_text(json.dumps(ending))
        temporary.replace(self.folders.exit)
        return ending

    def _look_at_shipper(self, now: float) -> None:
        """Notice the shipper's end: done, given up, or to be started again after a pause."""
        if self._shipper is not None:
            if self._shipper.is_alive():
                if now - self._shipper_born > QUICK_S:
                    self._quick_deaths = 0
                return
            code, self._shipper = self._shipper.exit_code, None
            if code == SHIPPER_DONE:
                self.record.shipper_done = True
            elif code == SHIPPER_FENCED:
                # The attempt is over for the server; the shipper has told the launcher to end.
                self._give_up("fenced", "The server no longer knows this attempt.", kill=False)
            elif code == SHIPPER_MISCONFIGURED:
                self._give_up("deploy_failed", f"The shipper could not start: {self._last_words()}")
            else:
                self._note_shipper_death(code, now)
        if self.record.shipper_done or now < self._shipper_due:
            return
        if (self.folders.state / "shipper" / "done.json").exists():
            # It ended well while no daemon was there to see its exit code.
            self.record.shipper_done = True
            return
        try:
            self._start_shipper(now)
        except OSError as error:
            logger.warning("shipper not started", extra={"error": str(error)})
            self._shipper_due = now + 1.0

    def _note_shipper_death(self, code: int | None, now: float) -> None:
        self._quick_deaths += 1
        if self._quick_deaths >= SHIPPER_QUICK_DEATHS:
            self._give_up("shipper_failed", f"The shipper keeps dying: {self._last_words()}")
            return
        pause = min(SHIPPER_BACKOFF_MAX_S, SHIPPER_BACKOFF_S * 2 ** (self._quick_deaths - 1))
        self._shipper_due = now + pause
        logger.warning("shipper died", extra={"learner": self.record.uid, "code": code, "again_in_s": pause})

    def _give_up(self, reason: str, message: str, *, kill: bool = True) -> None:
        if not self.record.doomed:
            self.record.doomed = self.record.reason = reason
            self.record.message = message
        self.record.shipper_done = True
        if kill:
            processes.kill_tree(self._launcher, [self.record.mark], root_too=True)

    def _last_words(self) -> str:
        try:
            return " ".join(self._shipper_log.read_text(errors="replace").split("\n")[-4:])[-400:].strip()
        except OSError:
            return "it said nothing."

    def watch_memory(self, rows: Mapping[int, Stat]) -> None:
        """Remember the most memory the program held; end it above its limit where no cgroup does."""
        if self.ended or self.removing or self._launcher is None or self._launcher.fileno() < 0:
            return
        held = sum(rows[pid].rss_bytes for pid in processes.descendants(self._launcher.pid, rows))
        self._peak_bytes = max(self._peak_bytes, held)
        limit_mib = self._gang.launch.memory_mib
        if limit_mib > 0 and held > limit_mib * MIB and not self._confined and not self.record.doomed:
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

    def fail(self, reason: str, message: str, *, exit_code: int | None = None) -> None:
        """End a learner whose program never ran."""
        self.record.phase = LearnerPhase.FAILED
        self.record.reason = reason
        self.record.message = message
        self.record.exit_code = exit_code

    def kill(self) -> bool:
        """Kill everything of this learner; True once nothing is left."""
        self.removing = True
        for process in (self._launcher, self._shipper):
            if process is not None:
                process.signal(signal.SIGKILL)
        left = processes.kill_tree(None, [self.record.mark, self._shipper_mark], root_too=True)
        alive = [
            process
            for process in (self._launcher, self._shipper)
            if process is not None and process.is_alive()
        ]
        return left == 0 and not alive

    def clear(self, trash: Path) -> None:
        """Take the directory away at once; its content is deleted by whoever empties the trash."""
        if self._house.cgroups is not None:
            self._house.cgroups.drop(self.record.mark)
        trash.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            self.folders.root.rename(trash / f"{self.folders.root.name}.{self.record.mark}")

    def _finish(self, ending: Mapping[str, Any] | None) -> None:
        """Both processes are gone: what is left to say about this learner."""
        record = self.record
        lost = ending is None or bool(ending.get("lost"))
        record.exit_code = None if lost or ending is None else int(ending.get("code", processes.KILLED))
        self._note_memory()
        if record.doomed:
            record.reason = record.doomed
        elif lost:
            record.reason, record.message = (
                "launcher_lost",
                "The learner's processes died and left no exit code.",
            )
        elif ending is not None and not ending.get("started", True):
            self._note_refusal()
        if self._gang.node_lost and not (ending or {}).get("finished") and self._was_interrupted(ending):
            record.reason, record.message = "node_lost", "The node was shut down."
        record.phase = (
            LearnerPhase.SUCCEEDED if record.exit_code == 0 and not record.reason else LearnerPhase.FAILED
        )
        logger.info(
            "learner ended", extra={"learner": record.uid, "code": record.exit_code, "reason": record.reason}
        )

    def _was_interrupted(self, ending: Mapping[str, Any] | None) -> bool:
        return ending is None or bool(ending.get("halted")) or self.record.exit_code != 0

    def _note_refusal(self) -> None:
        """The program never began: say why, if the shipper did."""
        try:
            refused = json.loads((self.folders.state / "refused").read_text("utf-8"))
            self.record.reason, self.record.message = str(refused["code"]), str(refused["message"])[:1000]
        except (OSError, ValueError, KeyError, TypeError):
            self.record.reason = "stopped"

    def _note_memory(self) -> None:
        record, cgroups = self.record, self._house.cgroups
        peak_mib = self._peak_bytes // MIB
        if cgroups is not None and self._confined:
            peak_mib = max(peak_mib, cgroups.peak_mib(record.mark) or 0)
            if cgroups.killed(record.mark):
                self._note_out_of_memory(peak_mib)
        if peak_mib:
            record.evidence["peak_memory_mib"] = peak_mib

    def _note_out_of_memory(self, held_mib: int) -> None:
        """Say it before the kill, so that nobody ever sees the exit code without its reason."""
        limit = self._gang.launch.memory_mib
        self.record.doomed = self.record.reason = "out_of_memory"
        self.record.evidence |= {
            "reason": "out_of_memory",
            "peak_memory_mib": held_mib,
            "memory_limit_mib": limit,
        }
        self.record.message = f"The learner used {held_mib} MiB of memory, its limit is {limit} MiB."
