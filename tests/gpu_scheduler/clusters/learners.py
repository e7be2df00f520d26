"""Learners of a node daemon as its driver, its folders and the machine show them."""

from __future__ import annotations

import json
from pathlib import Path

from gpu_scheduler.clusters.base import ENDED, LearnerReport
from tests.gpu_scheduler.clusters.node_daemon import NodeDaemon, wait_for


def learners(daemon: NodeDaemon, gang: str = "job-x-1") -> tuple[LearnerReport, ...]:
    return daemon.cluster.observe().gangs[gang].learners


def running(daemon: NodeDaemon, gang: str = "job-x-1") -> None:
    """Await that every launcher has come to its program."""
    where = {learner.rank: learner.node for learner in learners(daemon, gang)}
    wait_for(
        lambda: all(
            (daemon.learner(gang, rank, node) / "state" / "phase").exists() for rank, node in where.items()
        )
    )


def ended(daemon: NodeDaemon, gang: str = "job-x-1") -> tuple[LearnerReport, ...]:
    wait_for(
        lambda: all(learner.phase in ENDED for learner in learners(daemon, gang)),
        what=lambda: (learners(daemon, gang), daemon.log.read_text()),
    )
    return learners(daemon, gang)


def seen(daemon: NodeDaemon, gang: str = "job-x-1", rank: int = 0, node: str = "node-a") -> dict:
    """What the launcher found in its environment."""
    return json.loads((daemon.learner(gang, rank, node) / "state" / "seen.json").read_text())


def pids(daemon: NodeDaemon, word: str) -> list[int]:
    """Living processes of this daemon's learners with this word on their command line.

    The server that the daemon starts beside the second one (`... fork launcher`) belongs to no learner; that of the
    fake agent ends at once, sooner or later.
    """
    return [pid for pid, words in daemon.commands().items() if word in words and "fork" not in words]


def marked(pid: int, variable: str) -> bool:
    """Say whether a process has this variable; one that is gone by now has none."""
    try:
        return variable.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
