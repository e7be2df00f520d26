"""A cluster that exists in this process only: for tests, demos and scripted faults.

It keeps the whole contract of ``base`` and passes its suite, but a learner is an entry in a table and time is the
clock it is given. Everything that can go wrong with a real cluster can be ordered here:

    cluster = MemoryCluster([Node.with_slots("node-a", "cpu", 4)], clock=lambda: now)
    cluster.exit("job-x-1", 0, code=3)             the program ended
    cluster.die("job-x-1", 1)                      its processes are gone without an exit code
    cluster.fail_next("launch", ClusterBusy("…"))  the call fails and does nothing
    cluster.fail_after("launch", ClusterBusy("…")) the call does its work, the answer is lost
    cluster.lose_next("remove")                    the call answers success and does nothing
    cluster.node_down("node-a")                    its learners are UNKNOWN, it takes nothing new
    cluster.hook = lambda moment, verb, gang: …    called "before" and "after" each effect; may raise

May be shared between threads.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from gpu_scheduler.clusters.base import (
    ENDED,
    ClusterBusy,
    GangReport,
    Launch,
    LaunchRefused,
    LearnerPhase,
    LearnerReport,
)
from gpu_scheduler.model import Node

Hook = Callable[[str, str, str], None]
Answer = TypeVar("Answer")
_LOOKING = frozenset({"nodes", "observe"})
SIGTERMED = 143
SIGKILLED = 137


@dataclass(slots=True)
class _Gang:
    """A gang that exists: what was launched, its learners, and the stop it was asked for."""

    launch: Launch
    launched_at: float
    learners: dict[int, LearnerReport]
    stop_at: float | None = None
    kill_at: float | None = None


@dataclass(slots=True)
class _Script:
    """Faults in waiting for one verb, oldest first."""

    before: deque[Exception] = field(default_factory=deque)
    after: deque[Exception] = field(default_factory=deque)
    lost: int = 0


class MemoryCluster:
    """See the module. The public attributes may be changed at any time.

    starts_in_s: PREPARING for so long. runs_for_s: a learner exits 0 after so long, None: never by itself.
    stops_in_s: how long a learner takes to obey SIGTERM; longer than the grace and it is killed.
    """

    name = "memory"

    def __init__(self, nodes: Iterable[Node] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self.starts_in_s: float = 0
        self.runs_for_s: float | None = None
        self.stops_in_s: float = 0
        self.hook: Hook = _no_hook
        self.created: Counter[tuple[str, int]] = Counter()
        """How many learners were ever made per (gang, rank): more than one is a fault of the caller."""
        self.calls: list[tuple[str, str]] = []
        """Every call of a verb with its gang ("" for nodes and observe), in order."""
        self._clock = clock
        self._nodes = {node.name: node for node in nodes}
        self._gangs: dict[str, _Gang] = {}
        self._scripts: defaultdict[str, _Script] = defaultdict(_Script)
        self._lock = threading.RLock()
        self._born = 0

    # The five verbs

    def nodes(self) -> list[Node]:
        return self._do("nodes", "", lambda: sorted(self._nodes.values(), key=lambda node: node.name), [])

    def launch(self, gang: Launch) -> None:
        self._do("launch", gang.name, lambda: self._launch(gang), None)

    def observe(self, names: Sequence[str] | None = None) -> dict[str, GangReport]:
        return self._do("observe", "", lambda: self._observe(names), {})

    def stop(self, name: str, *, grace_s: float) -> None:
        self._do("stop", name, lambda: self._stop(name, grace_s), None)

    def remove(self, name: str, *, uids: Sequence[str] | None = None) -> None:
        self._do("remove", name, lambda: self._remove(name, uids), None)

    # Scripting

    def fail_next(self, verb: str, error: Exception, *, times: int = 1) -> None:
        """Let the next calls of a verb raise this before they do anything."""
        self._scripts[verb].before.extend([error] * times)

    def fail_after(self, verb: str, error: Exception, *, times: int = 1) -> None:
        """Let the next calls of a verb do their work and raise this all the same."""
        self._scripts[verb].after.extend([error] * times)

    def lose_next(self, verb: str, *, times: int = 1) -> None:
        """Let the next calls of a verb do nothing and answer as if they had."""
        self._scripts[verb].lost += times

    def exit(
        self,
        gang: str,
        rank: int,
        code: int,
        *,
        reason: str = "",
        message: str = "",
        evidence: Mapping[str, Any] | None = None,
    ) -> None:
        """End a learner's program with this exit code; nothing happens if it has ended or does not exist."""
        phase = LearnerPhase.SUCCEEDED if code == 0 else LearnerPhase.FAILED
        with self._lock:
            self._end(gang, rank, phase, code, reason, message, evidence or {})

    def die(self, gang: str, rank: int, *, reason: str = "launcher_lost") -> None:
        """End a learner without an exit code: its processes are gone and nobody saw why."""
        with self._lock:
            self._end(gang, rank, LearnerPhase.FAILED, None, reason, "The learner's processes are gone.", {})

    def over(self, gang: str) -> None:
        """Let the programs of a gang be gone while their shippers go on."""
        with self._lock:
            learners = self._gangs[gang].learners
            learners.update({rank: replace(shown, over=True) for rank, shown in learners.items()})

    def out_of_memory(self, gang: str, rank: int, *, peak_mib: int = 4096) -> None:
        """Kill a learner for taking more memory than its limit."""
        self.exit(gang, rank, SIGKILLED, reason="out_of_memory", evidence={"peak_memory_mib": peak_mib})

    def vanish(self, gang: str) -> None:
        """Make a gang not exist, as if somebody had deleted it by hand."""
        with self._lock:
            self._gangs.pop(gang, None)

    def set_node(self, node: Node) -> None:
        """Add a node, or change one."""
        with self._lock:
            self._nodes[node.name] = node

    def node_down(self, name: str) -> None:
        """Let a node stop answering. Its learners go on unseen."""
        self.set_node(replace(self._nodes[name], ready=False))

    def node_up(self, name: str, *, learners_survived: bool = True) -> None:
        """Let a node answer again, with its learners alive or lost."""
        with self._lock:
            self._nodes[name] = replace(self._nodes[name], ready=True)
            if not learners_survived:
                for gang, rank in self._on(name):
                    self._end(
                        gang, rank, LearnerPhase.FAILED, None, "node_lost", "The node was restarted.", {}
                    )

    # Looking, without a verb and without its faults

    def listing(self) -> dict[str, GangReport]:
        """Every gang that exists, whatever the scripts say."""
        with self._lock:
            return self._observe(None)

    def launched(self, gang: str) -> Launch:
        """What a gang that exists was launched with."""
        return self._gangs[gang].launch

    def slots_used(self) -> dict[str, int]:
        """Slots held per node by gangs that exist."""
        with self._lock:
            used = dict.fromkeys(self._nodes, 0)
            for gang in self._gangs.values():
                for learner in gang.learners.values():
                    used[learner.node] = used.get(learner.node, 0) + gang.launch.slots
            return used

    # How it works

    def _do(self, verb: str, gang: str, work: Callable[[], Answer], nothing: Answer) -> Answer:
        """Do the work of one call with whatever faults are in waiting for it; nothing: a lost call's answer."""
        with self._lock:
            self.calls.append((verb, gang))
            script = self._scripts[verb]
            if script.before:
                raise script.before.popleft()
            if script.lost:
                script.lost -= 1
                return nothing
        effect = verb not in _LOOKING
        if effect:
            self.hook("before", verb, gang)
        with self._lock:
            answer = work()
            after = script.after.popleft() if script.after else None
        if effect:
            self.hook("after", verb, gang)
        if after is not None:
            raise after
        return answer

    def _launch(self, launch: Launch) -> None:
        if launch.name in self._gangs:
            return
        used = self.slots_used()
        for learner in launch.learners:
            node = self._nodes.get(learner.node)
            if node is None or not node.ready:
                raise LaunchRefused(f"Node {learner.node} is no longer there.", code="node_lost")
            if node.slot_type != launch.slot_type:
                raise LaunchRefused(f"Node {node.name} has no {launch.slot_type}, it has {node.slot_type}.")
            used[node.name] += launch.slots
            if used[node.name] > node.slots:
                raise ClusterBusy(f"Node {node.name} has not enough free slots for {launch.name} yet.")
        learners = {}
        for learner in launch.learners:
            self._born += 1
            self.created[launch.name, learner.rank] += 1
            uid = f"{launch.name}-{learner.rank}#{self._born}"
            learners[learner.rank] = LearnerReport(learner.rank, learner.node, uid, LearnerPhase.PREPARING)
        self._gangs[launch.name] = _Gang(launch, self._clock(), learners)

    def _observe(self, names: Sequence[str] | None) -> dict[str, GangReport]:
        self._let_time_pass()
        wanted = self._gangs if names is None else [name for name in names if name in self._gangs]
        return {name: self._report(name) for name in sorted(wanted)}

    def _report(self, name: str) -> GangReport:
        gang = self._gangs[name]
        learners = tuple(self._seen(gang.learners[rank]) for rank in sorted(gang.learners))
        preparing = any(learner.phase is LearnerPhase.PREPARING for learner in learners)
        return GangReport(name, learners, gang.stop_at is not None, "Preparing" if preparing else "")

    def _seen(self, learner: LearnerReport) -> LearnerReport:
        node = self._nodes.get(learner.node)
        if node is not None and node.ready:
            return learner
        return replace(learner, phase=LearnerPhase.UNKNOWN, message="The node does not answer.")

    def _stop(self, name: str, grace_s: float) -> None:
        gang = self._gangs.get(name)
        if gang is None:
            return
        kill_at = self._clock() + grace_s
        gang.stop_at = self._clock() if gang.stop_at is None else gang.stop_at
        gang.kill_at = kill_at if gang.kill_at is None else min(gang.kill_at, kill_at)

    def _remove(self, name: str, uids: Sequence[str] | None) -> None:
        gang = self._gangs.get(name)
        if gang is None:
            return
        for rank, learner in list(gang.learners.items()):
            if uids is None or learner.uid in uids:
                del gang.learners[rank]
        if not gang.learners:
            del self._gangs[name]

    def _let_time_pass(self) -> None:
        """Bring every learner to where the clock says it should be."""
        now = self._clock()
        for name, gang in self._gangs.items():
            runs_at = gang.launched_at + self.starts_in_s
            for rank, learner in gang.learners.items():
                if not self._answers(learner.node) or learner.phase in ENDED:
                    continue
                if gang.stop_at is not None and self._obeyed_or_killed(name, rank, gang, now):
                    continue
                if now < runs_at:
                    continue
                gang.learners[rank] = replace(learner, phase=LearnerPhase.RUNNING)
                if self.runs_for_s is not None and now >= runs_at + self.runs_for_s:
                    self._end(name, rank, LearnerPhase.SUCCEEDED, 0, "", "", {})

    def _obeyed_or_killed(self, name: str, rank: int, gang: _Gang, now: float) -> bool:
        assert gang.stop_at is not None
        assert gang.kill_at is not None
        obeys_at = gang.stop_at + self.stops_in_s
        if now >= obeys_at and obeys_at <= gang.kill_at:
            self._end(name, rank, LearnerPhase.FAILED, SIGTERMED, "stopped", "", {})
            return True
        if now >= gang.kill_at:
            self._end(name, rank, LearnerPhase.FAILED, SIGKILLED, "killed", "", {})
            return True
        return False

    def _end(
        self,
        name: str,
        rank: int,
        phase: LearnerPhase,
        code: int | None,
        reason: str,
        message: str,
        evidence: Mapping[str, Any],
    ) -> None:
        gang = self._gangs.get(name)
        learner = gang.learners.get(rank) if gang else None
        if gang is None or learner is None or learner.phase in ENDED:
            return
        gang.learners[rank] = replace(
            learner, phase=phase, exit_code=code, reason=reason, message=message, evidence=dict(evidence)
        )

    def _answers(self, node: str) -> bool:
        return node in self._nodes and self._nodes[node].ready

    def _on(self, node: str) -> list[tuple[str, int]]:
        return [
            (name, rank)
            for name, gang in self._gangs.items()
            for rank, learner in gang.learners.items()
            if learner.node == node
        ]


def _no_hook(moment: str, verb: str, gang: str) -> None:
    """Nothing to do."""
