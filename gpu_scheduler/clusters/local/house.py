"""What all learners of one daemon share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.clusters.local.environment import Folders
from gpu_scheduler.clusters.local.memory import Cgroups
from gpu_scheduler.clusters.local.store import LearnerRecord


@dataclass(frozen=True, slots=True)
class House:
    """agent: the directory of the learner agent's package. python: the platform's, for shippers."""

    data: Path
    agent: Path
    python: str
    boot: str
    cgroups: Cgroups | None

    @property
    def datasets(self) -> Path:
        return self.data / "datasets"

    def folders(self, gang: str, learner: LearnerRecord) -> Folders:
        return Folders(self.data / "nodes" / learner.node / f"{gang}-{learner.rank}")


def last_words(log: Path) -> str:
    """The end of what a process of ours printed, as one line."""
    try:
        lines = log.read_text(errors="replace").strip().split("\n")
    except OSError:
        lines = []
    return " ".join(lines[-4:])[-400:].strip() or "it said nothing."
