"""What every cluster driver promises. The lifecycle knows this page and never which driver it has.

A driver never decides, keeps no truth of its own and needs no database. Every verb may be called twice,
concurrently, late, or by a worker that has already lost its lease, and returns within seconds; waiting is
the caller's business. A driver raises ``ClusterError`` and nothing of the libraries beneath it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from gpu_scheduler.model import Node

NOT_PREPARED = "not_prepared"
"""A learner's reason: its environment could not be made for now (no space, no network), and a later try may succeed."""


class ClusterError(Exception):
    """The cluster could not do what was asked."""


class ClusterBusy(ClusterError):
    """The cluster does not answer or asks us to wait: try again, nobody's job fails for it."""


class LaunchRefused(ClusterError):
    """This gang can never be launched here; the message says why and becomes the job's failure."""

    def __init__(self, message: str, *, code: str = "deploy_failed") -> None:
        super().__init__(message)
        self.code = code
        """A reason of jobs.states.StopReason: deploy_failed, image_error or data_error."""


class LearnerPhase(StrEnum):
    """What the cluster shows of one learner's processes. UNKNOWN: the node does not answer."""

    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"


ENDED = frozenset({LearnerPhase.SUCCEEDED, LearnerPhase.FAILED})


@dataclass(frozen=True, slots=True)
class LearnerSpec:
    """One rank of a gang. env is the learner's environment without secrets; secret goes to the shipper only.

    files of the run (code, data, checkpoints) are fetched by the shipper, never passed here.
    """

    rank: int
    node: str
    env: Mapping[str, str]
    secret: str


@dataclass(frozen=True, slots=True)
class Launch:
    """A gang to launch: name is ``job-<id>-<attempt>`` and makes launching idempotent.

    slots: devices per learner of slot_type. runtime xor image. command: str = run by sh -c, list = exec.
    ingest_url: ws(s):// base the shippers speak to. grace_s: SIGTERM to SIGKILL.
    """

    name: str
    job: str
    attempt: int
    tenant: str
    learners: Sequence[LearnerSpec]
    slots: int
    slot_type: str
    cpus: float
    memory_mib: int
    command: str | Sequence[str]
    ingest_url: str
    runtime: str | None = None
    image: str | None = None
    grace_s: int = 60


@dataclass(frozen=True, slots=True)
class LearnerReport:
    """What the cluster knows of one rank. uid names this very process or pod for ever.

    exit_code is the training program's (128 + signal if a signal ended it), None while unknown; message and
    evidence (peak_memory_mib, reason "out_of_memory", "evicted", "node_lost" …) are for people and retries.
    """

    rank: int
    node: str
    uid: str
    phase: LearnerPhase
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    over: bool = False
    """Its program has ended or died; its shipper may still be at work."""

    @property
    def may_run(self) -> bool:
        """As far as the cluster knows, its program runs or is about to. Of a node that is away nobody knows."""
        return self.phase in {LearnerPhase.PREPARING, LearnerPhase.RUNNING} and not self.over


@dataclass(frozen=True, slots=True)
class GangReport:
    """One gang as found on the cluster. stopping: a stop was asked for and is under way."""

    name: str
    learners: tuple[LearnerReport, ...]
    stopping: bool = False
    message: str = ""
    """What a deployment waits for, for people: "Preparing runtime pytorch: …, 3.1 of 5.2 GB fetched"."""

    @property
    def gone_or_ended(self) -> bool:
        return all(learner.phase in ENDED for learner in self.learners)


class Cluster(Protocol):
    """The five verbs.

    nodes    every node now, sorted by name, with the memory that a learner may have there if that is known.
    launch   make the whole gang exist, or raise and leave nothing. A gang of that name that is already
             there is success and stays untouched. Afterwards observe() shows it.
    observe  every gang of ours by name in one call; pass names to look at some only. A gang that is not in the
             answer does not exist. Absence is only ever reported by a cluster that answered: otherwise ClusterBusy.
    stop     ask all learners to end: SIGTERM, after grace_s SIGKILL; never blocks. An unknown name is success.
             A second stop never lengthens the first one's grace, a shorter grace shortens it.
    remove   make the gang not exist, its processes first (killed if alive), then its traces: afterwards
             observe() no longer shows it and its slots are free. An unknown name is success.
             uids: when given, only these very learners are removed; others of the same name stay.
    """

    name: str

    def nodes(self) -> list[Node]: ...

    def launch(self, gang: Launch) -> None: ...

    def observe(self, names: Sequence[str] | None = None) -> dict[str, GangReport]: ...

    def stop(self, name: str, *, grace_s: float) -> None: ...

    def remove(self, name: str, *, uids: Sequence[str] | None = None) -> None: ...
