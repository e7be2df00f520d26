"""All gangs of this machine: what the daemon does when it is asked, and what it does by itself.

Every public method takes the one lock; nothing in here waits while holding it but for the disk.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.clusters.base import (
    ClusterBusy,
    EndReason,
    GangReport,
    Launch,
    LaunchRefused,
    LearnerPhase,
    RefusalCode,
    Removal,
)
from gpu_scheduler.clusters.local import processes
from gpu_scheduler.clusters.local.house import House
from gpu_scheduler.clusters.local.journal import Journal
from gpu_scheduler.clusters.local.learner import Learner
from gpu_scheduler.clusters.local.memory import machine_mib
from gpu_scheduler.clusters.local.nodes import LocalNode
from gpu_scheduler.clusters.local.runtime_failure import RuntimeFailed
from gpu_scheduler.clusters.local.runtimes import Preparing, Runtimes
from gpu_scheduler.clusters.local.store import GangRecord, LearnerRecord, Store, boot_clock
from gpu_scheduler.model import Node

logger = logging.getLogger(__name__)

REMOVE_S = 2.0
"""How long remove waits for killed processes to be gone before it answers TERMINATING."""
MEMORY_S = 1.0
SHUTDOWN_SLACK_S = 10.0
"""After the last grace, how long shippers may still deliver when the daemon goes."""


class Gang:
    """One gang: its record and its learners."""

    def __init__(self, house: House, record: GangRecord) -> None:
        self.record = record
        self.learners = [Learner(house, record, learner) for learner in record.learners]
        self.message = ""
        self.unsaved = False
        self._shown: tuple[object, ...] = ()
        self.trouble = ""
        """What keeps this machine from looking after the gang now; tried again until it is over."""

    @property
    def name(self) -> str:
        return self.record.launch.name

    @property
    def preparing(self) -> bool:
        return any(learner.record.phase is LearnerPhase.PREPARING for learner in self.learners)

    @property
    def ended(self) -> bool:
        return all(learner.ended for learner in self.learners)

    def report(self) -> GangReport:
        learners = tuple(learner.report() for learner in self.learners)
        message = f"The node has trouble: {self.trouble}" if self.trouble else self.message
        return GangReport(self.name, learners, self.record.stop_at is not None, message)

    def has_new_report(self) -> bool:
        """True if what ``report`` shows has changed since the last call."""
        learners = tuple(learner.shown() for learner in self.learners)
        now = (learners, self.record.stop_at is None, self.trouble or self.message)
        before, self._shown = self._shown, now
        return before != now

    def ask_to_stop(self, now: float, grace_s: float) -> bool:
        """Note a stop; a second one can only shorten the grace. True if it changes anything."""
        kill_at = now + grace_s
        if self.record.kill_at is not None and self.record.kill_at <= kill_at:
            return False
        self.record.stop_at = now if self.record.stop_at is None else self.record.stop_at
        self.record.kill_at = kill_at
        return True


@dataclass(frozen=True, slots=True)
class Changes:
    """all: changed holds every gang, not only the changed ones."""

    revision: int
    all: bool
    changed: list[GangReport]
    gone: list[str]


class Gangs:
    """The machine's gangs. on_change is called, from any thread, when the loop should look again."""

    def __init__(
        self,
        house: House,
        nodes: Sequence[LocalNode],
        runtimes: Runtimes,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._house = house
        self._nodes = {node.name: node for node in nodes}
        self._runtimes = runtimes
        self._on_change = on_change
        self._store = Store(house.data / "nodes" / ".gangs")
        self._trash = house.data / "nodes" / ".trash"
        self._lock = threading.RLock()
        self._gangs: dict[str, Gang] = {}
        self._journal = Journal(self._lock)
        self._memory_due = 0.0

    # What a driver asks for

    def nodes(self) -> list[Node]:
        memory_mib = machine_mib()
        return [self._nodes[name].on(memory_mib) for name in sorted(self._nodes)]

    def count(self) -> int:
        return len(self._gangs)

    def launch(self, launch: Launch) -> int:
        """Make the gang exist, or raise and leave nothing; returns the revision. Raises LaunchRefused, ClusterBusy."""
        with self._lock:
            if launch.name in self._gangs:
                return self._journal.revision
            if launch.runtime is None or not self._runtimes.has(launch.runtime):
                known = ", ".join(self._runtimes.names()) or "none"
                raise LaunchRefused(f"There is no runtime {launch.runtime} here; there are: {known}.")
            record = GangRecord(launch, self._seat(launch), self._house.boot)
            self._store.save(record)
            self._gangs[launch.name] = Gang(self._house, record)
            revision = self._journal.changed(launch.name)
        logger.info("gang launched", extra={"gang": launch.name, "learners": len(launch.learners)})
        self._on_change()
        return revision

    def observe(self, names: Iterable[str] | None) -> list[GangReport]:
        with self._lock:
            wanted = self._gangs if names is None else [name for name in names if name in self._gangs]
            return [self._gangs[name].report() for name in sorted(wanted)]

    def changes(self, since: int | None, *, wait_s: float) -> Changes:
        """What changed after a revision (None: everything), waiting for it up to wait_s seconds."""
        with self._lock:
            changed = self._journal.since(since, wait_s)
            names = list(self._gangs) if changed is None else changed
            reports = [self._gangs[name].report() for name in names if name in self._gangs]
            gone = [name for name in names if name not in self._gangs]
            return Changes(self._journal.revision, changed is None, reports, gone)

    def stop(self, name: str, grace_s: float) -> int:
        """Ask a gang to stop; returns the revision."""
        with self._lock:
            gang = self._gangs.get(name)
            if gang is not None and gang.ask_to_stop(boot_clock(), grace_s):
                self._store.save(gang.record)
                self._journal.changed(name)
            revision = self._journal.revision
        self._on_change()
        return revision

    def remove(self, name: str, uids: Sequence[str] | None) -> tuple[Removal, int]:
        """Kill the learners' processes and forget them; TERMINATING if a process has not ended yet.

        Returns the revision, too.
        """
        with self._lock:
            gang = self._gangs.get(name)
            if gang is None:
                return Removal.GONE, self._journal.revision
            doomed = [learner for learner in gang.learners if uids is None or learner.record.uid in uids]
            for learner in doomed:
                # From here on the loop neither starts nor restarts anything of it.
                learner.removing = True
        give_up = time.monotonic() + REMOVE_S
        while not self._are_gone(doomed):
            if time.monotonic() > give_up:
                return Removal.TERMINATING, self._journal.revision
            time.sleep(0.01)
        with self._lock:
            self._forget(gang, doomed)
            revision = self._journal.changed(name)
        logger.info("learners removed", extra={"gang": name, "learners": len(doomed)})
        self._on_change()
        return Removal.GONE, revision

    def _are_gone(self, learners: Sequence[Learner]) -> bool:
        with self._lock:
            left = [learner for learner in learners if not learner.kill()]
        return not left

    # What the daemon does by itself

    def load(self) -> None:
        """Take up the gangs of an earlier daemon."""
        now = boot_clock()
        with self._lock:
            for record in self._store.load():
                if record.boot != self._house.boot:
                    # The machine was restarted: no process is left, and the boot clock began anew.
                    record.boot, record.kill_at = self._house.boot, None
                    record.node_lost = any(learner.started for learner in record.learners)
                gang = Gang(self._house, record)
                self._gangs[gang.name] = gang
                for learner in gang.learners:
                    learner.find_again(now)
                self._store.save(record)
        self._empty_trash()
        self._runtimes.sweep()

    def look(self) -> float:
        """Move every gang on; returns in how many seconds to look again if nothing happens before."""
        now = boot_clock()
        with self._lock:
            for gang in self._gangs.values():
                self._look_after(gang, now)
                if gang.has_new_report():
                    self._journal.changed(gang.name)
            if now >= self._memory_due and any(not gang.ended for gang in self._gangs.values()):
                self._memory_due = now + MEMORY_S
                rows = processes.table()
                for gang in self._gangs.values():
                    for learner in gang.learners:
                        learner.watch_memory(rows)
            busy = any(
                gang.preparing or gang.record.stop_at is not None
                for gang in self._gangs.values()
                if not gang.ended
            )
        processes.sweep_orphans()
        return 0.1 if busy else 0.5

    def pidfds(self) -> list[int]:
        with self._lock:
            return [
                pidfd
                for gang in self._gangs.values()
                for learner in gang.learners
                for pidfd in learner.pidfds()
            ]

    def shut_down(self) -> None:
        """Stop all learners with their grace: they end as lost with the node, and their jobs go on later."""
        now = boot_clock()
        with self._lock:
            for gang in self._gangs.values():
                if not gang.ended:
                    gang.record.node_lost = True
                    gang.ask_to_stop(now, gang.record.launch.grace_s)
                    self._store.save(gang.record)
                    self._journal.changed(gang.name)

    def may_go(self) -> bool:
        """Say whether nothing is left to wait for."""
        now = boot_clock()
        with self._lock:
            return all(
                gang.ended or now >= (gang.record.kill_at or now) + SHUTDOWN_SLACK_S
                for gang in self._gangs.values()
            )

    def abandon(self) -> None:
        """Leave no process behind. A shipper that could not deliver is started again by the next daemon."""
        self._runtimes.close()
        with self._lock:
            for gang in self._gangs.values():
                for learner in gang.learners:
                    if not learner.ended:
                        learner.kill()
                self._store.save(gang.record)

    # How

    def _seat(self, launch: Launch) -> list[LearnerRecord]:
        """Give every learner its slots: indices on its node that no other learner has."""
        taken: dict[str, set[int]] = {name: set() for name in self._nodes}
        for gang in self._gangs.values():
            for learner in gang.learners:
                taken.setdefault(learner.record.node, set()).update(learner.record.devices)
        asked = Counter(learner.node for learner in launch.learners)
        for name, learners in asked.items():
            node = self._nodes.get(name)
            if node is None:
                message = f"Node {name} is no longer part of this machine."
                raise LaunchRefused(message, code=RefusalCode.NODE_LOST)
            if node.slot_type != launch.slot_type:
                raise LaunchRefused(f"Node {name} has no {launch.slot_type}, it has {node.slot_type}.")
            free = node.slots - len(taken[name])
            if learners * launch.slots > free:
                raise ClusterBusy(f"Node {name} has {free} of {node.slots} slots free yet.")
        seats = []
        for spec in launch.learners:
            held = taken[spec.node]
            free_slots = [slot for slot in range(self._nodes[spec.node].slots) if slot not in held]
            devices = free_slots[: launch.slots]
            held.update(devices)
            mark = secrets.token_hex(8)
            uid = f"{launch.name}-{spec.rank}.{int(boot_clock() * 1000):x}.{mark[:6]}"
            seats.append(LearnerRecord(spec.rank, spec.node, uid, mark, devices))
        return seats

    def _look_after(self, gang: Gang, now: float) -> None:
        """One step of one gang, and its file. Trouble with one gang, of whatever kind, is no trouble of the others."""
        try:
            gang.unsaved |= self._move_on(gang, now)
            if gang.unsaved:
                self._store.save(gang.record)
                gang.unsaved = False
                gang.trouble = ""
        except Exception as error:
            gang.unsaved = True
            said = str(error) if isinstance(error, OSError) else repr(error)
            if gang.trouble != said:
                gang.trouble = said
                known = isinstance(error, OSError)  # a full disk; anything else is a fault of ours
                logger.error(
                    "gang not looked after", extra={"gang": gang.name, "error": said}, exc_info=not known
                )

    def _move_on(self, gang: Gang, now: float) -> bool:
        """One step of one gang; True if its record changed.

        Raises the first trouble, but whatever that is, every learner is looked at and a stop is carried out for each.
        """
        if gang.ended:
            return False
        troubles: list[Exception] = []
        changed = False
        with _noted(troubles):
            if gang.preparing and not any(learner.removing for learner in gang.learners):
                changed = self._prepare(gang, now)
        for learner in gang.learners:
            with _noted(troubles):
                changed |= learner.look(now)
        if gang.record.kill_at is not None:
            for learner in gang.learners:
                with _noted(troubles):
                    learner.press(now, kill_at=gang.record.kill_at)
        if troubles:
            raise troubles[0]
        return changed

    def _prepare(self, gang: Gang, now: float) -> bool:
        """Bring a gang towards its start: a stop ends it, its runtime may take a while, then all start at once.

        Raises OSError for what may pass, such as a full disk; what will not pass fails the gang.
        """
        if gang.record.stop_at is not None:
            reason = EndReason.NODE_LOST if gang.record.node_lost else EndReason.STOPPED
            for learner in gang.learners:
                learner.stop_starting(reason)
            return True
        runtime = gang.record.launch.runtime
        assert runtime is not None, "launch refuses a gang without one"
        try:
            found = self._runtimes.get(runtime)
            if isinstance(found, Preparing):
                gang.message = found.text
                return False
            self._start(gang, found, now)
        except RuntimeFailed as failed:
            logger.warning(
                "runtime not prepared",
                extra={"gang": gang.name, "error": str(failed), "said": failed.said[:4000]},
            )
            for learner in gang.learners:
                learner.kill()
                told = failed.told(f"node {learner.record.node}")
                reason = EndReason.NOT_PREPARED if failed.passing else EndReason.DEPLOY_FAILED
                learner.fail(reason, told)
        except (FileNotFoundError, PermissionError) as error:
            logger.warning("gang not started", extra={"gang": gang.name, "error": str(error)[:500]})
            for learner in gang.learners:
                learner.kill()
                learner.fail(EndReason.DEPLOY_FAILED, str(error))
        return True

    def _start(self, gang: Gang, runtime: Path, now: float) -> None:
        """Prepare all ranks, note that they are about to run, then start them. Raises OSError."""
        for learner in gang.learners:
            learner.prepare()
        if not gang.record.ports:
            gang.record.ports = _free_ports(
                len(gang.learners) + 1,
                {port for other in self._gangs.values() for port in other.record.ports},
            )
        for learner in gang.learners:
            learner.record.started = True
        self._store.save(gang.record)
        for learner in gang.learners:
            node = self._nodes.get(learner.record.node)
            devices = node.devices if node is not None else ()
            learner.run(
                runtime, [devices[index] for index in learner.record.devices if index < len(devices)], now
            )
        gang.message = ""

    def _forget(self, gang: Gang, learners: Sequence[Learner]) -> None:
        for learner in learners:
            learner.clear(self._trash)
            with suppress(ValueError):
                gang.learners.remove(learner)
                gang.record.learners.remove(learner.record)
        if gang.learners:
            self._store.save(gang.record)
        else:
            self._store.forget(gang.name)
            self._gangs.pop(gang.name, None)
        self._empty_trash()

    def _empty_trash(self) -> None:
        """Delete removed learners' files; checkpoints may be large, so nobody waits for it."""
        for trash in (self._trash, *self._trash.parent.glob(f"*/{self._trash.name}")):
            threading.Thread(
                target=shutil.rmtree, args=(trash,), kwargs={"ignore_errors": True}, daemon=True
            ).start()


@contextmanager
def _noted(troubles: list[Exception]) -> Iterator[None]:
    """Go on behind the block, whatever goes wrong in it."""
    try:
        yield
    except Exception as trouble:
        troubles.append(trouble)


def _free_ports(count: int, taken: set[int]) -> list[int]:
    """Ports of the loopback that nobody has now and that no living gang was given."""
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            probe = held.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            if port not in taken:
                found.append(port)
    return found
