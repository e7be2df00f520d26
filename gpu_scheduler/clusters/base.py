"""The contract between the lifecycle and a cluster driver. The lifecycle knows this module and no driver.

A driver makes no decisions, owns no state of its own and needs no database. Every call may be repeated, may run
concurrently with others, may arrive late or come from a worker that has already lost its lease, and returns within
seconds. A driver raises ``ClusterError`` and no exception of the libraries that it uses.

tests/gpu_scheduler/clusters/test_cluster_contract.py checks each sentence of this contract on every driver.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from gpu_scheduler.model import Node

STALE_S = 5.0
"""Greatest age of what ``observe`` returns, in seconds. A driver whose cache is older asks the cluster."""
ABSENCE_S = 60.0
"""Two complete observations prove an absence only if they are at most this far apart, in seconds."""
APART_S = 1.5
"""And at least this far: what repeats an old answer may do so for a moment."""

STOPPED_CODE = 128 + signal.SIGTERM
"""The exit code of a program that was stopped before it began."""
STOPPED_BEFORE_PROGRAM = "Stopped before its program began."
DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""The names of nodes, slot types, gangs and runtimes, and of what Kubernetes keeps: they may be part of a path, too."""
DNS_LABEL_RULE = "may contain only lowercase letters, digits and inner dashes, at most 63"
"""What people read of a name that does not match."""
PYTHON_VERSIONS = ("3.10", "3.11", "3.12", "3.13")
"""Versions that a job may ask for; a machine may not have all of them."""


class ClusterError(Exception):
    """The cluster could not do what was requested."""


class ClusterBusy(ClusterError):
    """The cluster does not answer or asks callers to wait. Try again later; no job fails because of it."""


class GangBlocked(ClusterBusy):
    """The cluster answers, but this gang cannot be launched yet. node: the one that cannot take it; "": none is at
    fault. A gang that is blocked for too long releases its slots."""

    def __init__(self, message: str, *, node: str = "") -> None:
        super().__init__(message)
        self.node = node


class ProvisionOutdated(GangBlocked):
    """What an administrator set up on the cluster for the gang's tenant allows less than the platform does. It may be
    a count that follows within seconds; after that the gang releases its slots. The message says what to do, and
    nothing of the tenant's limits."""


class RefusalCode(StrEnum):
    """Why this attempt cannot be launched. Each is also the job's stop reason (jobs.states.StopReason)."""

    DEPLOY_FAILED = "deploy_failed"
    IMAGE_ERROR = "image_error"
    DATA_ERROR = "data_error"
    NODE_LOST = "node_lost"


class LaunchRefused(ClusterError):
    """This attempt cannot be launched. The code decides whether the job fails or is placed again; the message becomes
    its reason."""

    def __init__(self, message: str, *, code: RefusalCode = RefusalCode.DEPLOY_FAILED) -> None:
        super().__init__(message)
        self.code = code


class LearnerPhase(StrEnum):
    """State of one learner's processes on the cluster. UNKNOWN: the node does not answer."""

    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"


ENDED = frozenset({LearnerPhase.SUCCEEDED, LearnerPhase.FAILED})


class EndReason(StrEnum):
    """Why a learner ended, as the driver knows it. CAUSES says what follows for the job."""

    EXITED = "exited"
    """The program ended; the exit code says how (128 + signal if a signal ended it)."""
    OUT_OF_MEMORY = "out_of_memory"
    EVICTED = "evicted"
    """The node removed the learner, for example because its disk was full."""
    PREEMPTED_BY_CLUSTER = "preempted_by_cluster"
    """The cluster itself gave the node to something else; our own preemption is a stop."""
    NODE_LOST = "node_lost"
    """May be reported before the end: the node is shutting down and stops the learner."""
    PLATFORM_STOPPED = "platform_stopped"
    """May be reported before the end: an administrator stops the platform, which stops its running programs."""
    STOPPED = "stopped"
    """``stop`` ended it before its program began."""
    IMAGE_ERROR = "image_error"
    DATA_ERROR = "data_error"
    DEPLOY_FAILED = "deploy_failed"
    NOT_PREPARED = "not_prepared"
    """Its environment or its inputs could not be prepared for now (no disk space, no network, damaged downloads); a
    later attempt may succeed."""
    LAUNCHER_LOST = "launcher_lost"
    """Its processes died without an exit code."""
    SHIPPER_FAILED = "shipper_failed"
    """The process that uploads its output kept failing."""
    FENCED = "fenced"
    """The server no longer accepts reports of this attempt."""


