"""All gangs of this machine: what the daemon does on request, and what it does by itself.

Methods that read or change gangs hold one lock, and wait for nothing but the disk while they do.
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
from pathlib import Path

from gpu_scheduler.clusters.base import (
    ClusterBusy,
    EndReason,
    GangReport,
    GangSpec,
    Isolation,
    LaunchRefused,
    RefusalCode,
    Removal,
)
from gpu_scheduler.clusters.local import processes
from gpu_scheduler.clusters.local.builder import Preparing
from gpu_scheduler.clusters.local.context import DaemonContext, clean
from gpu_scheduler.clusters.local.gang import LocalGang
from gpu_scheduler.clusters.local.journal import Changes, Journal
from gpu_scheduler.clusters.local.learner import LocalLearner
from gpu_scheduler.clusters.local.memory_limits import machine_mib
from gpu_scheduler.clusters.local.nodes import LocalNode
from gpu_scheduler.clusters.local.packages import Environments, Ready
from gpu_scheduler.clusters.local.runtime_failure import RuntimeFailed
from gpu_scheduler.clusters.local.store import GangRecord, LearnerRecord, Store, boot_clock
from gpu_scheduler.model import Node

logger = logging.getLogger(__name__)

REMOVE_S = 2.0
"""How long remove waits for killed processes to be gone before it answers TERMINATING."""
MEMORY_S = 1.0
SWEEP_S = 3600.0
"""How often unused environments are looked for; also at once after a start."""
SECRETS_LOST = (
    "The node daemon restarted before the program started. It stores no secrets; the job is launched again."
)
DELIVER_S = 10.0
"""How long shippers may still deliver when the daemon goes: after the grace of programs that run then. What has ended,
or has not begun, has no use for a grace; the next daemon's shippers deliver the rest."""


