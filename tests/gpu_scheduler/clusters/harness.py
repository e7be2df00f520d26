"""What the contract suite needs from a cluster besides its contract: programs that behave, and time.

A behavior is a word: "runs" (until it is stopped), "exits:3", "stubborn" (ignores SIGTERM).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Protocol

from gpu_scheduler.clusters.base import (
    ENDED,
    Cluster,
    ClusterBusy,
    GangReport,
    GangSpec,
    LearnerPhase,
    LearnerSpec,
    Removal,
)
from gpu_scheduler.clusters.memory import MemoryCluster
from gpu_scheduler.model import Node
from tests.gpu_scheduler.clusters.node_daemon import TIMEOUT_S, NodeDaemon, wait_for
from tests.gpu_scheduler.clusters.slow import Patient


def launch(name: str, *behaviors: str, nodes: Sequence[str] = ("node-a",), slots: int = 1) -> GangSpec:
    """A gang with one learner per behavior, laid round the given nodes."""
    job, _, attempt = name.removeprefix("job-").rpartition("-")
    learners = [
        LearnerSpec(
            rank=rank,
            node=nodes[rank % len(nodes)],
            env={"TRAINING_ID": job, "LUTHIER_RANK": str(rank), "BEHAVIOR": behavior},
            secret=f"secret-{rank}",
        )
        for rank, behavior in enumerate(behaviors)
    ]
    return GangSpec(
        name=name,
        job=job,
        attempt=int(attempt),
        tenant="red",
        learners=learners,
        slots=slots,
        slot_type="cpu",
        cpus=1,
        memory_mib=512,
        command="exec behave",
        ingest_url="ws://127.0.0.1:9",
        runtime="fake",
        grace_s=5,
    )


class Harness(Protocol):
    """One kind of cluster under test: two nodes, node-a and node-b, with four cpu slots each. node-a is in rack r1 of
    block b1, of node-b neither is known."""

    cluster: Cluster

    def settle(self) -> None:
        """Let what is under way happen: a moment of real time, or of the virtual clock."""

    def programs_run(self, name: str) -> None:
        """Await that every learner's program has really begun."""

    def unanswered(self) -> AbstractContextManager[None]:
        """While in here the cluster does not answer."""

    def cache_expires(self) -> None:
        """Wait until an unreachable cluster's cache no longer answers, at most STALE_S."""


def eventually(
    harness: Harness, name: str, holds: Callable[[GangReport], bool], *, within_s: float = TIMEOUT_S
) -> GangReport:
    """Observe until the gang's report satisfies holds; the report, or an assertion with the last one."""
    give_up = time.monotonic() + within_s
    while True:
        report = harness.cluster.observe([name]).gangs[name]
        if holds(report):
            return report
        assert time.monotonic() < give_up, f"still {report}"
        harness.settle()


def remove(
    harness: Harness, name: str, *, uids: Sequence[str] | None = None, within_s: float = TIMEOUT_S
) -> None:
    """Remove until the cluster says that nothing is left: ending processes may take a while."""
    give_up = time.monotonic() + within_s
    while harness.cluster.remove(name, uids=uids) is Removal.TERMINATING:
        assert time.monotonic() < give_up, f"{name} is still terminating"
        harness.settle()


def all_in(*phases: LearnerPhase) -> Callable[[GangReport], bool]:
    return lambda report: all(learner.phase in phases for learner in report.learners)


all_ended = all_in(*ENDED)


def wait_until_busy(cluster: Cluster) -> None:
    """Until what it kept of its gangs is too old to be shown."""

    def is_busy() -> bool:
        try:
            cluster.observe()
        except ClusterBusy:
            return True
        return False

    wait_for(is_busy)


class MemoryHarness:
    """The in-process twin: behaviors are played out whenever the clock moves."""

    def __init__(self) -> None:
        self.now = 0.0
        first, second = (Node.with_slots(name, "cpu", 4) for name in ("node-a", "node-b"))
        self.memory = MemoryCluster([second, replace(first, rack="r1", block="b1")], clock=lambda: self.now)
        self.memory.starts_in_s = 0.5
        self.cluster: Cluster = self.memory

    def settle(self) -> None:
        self.time_passes(0.25)

    def programs_run(self, name: str) -> None:
        eventually(self, name, all_in(LearnerPhase.RUNNING))

    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for name, report in self.memory.listing().items():
            behaviors = {spec.rank: spec.env["BEHAVIOR"] for spec in self.memory.launched(name).learners}
            self.memory.stops_in_s = 1e9 if "stubborn" in behaviors.values() else 0
            for learner in report.learners:
                word, _, code = behaviors[learner.rank].partition(":")
                if word == "exits" and learner.phase is LearnerPhase.RUNNING:
                    self.memory.exit(name, learner.rank, int(code))

    @contextmanager
    def unanswered(self) -> Iterator[None]:
        for verb in ("nodes", "launch", "observe", "stop", "remove"):
            self.memory.fail_next(verb, ClusterBusy("The cluster does not answer."))
        yield

    def cache_expires(self) -> None:
        """It has no cache."""


class SlowHarness(MemoryHarness):
    """The same cluster behind a driver that is slow and often fails."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = Patient(self.memory)
        self.cluster = self.slow

    def cache_expires(self) -> None:
        self.slow.forget()


class LocalHarness:
    """A real daemon on this machine."""

    def __init__(self, daemon: NodeDaemon) -> None:
        self.daemon = daemon
        self.cluster = daemon.cluster

    def settle(self) -> None:
        time.sleep(0.05)

    def programs_run(self, name: str) -> None:
        for learner in eventually(self, name, all_in(LearnerPhase.RUNNING)).learners:
            folder = self.daemon.learner(name, learner.rank, learner.node)
            wait_for((folder / "state" / "phase").exists)

    @contextmanager
    def unanswered(self) -> Iterator[None]:
        self.daemon.kill()
        yield
        self.daemon.start()

    def cache_expires(self) -> None:
        wait_until_busy(self.cluster)