SHIPPER_REFUSALS = frozenset({EndReason.DATA_ERROR, EndReason.NOT_PREPARED})
"""For what a shipper refuses to start the program; no other code of its is the end of a learner."""


def memory_exceeded(used_mib: int, limit_mib: int) -> str:
    """The message of a learner that ended OUT_OF_MEMORY."""
    return f"Used {used_mib} MiB; limit {limit_mib} MiB. Killed."


def memory_numbers(used_mib: int, limit_mib: int) -> dict[str, Any]:
    """The numbers of a learner that ended OUT_OF_MEMORY."""
    return {"peak_memory_mib": used_mib, "memory_limit_mib": limit_mib}


@dataclass(frozen=True, slots=True)
class Isolation:
    """What keeps programs of different jobs apart on a cluster. holds: nothing known is missing. text: for people."""

    holds: bool
    text: str


class Cause(StrEnum):
    """Who caused a learner's end."""

    PROGRAM = "program"
    """The exit code decides: a code other than 0 is the job's own failure and uses one of its restarts. Without an
    exit code the learner counts as lost."""
    REQUEST = "request"
    """The job requests what cannot be provided; it fails, because a restart would not help."""
    CLUSTER = "cluster"
    """Infrastructure, whatever the exit code: the job restarts and uses none of its restarts."""


CAUSES: Mapping[EndReason, Cause] = MappingProxyType(
    {
        EndReason.EXITED: Cause.PROGRAM,
        EndReason.OUT_OF_MEMORY: Cause.PROGRAM,
        EndReason.STOPPED: Cause.PROGRAM,
        EndReason.LAUNCHER_LOST: Cause.PROGRAM,
        EndReason.SHIPPER_FAILED: Cause.PROGRAM,
        EndReason.FENCED: Cause.PROGRAM,
        EndReason.IMAGE_ERROR: Cause.REQUEST,
        EndReason.DATA_ERROR: Cause.REQUEST,
        EndReason.DEPLOY_FAILED: Cause.REQUEST,
        EndReason.EVICTED: Cause.CLUSTER,
        EndReason.PREEMPTED_BY_CLUSTER: Cause.CLUSTER,
        EndReason.NODE_LOST: Cause.CLUSTER,
        EndReason.PLATFORM_STOPPED: Cause.CLUSTER,
        EndReason.NOT_PREPARED: Cause.CLUSTER,
    }
)
"""Who caused each end. Which causes are charged: jobs.states.OWN_FAILURES and jobs.lifecycle.stopping.FREE_LOSSES."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a cluster can do. Code that depends on a difference between clusters asks here, never for a name.

    images: a job may name a container image instead of a framework.
    node_local_data: data sets are folders that this process can see, so that their existence can be checked on submit.
    shared_memory: the size of a learner's shared memory is its own. multi_node: there may be more than one machine.
    Both are for checks of specs that a cluster of containers needs; nothing reads them yet. slot_types: slot types that
    it can count; None means that its nodes report them. The tests of the cluster contract hold a driver to it.
    pythons: finds the versions of plain Python that a job may ask for; None: jobs have neither a plain Python nor
    packages of their own. deploy_deadline: a gang that is not complete in time is stopped and placed again; False where
    a node prepares runtimes for as long as that takes, and reports its failure itself. node_daemon: `manage.py up` runs
    a node daemon for it. required_settings: environment variables without which no process of the platform starts.
    remedy: what an operator checks when it does not answer.
    """

    images: bool = False
    node_local_data: bool = True
    shared_memory: bool = False
    multi_node: bool = False
    slot_types: frozenset[str] | None = None
    pythons: Callable[[], tuple[str, ...]] | None = None
    deploy_deadline: bool = False
    node_daemon: bool = False
    required_settings: tuple[str, ...] = ()
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class LearnerSpec:
    """One rank of a gang. env: the job's own variables; the rest of its environment is made by ``environment``.

    secret is for the shipper only. Code, data and checkpoints are fetched by the shipper and never passed here.
    """

    rank: int
    node: str
    env: Mapping[str, str]
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class GangSpec:
    """A gang to launch. The name is ``job-<id>-<attempt>`` and makes launching idempotent.

    slots: devices of slot_type per learner. Exactly one of runtime, python (alone: a plain interpreter of that version)
    and image is given. runtime_requirements: of a runtime that an administrator made, with python for its version;
    None: the runtime is one of the source tree. requirements: the job's own packages on top; lock: the versions chosen
    for them in an earlier attempt, empty if none were yet. command: a string runs by sh, as a script if it has several
    lines; a list is executed. ingest_url: ws(s):// base URL for the shippers. grace_s: the job's grace period in
    seconds (see learner_agent.halting). checkpoint_every_s: how often a program should save, in seconds. distributed:
    whether the learners get their frameworks' rendezvous variables; None: if there are several. setup: commands that
    each learner runs before the program, each by sh -e. secrets: further variables of every learner's program, for it
    alone: no driver shows or logs their values, or stores them where another job can read them; the shipper does not
    get them. data: the job's data sets, by the name of their folder in DATA_DIR the path below the tenant's data. With
    Capabilities.node_local_data the shipper links them, else the driver provides them. opportunistic: its attempt runs
    beyond the tenant's limits, on what no other job can take.
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
    checkpoint_every_s: float | None = None
    distributed: bool | None = None
    setup: Sequence[str] = ()
    python: str | None = None
    runtime_requirements: Sequence[str] | None = None
    requirements: Sequence[str] = ()
    lock: Sequence[str] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    data: Mapping[str, str] = field(default_factory=dict)
    opportunistic: bool = False

    @property
    def is_distributed(self) -> bool:
        """A program that finds RANK or a coordinator's address takes itself for one of several and waits for them."""
        return len(self.learners) > 1 if self.distributed is None else self.distributed


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """What the versions of a job's packages are chosen for, before there is a gang. Its fields are GangSpec's."""

    runtime: str | None = None
    python: str | None = None
    runtime_requirements: Sequence[str] | None = None
    requirements: Sequence[str] = ()


