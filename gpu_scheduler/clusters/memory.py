"""A cluster that exists only in this process: for tests, demos and scripted faults.

It keeps the whole contract of ``base``, but a learner is an entry in a dictionary and time comes from the clock that it
is given. Every fault of a real cluster can be scripted:

    cluster = MemoryCluster([Node.with_slots("node-a", "cpu", 4)], clock=lambda: now)
    cluster.exit("job-x-1", 0, code=3)             the program ended
    cluster.die("job-x-1", 1)                      its processes are gone without an exit code
    cluster.fail_next("launch", ClusterBusy("…"))  the call fails and does nothing
    cluster.fail_after("launch", ClusterBusy("…")) the call does its work and then fails
    cluster.lose_next("remove")                    the call succeeds and does nothing
    cluster.linger_next()                          the next removal is TERMINATING
    cluster.node_down("node-a")                    its learners are UNKNOWN, it accepts no new ones
    cluster.hook = lambda moment, verb, gang: …    called "before" and "after" each effect; may raise

May be shared between threads.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar

from gpu_scheduler.clusters.base import (
    ENDED,
    Capabilities,
    EndReason,
    GangBlocked,
    GangReport,
    GangSpec,
    LaunchRefused,
    LearnerPhase,
    LearnerReport,
    Observation,
    OnChange,
    RefusalCode,
    Removal,
    Watch,
    Watches,
    memory_exceeded,
    memory_numbers,
)
from gpu_scheduler.model import Node

Hook = Callable[[str, str, str], None]
Result = TypeVar("Result")
_READS = frozenset({"nodes", "observe"})
CAPABILITIES = Capabilities(
    images=True, multi_node=True, deploy_deadline=True, pythons=lambda: ("3.11", "3.12")
)
AUTO, DEFAULT_NODES = "auto", "node-a:cpu:8,node-b:cpu:8"
SIGTERMED = 143
SIGKILLED = 137


@dataclass(slots=True)
class _Gang:
    """A gang that exists: its spec, its learners, and the stop that was requested."""

    spec: GangSpec
    launched_at: float
    learners: dict[int, LearnerReport]
    stop_at: float | None = None
    kill_at: float | None = None


@dataclass(slots=True)
class _Script:
    """Scripted faults of one verb, oldest first."""

    before: deque[Exception] = field(default_factory=deque)
    after: deque[Exception] = field(default_factory=deque)
    lost: int = 0


class MemoryCluster:
    """See the module. The public attributes may be changed at any time.

    starts_in_s: how long a learner is PREPARING. runs_for_s: a learner exits with 0 after this time; None: never.
    stops_in_s: how long a learner takes to end after SIGTERM; it is killed if that is longer than the grace.
    """

    name = "memory"
    capabilities = CAPABILITIES

    def __init__(self, nodes: Iterable[Node] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self.starts_in_s: float = 0
        self.digests: dict[str, str] = {}
        """What each image is when a learner of it starts."""
        self.runs_for_s: float | None = None
        self.stops_in_s: float = 0
        self.hook: Hook = _no_hook
        self.created: Counter[tuple[str, int]] = Counter()
        """How many learners were created per (gang, rank); more than one is a bug of the caller."""
        self.calls: list[tuple[str, str]] = []
        """Every call of a verb with its gang ("" for nodes and observe), in order."""
        self._watches = Watches()
        self._changed: set[str] = set()
        self._lingering = 0
        self._clock = clock
        self._nodes = {node.name: node for node in nodes}
        self._gangs: dict[str, _Gang] = {}
        self._scripts: defaultdict[str, _Script] = defaultdict(_Script)
        self._lock = threading.RLock()
        self._born = 0

    @classmethod
    def connect(cls, settings: Mapping[str, str]) -> MemoryCluster:
        """The one memory cluster of this process, shared by its web and worker parts.

        LOCAL_NODES says which nodes it has, as name:type:slots; what else is given is not kept. Raises ValueError.
        """
        return _shared(settings.get("LOCAL_NODES", AUTO))

    # The contract

    def nodes(self) -> list[Node]:
        return self._do("nodes", "", lambda: sorted(self._nodes.values(), key=lambda node: node.name), [])

    def launch(self, spec: GangSpec) -> None:
        self._do("launch", spec.name, lambda: self._launch(spec), None)

    def observe(self, names: Sequence[str] | None = None) -> Observation:
        nothing = Observation({}, self._clock(), not_found=frozenset(names or ()))
        return self._do("observe", "", lambda: self._observe(names), nothing)

    def stop(self, name: str, *, grace_s: float) -> None:
        self._do("stop", name, lambda: self._stop(name, grace_s), None)

    def remove(self, name: str, *, uids: Sequence[str] | None = None) -> Removal:
        return self._do("remove", name, lambda: self._remove(name, uids), Removal.GONE)

    def watch(self, on_change: OnChange) -> Watch:
        return self._watches.add(on_change)

    # Scripting

    def fail_next(self, verb: str, error: Exception, *, times: int = 1) -> None:
        """Make the next calls of a verb raise this before they do anything."""
        self._scripts[verb].before.extend([error] * times)

    def fail_after(self, verb: str, error: Exception, *, times: int = 1) -> None:
        """Make the next calls of a verb do their work and then raise this."""
        self._scripts[verb].after.extend([error] * times)

    def lose_next(self, verb: str, *, times: int = 1) -> None:
        """Make the next calls of a verb do nothing and return as if they had."""
        self._scripts[verb].lost += times

    def linger_next(self, *, times: int = 1) -> None:
        """Make the next removals find processes that have not ended yet."""
        self._lingering += times

    def exit(
        self,
        gang: str,
        rank: int,
        code: int,
        *,
        reason: EndReason = EndReason.EXITED,
        message: str = "",
        numbers: Mapping[str, Any] | None = None,
    ) -> None:
        """End a learner's program with this exit code; nothing happens if it has ended or does not exist."""
        phase = LearnerPhase.SUCCEEDED if code == 0 else LearnerPhase.FAILED
        with self._changing():
            self._end(gang, rank, phase, code, reason, message, numbers)

    def die(self, gang: str, rank: int, *, reason: EndReason = EndReason.LAUNCHER_LOST) -> None:
        """End a learner without an exit code: its processes are gone for an unknown reason."""
        with self._changing():
            self._end(gang, rank, LearnerPhase.FAILED, None, reason, "The learner's processes are gone.")

    def fail_preparation(self, gang: str, message: str, *, output: str = "", line: int | None = None) -> None:
        """End all learners before their program begins, as a failed package build does; the first has its output."""
        with self._changing():
            for rank in list(self._gangs[gang].learners):
                self._end(gang, rank, LearnerPhase.FAILED, None, EndReason.DEPLOY_FAILED, message)
            learners = self._gangs[gang].learners
            learners[0] = replace(learners[0], output=output, numbers={"line": line} if line else {})

    def end_programs(self, gang: str) -> None:
        """End the programs of a gang while their shippers keep working."""
        with self._changing():
            learners = self._gangs[gang].learners
            learners.update({rank: replace(shown, program_ended=True) for rank, shown in learners.items()})
            self._changed.add(gang)

    def out_of_memory(self, gang: str, rank: int, *, peak_mib: int = 4096) -> None:
        """Kill a learner that used more memory than its limit; nothing happens if it does not exist."""
        if gang not in self._gangs:
            return
        limit_mib = self._gangs[gang].spec.memory_mib
        message, numbers = memory_exceeded(peak_mib, limit_mib), memory_numbers(peak_mib, limit_mib)
        self.exit(gang, rank, SIGKILLED, reason=EndReason.OUT_OF_MEMORY, message=message, numbers=numbers)

    def kill_for_memory(self, gang: str, rank: int, *, peak_mib: int = 4096) -> None:
        """As out_of_memory, while the learner's processes have not ended yet: why is known before the end."""
        with self._changing():
            learners, limit_mib = self._gangs[gang].learners, self._gangs[gang].spec.memory_mib
            learners[rank] = replace(
                learners[rank],
                reason=EndReason.OUT_OF_MEMORY,
                message=memory_exceeded(peak_mib, limit_mib),
                numbers=memory_numbers(peak_mib, limit_mib),
            )
            self._changed.add(gang)

    def show_digest(self, gang: str, rank: int, digest: str) -> None:
        """Show that this learner's image is this one, as after its tag was moved between two pulls."""
        with self._changing():
            learners = self._gangs[gang].learners
            learners[rank] = replace(learners[rank], image_digest=digest)
            self._changed.add(gang)

    def vanish(self, gang: str) -> None:
        """Make a gang not exist, as if it had been deleted by hand."""
        with self._changing():
            self._gangs.pop(gang, None)
            self._changed.add(gang)

    def set_node(self, node: Node) -> None:
        """Add a node, or change one."""
        with self._changing():
            self._nodes[node.name] = node
            self._changed.update(gang for gang, _ in self._on(node.name))

    def node_down(self, name: str) -> None:
        """Make a node stop answering. Its learners keep running unseen."""
        self.set_node(replace(self._nodes[name], ready=False))

    def node_up(self, name: str, *, learners_survived: bool = True) -> None:
        """Make a node answer again, with its learners alive or lost."""
        with self._changing():
            self.set_node(replace(self._nodes[name], ready=True))
            if not learners_survived:
                for gang, rank in self._on(name):
                    message = "The node was restarted."
                    self._end(gang, rank, LearnerPhase.FAILED, None, EndReason.NODE_LOST, message)

    # Reading without a verb, and so without its faults

    def listing(self) -> dict[str, GangReport]:
        """Every gang that exists, whatever the scripts say."""
        with self._changing():
            return dict(self._observe(None).gangs)

    def launched(self, gang: str) -> GangSpec:
        """What a gang that exists was launched with."""
        return self._gangs[gang].spec

    def slots_used(self) -> dict[str, int]:
        """Slots held per node by gangs that exist."""
        with self._lock:
            used = dict.fromkeys(self._nodes, 0)
            for gang in self._gangs.values():
                for learner in gang.learners.values():
                    used[learner.node] = used.get(learner.node, 0) + gang.spec.slots
            return used

    # How it works

    def _do(self, verb: str, gang: str, work: Callable[[], Result], nothing: Result) -> Result:
        """Do the work of one call with the faults that are scripted for it; nothing: the result of a lost call."""
        with self._lock:
            self.calls.append((verb, gang))
            script = self._scripts[verb]
            if script.before:
                raise script.before.popleft()
            if script.lost:
                script.lost -= 1
                return nothing
        effect = verb not in _READS
        if effect:
            self.hook("before", verb, gang)
        with self._changing():
            result = work()
            after = script.after.popleft() if script.after else None
        if effect:
            self.hook("after", verb, gang)
        if after is not None:
            raise after
        return result

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock; then report to the watches which gangs changed."""
        with self._lock:
            yield
            changed, self._changed = self._changed, set()
        self._watches.notify(changed)

    def _launch(self, spec: GangSpec) -> None:
        if spec.name in self._gangs:
            return
        used = self.slots_used()
        for learner in spec.learners:
            node = self._nodes.get(learner.node)
            if node is None or not node.ready:
                message = f"Node {learner.node} does not exist or is not ready."
                raise LaunchRefused(message, code=RefusalCode.NODE_LOST)
            if node.slot_type != spec.slot_type:
                message = f"Node {node.name} has no {spec.slot_type}, it has {node.slot_type}."
                raise LaunchRefused(message, code=RefusalCode.NODE_LOST)
            used[node.name] += spec.slots
            if used[node.name] > node.slots:
                message = f"Node {node.name} does not yet have enough free slots for {spec.name}."
                raise GangBlocked(message, node=node.name)
        learners = {}
        for learner in spec.learners:
            self._born += 1
            self.created[spec.name, learner.rank] += 1
            uid = f"{spec.name}-{learner.rank}#{self._born}"
            learners[learner.rank] = LearnerReport(
                learner.rank, learner.node, uid, LearnerPhase.PREPARING, image=spec.image or ""
            )
        self._gangs[spec.name] = _Gang(spec, self._clock(), learners)
        self._changed.add(spec.name)

    def _observe(self, names: Sequence[str] | None) -> Observation:
        self._advance()
        wanted = self._gangs if names is None else [name for name in names if name in self._gangs]
        gangs = {name: self._report(name) for name in sorted(wanted)}
        return Observation(gangs, self._clock(), not_found=frozenset(names or ()) - gangs.keys())

    def _report(self, name: str) -> GangReport:
        gang = self._gangs[name]
        learners = tuple(self._seen(gang.learners[rank]) for rank in sorted(gang.learners))
        preparing = any(learner.phase is LearnerPhase.PREPARING for learner in learners)
        return GangReport(name, learners, gang.stop_at is not None, "Preparing" if preparing else "")

    def _seen(self, learner: LearnerReport) -> LearnerReport:
        node = self._nodes.get(learner.node)
        if node is not None and node.ready:
            return learner
        return replace(learner, phase=LearnerPhase.UNKNOWN, message="The node is not responding.")

    def _stop(self, name: str, grace_s: float) -> None:
        gang = self._gangs.get(name)
        if gang is None:
            return
        kill_at = self._clock() + grace_s
        gang.stop_at = self._clock() if gang.stop_at is None else gang.stop_at
        gang.kill_at = kill_at if gang.kill_at is None else min(gang.kill_at, kill_at)
        self._changed.add(name)

    def _remove(self, name: str, uids: Sequence[str] | None) -> Removal:
        gang = self._gangs.get(name)
        if gang is None:
            return Removal.GONE
        self._changed.add(name)
        if self._lingering:
            self._lingering -= 1
            return Removal.TERMINATING
        for rank, learner in list(gang.learners.items()):
            if uids is None or learner.uid in uids:
                del gang.learners[rank]
        if not gang.learners:
            del self._gangs[name]
        return Removal.GONE

    def _advance(self) -> None:
        """Bring every learner to the state that the clock implies."""
        now = self._clock()
        for name, gang in self._gangs.items():
            runs_at = gang.launched_at + self.starts_in_s
            for rank, learner in gang.learners.items():
                if not self._answers(learner.node) or learner.phase in ENDED:
                    continue
                if gang.stop_at is not None and self._ended_or_killed(name, rank, gang, now):
                    continue
                if now < runs_at:
                    continue
                if learner.phase is not LearnerPhase.RUNNING:
                    digest = self.digests.get(learner.image, "")
                    gang.learners[rank] = replace(learner, phase=LearnerPhase.RUNNING, image_digest=digest)
                    self._changed.add(name)
                if self.runs_for_s is not None and now >= runs_at + self.runs_for_s:
                    self._end(name, rank, LearnerPhase.SUCCEEDED, 0, EndReason.EXITED)

    def _ended_or_killed(self, name: str, rank: int, gang: _Gang, now: float) -> bool:
        assert gang.stop_at is not None
        assert gang.kill_at is not None
        ends_at = gang.stop_at + self.stops_in_s
        if now >= ends_at and ends_at <= gang.kill_at:
            self._end(name, rank, LearnerPhase.FAILED, SIGTERMED, EndReason.EXITED)
            return True
        if now >= gang.kill_at:
            self._end(name, rank, LearnerPhase.FAILED, SIGKILLED, EndReason.EXITED)
            return True
        return False

    def _end(
        self,
        name: str,
        rank: int,
        phase: LearnerPhase,
        code: int | None,
        reason: EndReason,
        message: str = "",
        numbers: Mapping[str, Any] | None = None,
    ) -> None:
        gang = self._gangs.get(name)
        learner = gang.learners.get(rank) if gang else None
        if gang is None or learner is None or learner.phase in ENDED:
            return
        gang.learners[rank] = replace(
            learner,
            phase=phase,
            exit_code=code,
            reason=reason,
            message=message,
            numbers=dict(numbers or {}),
        )
        self._changed.add(name)

    def _answers(self, node: str) -> bool:
        return node in self._nodes and self._nodes[node].ready

    def _on(self, node: str) -> list[tuple[str, int]]:
        return [
            (name, rank)
            for name, gang in self._gangs.items()
            for rank, learner in gang.learners.items()
            if learner.node == node
        ]


@cache
def _shared(nodes: str) -> MemoryCluster:
    return MemoryCluster(map(_node, (DEFAULT_NODES if nodes in ("", AUTO) else nodes).split(",")))


def _node(entry: str) -> Node:
    try:
        name, slot_type, slots = entry.strip().split(":")[:3]
        return Node.with_slots(name, slot_type, int(slots))
    except ValueError as error:
        raise ValueError(f"LOCAL_NODES: {entry!r} is not name:type:slots; write {DEFAULT_NODES}") from error


def _no_hook(moment: str, verb: str, gang: str) -> None:
    """Nothing to do."""