class Gangs:
    """The machine's gangs. on_change is called, from any thread, when the loop should look again."""

    def __init__(
        self,
        context: DaemonContext,
        nodes: Sequence[LocalNode],
        environments: Environments,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._context = context
        self._nodes = {node.name: node for node in nodes}
        self._environments = environments
        self._on_change = on_change
        self._store = Store(context.data / "nodes" / ".gangs")
        self._trash = context.data / "nodes" / ".trash"
        self._lock = threading.RLock()
        self._gangs: dict[str, LocalGang] = {}
        self._journal = Journal(self._lock)
        self._memory_due = 0.0
        self._sweep_due = 0.0

    # Requests of drivers

    def nodes(self) -> list[Node]:
        whole_mib = machine_mib()
        return [self._nodes[name].on_machine(whole_mib) for name in sorted(self._nodes)]

    def isolation(self) -> Isolation:
        return self._context.sandboxing.report()

    def count(self) -> int:
        """Waits for the loop, so that a ping shows whether it is stuck."""
        with self._lock:
            return len(self._gangs)

    def launch(self, spec: GangSpec) -> int:
        """Make the gang exist, or raise and leave nothing; returns the revision. Raises LaunchRefused, ClusterBusy."""
        refusal = self._environments.refusal(spec)
        with self._lock:
            if spec.name in self._gangs:
                return self._journal.revision
            if refusal:
                raise LaunchRefused(refusal)
            record = GangRecord(spec, self._allocate_devices(spec), self._context.boot)
            self._store.save(record)
            self._gangs[spec.name] = LocalGang(self._context, record)
            revision = self._journal.changed(spec.name)
        logger.info("gang launched", extra={"gang": spec.name, "learners": len(spec.learners)})
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
            if gang is not None and gang.request_stop(boot_clock(), grace_s):
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
            targets = [learner for learner in gang.learners if uids is None or learner.record.uid in uids]
            for learner in targets:
                # From here on the loop neither starts nor restarts its processes.
                learner.removing = True
        deadline = time.monotonic() + REMOVE_S
        while not self._are_gone(targets):
            if time.monotonic() > deadline:
                return Removal.TERMINATING, self._journal.revision
            time.sleep(0.01)
        with self._lock:
            self._forget(gang, targets)
            revision = self._journal.changed(name)
        logger.info("learners removed", extra={"gang": name, "learners": len(targets)})
        self._on_change()
        return Removal.GONE, revision

    def _are_gone(self, learners: Sequence[LocalLearner]) -> bool:
        with self._lock:
            left = [learner for learner in learners if not learner.kill()]
        return not left

    # What the daemon does by itself

    def load(self) -> None:
        """Reattach to the gangs of an earlier daemon."""
        now = boot_clock()
        with self._lock:
            for record in self._store.load():
                was_restarted = record.boot != self._context.boot
                if was_restarted:  # the machine: no process is left, and the boot clock restarted at 0
                    record.boot, record.kill_at = self._context.boot, None
                gang = LocalGang(self._context, record)
                self._gangs[gang.name] = gang
                for learner in gang.learners:
                    if was_restarted and learner.record.started:
                        learner.note_leaving(EndReason.NODE_LOST)
                    learner.find_again(now)
                self._store.save(record)
        self._empty_trash()

    def advance(self) -> float:
        """Advance every gang. Returns after how many seconds to do so again if nothing happens before."""
        now = boot_clock()
        with self._lock:
            for forks in (self._context.shippers, self._context.launchers):
                if forks is not None:
                    forks.reap(now)
            for gang in self._gangs.values():
                self._update(gang, now)
                if gang.has_new_report():
                    self._journal.changed(gang.name)
            if now >= self._memory_due and any(not gang.ended for gang in self._gangs.values()):
                self._memory_due = now + MEMORY_S
                rows = processes.table()
                for gang in self._gangs.values():
                    for learner in gang.learners:
                        learner.watch_memory(rows)
            if now >= self._sweep_due:
                self._sweep_due = now + SWEEP_S
                self._environments.sweep(
                    [folder for gang in self._gangs.values() for folder in gang.record.environments]
                )
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
        """Stop all learners with their grace period: programs that still run end as platform_stopped, and their jobs
        restart later. What has ended is delivered, now or by the next daemon."""
        now = boot_clock()
        with self._lock:
            for gang in self._gangs.values():
                if not gang.ended:
                    has_program = any(learner.has_program() for learner in gang.learners)
                    for learner in gang.learners:
                        learner.note_leaving(EndReason.PLATFORM_STOPPED)
                    gang.request_stop(now, gang.record.launch.grace_s)
                    kill_at = gang.record.kill_at if has_program else None
                    gang.deliver_by = max(now, kill_at or now) + DELIVER_S
                    self._store.save(gang.record)
                    self._journal.changed(gang.name)

    def can_exit(self) -> bool:
        """True if there is nothing left to wait for, after `shut_down`."""
        now = boot_clock()
        with self._lock:
            return all(gang.ended or now >= gang.deliver_by for gang in self._gangs.values())

    def abandon(self) -> None:
        """Kill every process that is left. The next daemon restarts shippers that had not delivered everything."""
        self._environments.close()
        with self._lock:
            for gang in self._gangs.values():
                for learner in gang.learners:
                    if not learner.ended:
                        learner.kill()
                self._store.save(gang.record)

    # How

    def _allocate_devices(self, spec: GangSpec) -> list[LearnerRecord]:
        """Allocate devices to every learner: indices on its node that no other learner has."""
        taken: dict[str, set[int]] = {name: set() for name in self._nodes}
        for gang in self._gangs.values():
            for learner in gang.learners:
                taken.setdefault(learner.record.node, set()).update(learner.record.devices)
        asked = Counter(learner.node for learner in spec.learners)
        for name, learners in asked.items():
            node = self._nodes.get(name)
            if node is None:
                message = f"Node {name} is not a node of this machine."
                raise LaunchRefused(message, code=RefusalCode.NODE_LOST)
            if node.slot_type != spec.slot_type:
                message = f"Node {name} has no {spec.slot_type}, it has {node.slot_type}."
                raise LaunchRefused(message, code=RefusalCode.NODE_LOST)
            free = node.slots - len(taken[name])
            if learners * spec.slots > free:
                raise ClusterBusy(f"Node {name} has {free} of {node.slots} slots free now.")
        records = []
        for wanted in spec.learners:
            held = taken[wanted.node]
            free_slots = [slot for slot in range(self._nodes[wanted.node].slots) if slot not in held]
            devices = free_slots[: spec.slots]
            held.update(devices)
            mark = secrets.token_hex(8)
            uid = f"{spec.name}-{wanted.rank}.{int(boot_clock() * 1000):x}.{mark[:6]}"
            records.append(LearnerRecord(wanted.rank, wanted.node, uid, mark, devices))
        return records

    def _update(self, gang: LocalGang, now: float) -> None:
        """Advance one gang and save its file. An error of one gang does not affect the others."""
        try:
            gang.unsaved |= self._advance_gang(gang, now)
            if gang.unsaved:
                self._store.save(gang.record)
                gang.unsaved = False
                gang.last_error = ""
        except Exception as error:
            gang.unsaved = True
            message = str(error) if isinstance(error, OSError) else repr(error)
            if gang.last_error != message:
                gang.last_error = message
                known = isinstance(error, OSError)  # a full disk; anything else is an error of the platform
                logger.error(
                    "gang not managed", extra={"gang": gang.name, "error": message}, exc_info=not known
                )

    def _advance_gang(self, gang: LocalGang, now: float) -> bool:
        """One step of one gang; True if its record changed.

        Raises the first error, but only after every learner was updated and its stop enforced.
        """
        if gang.ended:
            return False
        errors: list[Exception] = []
        changed = False
        with _collected(errors):
            if gang.preparing and not any(learner.removing for learner in gang.learners):
                changed = self._prepare(gang, now)
        for learner in gang.learners:
            with _collected(errors):
                changed |= learner.advance(now)
        if gang.record.kill_at is not None:
            for learner in gang.learners:
                with _collected(errors):
                    learner.enforce_stop(now, kill_at=gang.record.kill_at)
        if errors:
            raise errors[0]
        return changed

    def _prepare(self, gang: LocalGang, now: float) -> bool:
        """Start a gang once its environment is ready, or end it if a stop was requested before that.

        Raises OSError for what may be temporary, such as a full disk; other errors fail the gang.
        """
        if gang.record.stop_at is not None:
            for learner in gang.learners:
                learner.stop_starting(learner.record.leaving or EndReason.STOPPED)
            return True
        if gang.record.secrets_lost:
            for learner in gang.learners:
                learner.kill()
                learner.fail(EndReason.NOT_PREPARED, SECRETS_LOST)
            return True
        try:
            found = self._environments.get(gang.record.launch)
            if isinstance(found, Preparing):
                gang.message = found.text
                return False
            self._start(gang, found, now)
        except RuntimeFailed as failed:
            logger.warning(
                "environment not prepared",
                extra={"gang": gang.name, "error": str(failed), "output": failed.output[:4000]},
            )
            for learner in gang.learners:
                learner.kill()
                message = failed.message(f"node {learner.record.node}")
                reason = EndReason.NOT_PREPARED if failed.temporary else EndReason.DEPLOY_FAILED
                learner.fail(reason, message)
            if failed.output:
                first = gang.learners[0].record  # one build for all
                first.output, first.numbers["line"] = clean(failed.output), failed.line
        except (FileNotFoundError, PermissionError) as error:
            logger.warning("gang not started", extra={"gang": gang.name, "error": str(error)[:500]})
            for learner in gang.learners:
                learner.kill()
                learner.fail(EndReason.DEPLOY_FAILED, str(error))
        return True

    def _start(self, gang: LocalGang, ready: Ready, now: float) -> None:
        """Prepare all ranks, save that they are about to run, then start them. Raises OSError."""
        if not gang.record.launch.lock:
            gang.record.lock = list(ready.lock)
        gang.record.environments = sorted({str(ready.base), str(ready.top)})
        pip = self._environments.pip()
        for learner in gang.learners:
            learner.prepare(ready.top, pip)
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
                ready, [devices[index] for index in learner.record.devices if index < len(devices)], now
            )
        gang.message = ""

    def _forget(self, gang: LocalGang, learners: Sequence[LocalLearner]) -> None:
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
        """Delete removed learners' files in the background, because checkpoints may be large."""
        for trash in (self._trash, *self._trash.parent.glob(f"*/{self._trash.name}")):
            threading.Thread(target=_delete_all_in, args=(trash,), daemon=True).start()


def _delete_all_in(trash: Path) -> None:
    """Delete what is in the trash, never the trash itself: the next learner may be on its way into it."""
    with suppress(FileNotFoundError):
        for thrown in list(trash.iterdir()):
            shutil.rmtree(thrown, ignore_errors=True)


@contextmanager
def _collected(errors: list[Exception]) -> Iterator[None]:
    """Collect an exception of the block and continue after it."""
    try:
        yield
    except Exception as error:
        errors.append(error)


def _free_ports(count: int, taken: set[int]) -> list[int]:
    """Loopback ports that are free now and not allocated to a gang."""
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            probe = held.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            if port not in taken:
                found.append(port)
    return found