def gang_name(job: str, attempt: int) -> str:
    """The gang of one attempt of a job, on every cluster."""
    return f"job-{job}-{attempt}"


def job_of_gang(name: str) -> str:
    """The id of the job to which the gang of that name belongs."""
    return name.removeprefix("job-").rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class LearnerReport:
    """What the cluster knows of one rank. uid identifies this process or pod and is never reused.

    exit_code is the training program's (128 + signal if a signal ended it), None while unknown. reason: why it ended,
    or why the driver is ending it; None before that is certain. message is for people;
    numbers: facts for programs as plain JSON (peak_memory_mib, …).
    """

    rank: int
    node: str
    uid: str
    phase: LearnerPhase
    exit_code: int | None = None
    reason: EndReason | None = None
    message: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    program_ended: bool = False
    """Its program has ended or died; its shipper may still be working."""
    output: str = ""
    """What was printed while its environment was prepared, if that failed: some 32 KiB at most, without credentials.
    ``line`` of its numbers is the line that says why, from 1."""
    image: str = ""
    """The container image of its program; "" where none runs."""
    image_digest: str = ""
    """Such as "sha256:…": which image that was, whatever its tag means later; "" while the cluster does not say."""

    @property
    def may_run(self) -> bool:
        """As far as the cluster knows, its program runs or is about to. False on a node that does not answer."""
        return self.phase in {LearnerPhase.PREPARING, LearnerPhase.RUNNING} and not self.program_ended


@dataclass(frozen=True, slots=True)
class GangReport:
    """One gang as found on the cluster. stopping: a stop was requested and is under way."""

    name: str
    learners: tuple[LearnerReport, ...]
    stopping: bool = False
    message: str = ""
    """What a deployment waits for, for people: "Preparing runtime pytorch: …, 3.1 of 5.2 GB fetched"."""
    lock: tuple[str, ...] = ()
    """The versions that this attempt chose for the job's requirements; empty if they were given, or not chosen yet."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The gangs by name, sorted, as the cluster showed them at seen_at (seconds of a monotonic clock).

    complete: a gang that is missing here did not exist at seen_at, as far as the driver's cache knew.
    not_found: requested names that the cluster itself, asked directly, certainly does not have. A driver that cannot be
    certain leaves them out, except for what this process itself has removed.
    """

    gangs: Mapping[str, GangReport]
    seen_at: float
    complete: bool = True
    not_found: frozenset[str] = frozenset()


class Absences:
    """Decides when a missing gang is gone: a direct "not found", or missing from two complete observations.

    The second observation must be newer than the first by APART_S. Per process; safe to share between threads.
    """

    def __init__(self) -> None:
        self._missing_at: dict[str, float] = {}

    def is_gone(self, name: str, seen: Observation) -> bool:
        """True once this gang is certain to be gone; False means that it exists or must be observed again."""
        for old in [other for other, at in list(self._missing_at.items()) if seen.seen_at - at > ABSENCE_S]:
            self._missing_at.pop(old, None)
        if name in seen.not_found:
            return True
        if name in seen.gangs or not seen.complete:
            self._missing_at.pop(name, None)
            return False
        return seen.seen_at - self._missing_at.setdefault(name, seen.seen_at) >= APART_S


class Removal(StrEnum):
    """GONE: nothing of it is left. TERMINATING: its processes are being ended; call ``remove`` again later."""

    GONE = "gone"
    TERMINATING = "terminating"


OnChange = Callable[[set[str]], None]


class Watch(Protocol):
    """A running watch."""

    def close(self) -> None:
        """End it. A second call does nothing; afterwards no more changes are reported."""


class Watches:
    """The open watches of one driver, for drivers to build `watch` on. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[OpenWatch] = []

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, on_change: OnChange, on_close: Callable[[], None] = lambda: None) -> OpenWatch:
        """Report changes to on_change until the watch is closed; then call on_close."""
        watch = OpenWatch(self, on_change, on_close)
        with self._lock:
            self._open.append(watch)
        return watch

    def drop(self, watch: OpenWatch) -> bool:
        """Forget a watch; False if it was forgotten before."""
        with self._lock:
            if watch not in self._open:
                return False
            self._open.remove(watch)
            return True

    def notify(self, names: Collection[str]) -> None:
        """Report these gangs as changed."""
        if names:
            for watch in list(self._open):
                watch.on_change(set(names))


class OpenWatch:
    """See Watch."""

    def __init__(self, watches: Watches, on_change: OnChange, on_close: Callable[[], None]) -> None:
        self.on_change = on_change
        self._watches = watches
        self._on_close = on_close

    def close(self) -> None:
        if self._watches.drop(self):
            self._on_close()


class Cluster(Protocol):
    """One cluster.

    nodes    every node now, sorted by name, with the memory that a learner may have there if that is known.
    launch   make the whole gang exist, or raise and leave nothing. A gang of that name that already
             exists is success and stays untouched. Afterwards observe() shows it.
    observe  the gangs of this installation; pass names to get only some. It may come from a cache that ``watch`` feeds,
             at most STALE_S old, and shows at least what this process itself has launched, stopped or removed.
             Absence counts only as ``Absences`` says. A cluster that does not answer raises ClusterBusy.
    stop     ask all learners to end: SIGTERM, after grace_s SIGKILL; never blocks. An unknown name is success.
             A second stop never lengthens the grace of the first; a shorter grace shortens it.
    remove   make the gang not exist, its processes first (killed if alive), then its traces. GONE: observe() no longer
             shows it and its slots are free. TERMINATING: under way, call again. An unknown name is GONE.
             uids: if given, only these learners are removed; others of the same name stay.
    watch    call on_change with the names of gangs that appeared, changed or disappeared, from any thread, soon after.
             It may name gangs that did not change, and names all after a gap. A hint: observe() is the truth. While a
             watch is open, observing a gang costs no call to the cluster.
    """

    name: str
    capabilities: Capabilities

    def nodes(self) -> list[Node]: ...

    def launch(self, spec: GangSpec) -> None: ...

    def observe(self, names: Sequence[str] | None = None) -> Observation: ...

    def stop(self, name: str, *, grace_s: float) -> None: ...

    def remove(self, name: str, *, uids: Sequence[str] | None = None) -> Removal: ...

    def watch(self, on_change: OnChange) -> Watch: ...


@runtime_checkable
class ReportsIsolation(Protocol):
    """A cluster whose isolation depends on the machine that it runs on."""

    def isolation(self) -> Isolation:
        """What it does now. Raises ClusterBusy."""
        ...


@runtime_checkable
class ChoosesPackages(Protocol):
    """A cluster that can choose the versions of a job's packages while the job waits, by the resolver that would choose
    them when its first attempt is prepared. It keeps nothing of it for long and is asked again by who needs it."""

    def choose(self, environment: EnvironmentSpec) -> tuple[str, ...] | None:
        """The versions, sorted; empty if none of the requirements applies there. None: they are being chosen, so ask
        again within seconds. Raises LaunchRefused in the resolver's words if there are none, and ClusterError if that
        cannot be said now: the package index is away, too many are being chosen, the cluster's version cannot do it.
        """
        ...


@runtime_checkable
class LeavesTraces(Protocol):
    """A cluster on which something of a gang may be left without a learner, so that observe() does not show it: a
    launch or a removal was interrupted there."""

    def traces(self) -> frozenset[str]:
        """Names of such gangs, of this installation. ``remove`` removes what is left of them."""
