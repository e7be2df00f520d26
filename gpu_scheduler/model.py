"""Frozen values that pass between the scheduler, the cluster drivers and their callers.

No clock, no I/O and no Django in here: a snapshot goes in, decisions and explanations come out. Slots are
devices of one type: GPUs, or for a job without GPUs (``gpus: 0``) the CPU slots of type ``cpu``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Any, Protocol

CPU_TYPE = "cpu"
"""Slot type of a job that asks for no GPU; the quota and the nodes use the same word."""


def slot_type_of(gpus: int, gpu_type: str | None) -> str | None:
    """The slot type that a request for so many GPUs of a type asks for. None: any GPU type."""
    return (gpu_type or None) if gpus else CPU_TYPE


def unit(slot_type: str, count: int) -> str:
    """The words for this many slots of a type: "CPUs", "a100 GPUs"; "GPUs" for any type."""
    kind = "CPU" if slot_type == CPU_TYPE else f"{slot_type} GPU".strip()
    return kind if count == 1 else f"{kind}s"


def timestamp(at: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, as every time that leaves the platform."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class PlacementStrategy(StrEnum):
    """How the learners of a gang are laid onto nodes."""

    PACK = "pack"
    SPREAD = "spread"


class Level(StrEnum):
    """Parts of a cluster, from the smallest to the largest: a block is several racks."""

    NODE = "node"
    RACK = "rack"
    BLOCK = "block"
    __hash__ = str.__hash__  # Enum's own is Python code, and plans look levels up by the ten thousand

    @property
    def larger(self) -> tuple[Level, ...]:
        """The levels above it, from the smallest."""
        levels = tuple(Level)
        return levels[levels.index(self) + 1 :]


LEVELS = tuple(Level)

Domain = tuple[str, ...]
"""One node, rack or block: block, rack and node, as far down as it goes. Racks of one name in two blocks are two."""


def domain_at(level: Level, inner: Domain) -> Domain:
    """The domain of this level that the inner one is in. Where that is not known, it is what is known of it to be in
    one: the inner one itself, or its rack."""
    block, rack = (*inner, "")[:2]
    if level is Level.BLOCK and block:
        return (block,)
    if level is not Level.NODE and rack:
        return block, rack
    return inner


@dataclass(frozen=True, slots=True)
class Topology:
    """All learners of a gang in one domain of this level. Not required: if they fit there, else in the smallest larger
    one."""

    level: Level
    required: bool

    @classmethod
    def read(cls, text: str) -> Topology:
        """From its text. Raises ValueError."""
        how, _, level = text.partition(" ")
        if how not in ("required", "preferred"):
            raise ValueError(f"the topology {text!r} is neither required nor preferred")
        return cls(Level(level), how == "required")

    def __str__(self) -> str:
        return f"{'required' if self.required else 'preferred'} {self.level}"


class Priority(IntEnum):
    """A job's class. Ranks are one apart: aging raises a queue head by one class at a time."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    URGENT = 3


class WaitReason(StrEnum):
    """Why a job does not start; one code for API, portal and events. Each is given by one rule of ``checks``, except
    NOT_EVALUATED, no plan has covered the job yet, START_PENDING, it can start and other starts come first,
    IDLE_LEAVING, opportunistic jobs leave what it starts on, IDLE_BACKOFF, it had to leave too often,
    CLUSTER_BUSY, the cluster does not respond, DISK_FULL, there is no room for what jobs store, and START_FAILED, the
    platform failed on the job and leaves it out of its plans for a while."""

    NO_MATCHING_POOL = "NO_MATCHING_POOL"
    NODE_TOO_SMALL = "NODE_TOO_SMALL"
    TOPOLOGY_TOO_SMALL = "TOPOLOGY_TOO_SMALL"
    EXCEEDS_MAX_QUOTA = "EXCEEDS_MAX_QUOTA"
    NO_QUOTA = "NO_QUOTA"
    EXCEEDS_MAX_GANG = "EXCEEDS_MAX_GANG"
    EXCEEDS_MAX_TIME = "EXCEEDS_MAX_TIME"
    EXCEEDS_USER_LIMIT = "EXCEEDS_USER_LIMIT"
    EXCEEDS_PROJECT_LIMIT = "EXCEEDS_PROJECT_LIMIT"
    TENANT_SUSPENDED = "TENANT_SUSPENDED"
    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
    USER_GPUS = "USER_GPUS"
    USER_JOBS = "USER_JOBS"
    PROJECT_GPUS = "PROJECT_GPUS"
    QUOTA_GPUS = "QUOTA_GPUS"
    COHORT_GPUS = "COHORT_GPUS"
    QUOTA_JOBS = "QUOTA_JOBS"
    FAIR_SHARE = "FAIR_SHARE"
    INSUFFICIENT_CAPACITY = "INSUFFICIENT_CAPACITY"
    GANG_FRAGMENTED = "GANG_FRAGMENTED"
    NODE_CPUS = "NODE_CPUS"
    NODE_MEMORY = "NODE_MEMORY"
    TOPOLOGY_FRAGMENTED = "TOPOLOGY_FRAGMENTED"
    NOT_EVALUATED = "NOT_EVALUATED"
    NOT_IDLE = "NOT_IDLE"
    IDLE_LEAVING = "IDLE_LEAVING"
    IDLE_BACKOFF = "IDLE_BACKOFF"
    START_PENDING = "START_PENDING"
    CLUSTER_BUSY = "CLUSTER_BUSY"
    DISK_FULL = "DISK_FULL"
    START_FAILED = "START_FAILED"


Room = tuple[int, int, int]
"""Slots, thousandths of a CPU and MiB of memory, as placement counts them: whole numbers, so that nothing is rounded
twice. CPUs are 0 for slot type ``cpu``, whose slots they are."""
UNCOUNTED = 1 << 60
"""In a node's Room: how much it has is not known, so nothing is refused for it."""


class Need(tuple[int, int, int]):
    """A Room that a learner takes. Made by ``need_of`` alone, one object for each size: plans look needs up by the
    hundred thousand, and hashing three numbers each time takes a tenth of a forecast."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


@lru_cache(10_000)
def need_of(slots: int, cpus: int, memory: int) -> Need:
    return Need((slots, cpus, memory))


@dataclass(frozen=True, slots=True)
class Resources:
    """What one learner needs, or what a node has to offer. None: not known, and not counted.

    cpus counts cores, memory_mib is in MiB.
    """

    gpus: int = 0
    cpus: float | None = None
    memory_mib: int | None = None

    @classmethod
    def of_slots(
        cls, slot_type: str | None, slots: int, *, cpus: float | None = None, memory_mib: int | None = None
    ) -> Resources:
        """Slots of a type: GPUs, or cores for type ``cpu``. cpus is read for GPU types only."""
        if slot_type == CPU_TYPE:
            return cls(0, slots, memory_mib)
        return cls(slots, cpus, memory_mib)

    def slots(self, slot_type: str | None) -> int:
        """The devices that the scheduler counts for this type. None: any GPU type."""
        return int(self.cpus or 0) if slot_type == CPU_TYPE else self.gpus

    def needed(self, slot_type: str | None) -> Room:
        """What this takes of a node of the type; what is not known counts as nothing."""
        if slot_type == CPU_TYPE:
            return int(self.cpus or 0), 0, self.memory_mib or 0
        return self.gpus, math.ceil((self.cpus or 0) * 1000 - 1e-6), self.memory_mib or 0

    def offered(self, slot_type: str) -> Room:
        """What a node of the type has, if these are its resources."""
        memory = UNCOUNTED if self.memory_mib is None else self.memory_mib
        if slot_type == CPU_TYPE:
            return int(self.cpus or 0), UNCOUNTED, memory
        return self.gpus, UNCOUNTED if self.cpus is None else math.floor(self.cpus * 1000 + 1e-6), memory


NOTHING = Resources()


@dataclass(frozen=True, slots=True)
class Range:
    """How many learners a gang can have, both ends included. A fixed gang has min == max."""

    min: int
    max: int

    @classmethod
    def fixed(cls, count: int) -> Range:
        return cls(count, count)

    @property
    def is_fixed(self) -> bool:
        return self.min == self.max

    def __contains__(self, count: int) -> bool:
        return self.min <= count <= self.max

    def __str__(self) -> str:
        return str(self.min) if self.is_fixed else f"{self.min}–{self.max}"


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long a training step takes, by the size of a gang; fitted to measured steps by ``elastic.performance.fit``.

    All in seconds. A micro-batch of m samples computes ``compute_s + per_sample_s * m``. Learners then exchange
    gradients: ``exchange_s + per_learner_s * (n - 2)`` for n of them on one node, ``exchange_across_s +
    per_learner_across_s * (n - 2)`` on several, nothing for one. overlap: how far both happen at once, from 1, not at
    all, to 10, almost wholly.
    """

    compute_s: float
    per_sample_s: float
    exchange_s: float = 0.0
    per_learner_s: float = 0.0
    exchange_across_s: float = 0.0
    per_learner_across_s: float = 0.0
    overlap: float = 1.0


@dataclass(frozen=True, slots=True)
class GradientNoise:
    """The variance and the squared norm of a program's gradients, measured at this total batch."""

    variance: float
    squared_norm: float
    batch: int


@dataclass(frozen=True, slots=True)
class Profile:
    """What is known of how an elastic gang trains at each size.

    batch: samples in a step over all learners, as its owner allows them; None: the program has its own and keeps it.
    step_times: None if never measured. noise: None if the program does not report it; then all samples count the same.
    most_per_learner: the largest micro-batch that one learner has run; 0: not known. largest: the most learners it has
    run with, 0: it never ran. most: it failed with more learners before its first step; None: it never did.
    """

    batch: Range | None = None
    step_times: StepTimes | None = None
    noise: GradientNoise | None = None
    most_per_learner: int = 0
    largest: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of the cluster as its driver sees it now.

    allocatable counts healthy devices, and CPUs and memory as far as the cluster divides them among its learners.
    used_by_others: held by programs that are not ours. per_learner: what each learner takes there beyond what it
    requests, such as the memory of its shipper's container. learner_mib: the most memory that one learner can have
    where the node's memory is known but not divided. unhealthy: devices beside the allocatable ones that it has but
    cannot use. why: sentences for administrators about what keeps learners away, as far as the cluster says.
    rack, block: the domains of the network that it is in, a block being several racks; empty: not known. A node takes
    new learners only if it is ready and not cordoned; until avoid_until, because it failed a gang, only if they fit on
    no others. leaves_at: when it is taken away, if there is a notice of that; no driver reads one so far. full: it
    takes no more learners until one leaves, whatever is free of its resources.
    """

    name: str
    slot_type: str
    allocatable: Resources
    ready: bool = True
    used_by_others: Resources = NOTHING
    rack: str = ""
    block: str = ""
    cordoned: bool = False
    avoid_until: datetime | None = None
    per_learner: Resources = NOTHING
    learner_mib: int | None = None
    unhealthy: int = 0
    why: str = ""
    leaves_at: datetime | None = None
    full: bool = False
    slots: int = field(init=False, repr=False, compare=False)  # derived, as is room; plan() reads them often
    room: Room = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", self.allocatable.slots(self.slot_type))
        object.__setattr__(self, "room", self.allocatable.offered(self.slot_type))

    @classmethod
    def with_slots(
        cls,
        name: str,
        slot_type: str,
        slots: int,
        ready: bool = True,
        *,
        cpus: float | None = None,
        memory_mib: int | None = None,
        learner_mib: int | None = None,
    ) -> Node:
        """A node of this many slots; what else is not given is not known, and not counted."""
        has = Resources.of_slots(slot_type, slots, cpus=cpus, memory_mib=memory_mib)
        return cls(name, slot_type, has, ready, learner_mib=learner_mib)

    @property
    def most_memory_mib(self) -> int | None:
        """The most that one learner can have there if nothing else runs; None: not known."""
        whole = self.allocatable.memory_mib
        if whole is None:
            return self.learner_mib
        return max(0, whole - (self.per_learner.memory_mib or 0))

    @property
    def domain(self) -> Domain:
        """Itself as the smallest domain."""
        return self.block, self.rack, self.name

    @property
    def takes_learners(self) -> bool:
        return self.ready and not self.cordoned

    def is_avoided(self, now: datetime) -> bool:
        return self.avoid_until is not None and self.avoid_until > now


@dataclass(frozen=True, slots=True)
class Gang:
    """All learners of one job: they start together or not at all.

    resources are per learner. slot_type None means any GPU type. priority is a Priority rank; queued_at orders
    equals, ids break ties. runs_at_most_s: seconds after its start at which it has certainly ended (a time limit);
    only such a job may use slots that are reserved for another one. user is the owner's name. topology: how close its
    learners must, or should, be to each other; None: anywhere. elastic: how an elastic gang trains at each size; None:
    a gang of one size. target: with how many learners it starts, or with as many as fit; None: the fewest. project: the
    part of its tenant that it is in; "": none. generation: that of the job's intent, 0: not known. opportunistic: it
    runs only on what no other job can take, and leaves as soon as one can.
    """

    job: str
    tenant: str
    learners: Range
    resources: Resources
    slot_type: str | None
    strategy: PlacementStrategy
    priority: int
    queued_at: datetime
    runs_at_most_s: float | None = None
    user: str = ""
    topology: Topology | None = None
    elastic: Profile | None = None
    target: int | None = None
    project: str = ""
    generation: int = 0
    opportunistic: bool = False
    slots: int = field(init=False, repr=False, compare=False)  # per learner, derived; plan() reads it often
    asked: int = field(init=False, repr=False, compare=False)  # the fewest over all learners, derived
    need: Need = field(init=False, repr=False, compare=False)  # per learner, derived
    required_level: Level | None = field(init=False, repr=False, compare=False)
    """Derived: of the domain that must hold all its learners; None: they may be anywhere."""

    def __post_init__(self) -> None:
        need = need_of(*self.resources.needed(self.slot_type))
        slots, topology = need[0], self.topology
        object.__setattr__(self, "need", need)
        object.__setattr__(self, "slots", slots)
        object.__setattr__(self, "asked", self.learners.min * slots)
        required = topology.level if topology is not None and topology.required else None
        object.__setattr__(self, "required_level", required)

    def resized(self, *, learners: int | None = None, slots: int | None = None) -> Gang:
        """The same gang with a fixed number of learners, or with other slots for each of them."""
        size = self.learners if learners is None else Range.fixed(learners)
        if slots is None:
            return replace(self, learners=size)
        if self.slot_type == CPU_TYPE:
            return replace(self, learners=size, resources=replace(self.resources, cpus=slots))
        return replace(self, learners=size, resources=replace(self.resources, gpus=slots))


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop this running job: its program is asked to save a checkpoint, then it queues again automatically.

    reason is a StopReason of the job's lifecycle. for_job: the waiting job that the freed slots are promised to, None
    if to no job. generation: that of the job's intent when the order was decided; a newer intent voids the order.
    """

    job: str
    reason: str
    for_job: str | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Resize:
    """Run this job with so many learners: its program is asked to save, then it queues again with that target, and is
    offered its slots before other jobs.

    for_job: the waiting job that what it gives up is promised to, None if to no job. leaves: nodes that take no more
    learners, off which it goes by this; its number of learners may stay the same then.
    """

    job: str
    learners: int
    generation: int = 0
    for_job: str | None = None
    leaves: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Running:
    """A gang that holds its slots.

    slot_type: the type it was placed on, also where the gang accepts any. nodes: a node's name per rank.
    ends_by: when it has certainly ended, if a limit is known. last_checkpoint_at: when it last saved, None if never.
    checkpoint_cost_s and restart_cost_s: seconds that a save and a start from it take, None if never measured.
    saves_when_asked: its program is known to check for a halt; any other may lose what it did since it last saved.
    stopping: it is on its way out, stopped or finished, and cannot be stopped or resized. requeues: False if its owner
    halts or cancels it: then it does not queue again after an order. order: what the scheduler ordered and the job's
    own reconciliation has not completed yet. generation: that of the job's intent. stopping_since: when it was asked to
    stop, None: it was not, or that is not known. computes_after: of one whose program had not begun, when that was
    seen; None: it had, or a plan started it.
    """

    gang: Gang
    slot_type: str
    nodes: tuple[str, ...]
    started_at: datetime
    ends_by: datetime | None = None
    last_checkpoint_at: datetime | None = None
    checkpoint_cost_s: float | None = None
    restart_cost_s: float | None = None
    saves_when_asked: bool = True
    stopping: bool = False
    requeues: bool = True
    order: Stop | Resize | None = None
    generation: int = 0
    stopping_since: datetime | None = None
    computes_after: datetime | None = None

    @property
    def job(self) -> str:
        return self.gang.job

    @property
    def tenant(self) -> str:
        return self.gang.tenant

    @property
    def slots(self) -> int:
        """Per learner."""
        return self.gang.slots

    @property
    def priority(self) -> int:
        return self.gang.priority


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """A tenant's quota of one slot type and what is in use of it, in slots.

    cohort: the group of tenants with which it lends and borrows; "": none, the limit is all that it can use.
    borrowing_limit: how much more than the limit it can use while others lend it; lending_limit: how much of the limit
    others can use while it does not; None: as much as there is. weight: its part of what can be borrowed by several.
    user_limit: the most that jobs of one user hold at once; gang_limit: the most that one job holds; None: no limit.
    used_recently: how much it used on average, the more recent the more it counts; 0 unless the policy has a half-life.
    """

    tenant: str
    slot_type: str
    limit: int
    used: int
    cohort: str = ""
    borrowing_limit: int | None = None
    lending_limit: int | None = None
    weight: int = 1
    user_limit: int | None = None
    gang_limit: int | None = None
    used_recently: float = 0.0

    @property
    def lends(self) -> int:
        """The most of its limit that others can use."""
        if not self.cohort:
            return 0
        return self.limit if self.lending_limit is None else min(self.limit, self.lending_limit)


@dataclass(frozen=True, slots=True)
class Budget:
    """The GPU-hours that a tenant's jobs can use until month_ends, of which they have used so many GPU-seconds."""

    gpu_hours: float
    used_gpu_s: float
    month_ends: datetime

    @property
    def left_gpu_s(self) -> float:
        """Not above 0: it is used up."""
        return self.gpu_hours * 3600 - self.used_gpu_s


@dataclass(frozen=True, slots=True)
class TenantState:
    """A tenant's own limits, None: no limit. suspended starts nothing. jobs_limit: live jobs; user_jobs_limit: those of
    one user. max_time_s: the longest time limit of a job; one without a time limit does not start then.
    budget_gpu_hours: of the month that ends at month_ends, in which used_gpu_s GPU-seconds are used. These two are
    known where a budget holds jobs back."""

    tenant: str
    suspended: bool = False
    jobs_limit: int | None = None
    jobs_used: int = 0
    user_jobs_limit: int | None = None
    max_time_s: int | None = None
    budget_gpu_hours: float | None = None
    budget_is_hard: bool = True
    used_gpu_s: float = 0.0
    month_ends: datetime | None = None

    @property
    def budget(self) -> Budget | None:
        """The budget that holds jobs back, if there is one: a soft one only warns people."""
        if self.budget_gpu_hours is None or not self.budget_is_hard or self.month_ends is None:
            return None
        return Budget(self.budget_gpu_hours, self.used_gpu_s, self.month_ends)


@dataclass(frozen=True, slots=True)
class ProjectShare:
    """What a project has of one slot type: the slots of its tenant's quota for which it comes first, and the most that
    its jobs hold at once; None: no limit."""

    slot_type: str
    guarantee: int = 0
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Project:
    """A part of a tenant. weight: its part of what no project is guaranteed. shares: by slot type; a type that is not
    named has no guarantee and no limit."""

    tenant: str
    name: str
    weight: int = 1
    shares: tuple[ProjectShare, ...] = ()


class NamedPolicy(Protocol):
    """The part of a policy that this module needs; ``policies.base.Policy`` is the full interface."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that plan() knows. now and the policy's own state are values in here, so plan() is pure.

    policy_state: the policy_state of the last plan, carried over by the caller; only the policy reads it. promised:
    waiting jobs for which others were stopped or resized, or that were resized themselves, and until when they are
    offered slots before all others; None: as long as some of the others still hold theirs. yielded: of opportunistic
    jobs that wait or run, when they were stopped to leave their slots to others soon after they began, the oldest
    first, as far back as ``rests`` reads it; of those that run it counts once they have left again.
    """

    now: datetime
    nodes: tuple[Node, ...]
    waiting: tuple[Gang, ...]
    running: tuple[Running, ...]
    quotas: tuple[QuotaUse, ...]
    policy: NamedPolicy
    tenants: tuple[TenantState, ...] = ()
    policy_state: Mapping[str, Any] = field(default_factory=dict)
    promised: Mapping[str, datetime | None] = field(default_factory=dict)
    projects: tuple[Project, ...] = ()
    yielded: Mapping[str, tuple[datetime, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a gang runs: one node name per rank, len == learners, all of slot_type."""

    slot_type: str
    nodes: tuple[str, ...]


class StartReason(StrEnum):
    """Why a job starts now, the first that holds. NOMINATED: what it starts on is offered to it first, because others
    were stopped or resized for it, or it was resized itself. BACKFILLED: it passes a job that waited so long that slots
    are kept for it, and delays it not. BORROWED: on slots that other tenants lend. GUARANTEED: within its tenant's own
    limit. OPPORTUNISTIC: on what no other job can take now, until one can."""

    NOMINATED = "nominated"
    BACKFILLED = "backfilled"
    BORROWED = "borrowed"
    GUARANTEED = "guaranteed"
    OPPORTUNISTIC = "opportunistic"


@dataclass(frozen=True, slots=True)
class Start:
    """Start this job now, there.

    borrowed: how many of its slots are lent by other tenants now, whatever the reason. generation: that of the job's
    intent when this was decided, 0 if none is known; a newer intent voids the start.
    """

    job: str
    placement: Placement
    reason: StartReason = StartReason.GUARANTEED
    borrowed: int = 0
    generation: int = 0


def _no_checks() -> list[dict[str, Any]]:
    return []


@dataclass(slots=True)  # not frozen: that takes twice as long, and a plan makes ten thousand
class Explanation:
    """Why a job does not start: code, a sentence for its owner, and the numbers behind it.

    numbers is plain JSON: position (1 = next in the queue for the type), nodes_ahead (jobs of all tenants ahead that
    wait for nodes of the type; position - 1 without the tenant's own jobs that its limits hold back), limit, used,
    asked, free, largest_block, learners, slots, slot_type, learners_fitting, scope … whichever the code needs.
    checks: lists every check that applies (``checks.listed``); made when it is called, because few of ten thousand are
    read. Not to be changed: jobs share what is the same for them.
    """

    job: str
    code: WaitReason
    message: str
    numbers: Mapping[str, Any]
    checks: Callable[[], list[dict[str, Any]]] = field(default=_no_checks, compare=False, repr=False)

    @property
    def details(self) -> dict[str, Any]:
        """The numbers and the checks, as they are stored and shown."""
        checks = self.checks()
        return {**self.numbers, "checks": checks} if checks else dict(self.numbers)


class GrowthReason(StrEnum):
    """What keeps an elastic run from having more learners. AT_MOST: it has as many as its range allows, or as may be
    tried next, which are always more than it has."""

    UNKNOWN = "unknown"
    AT_MOST = "at_most"
    NOT_MEASURED = "not_measured"
    SETTLING = "settling"
    COSTS = "costs"
    RESIZING = "resizing"
    MOVING = "moving"
    CANNOT_RETURN = "cannot_return"
    NODE_CLOSED = "node_closed"
    BATCH = "batch"
    FAILED_WITH_MORE = "failed_with_more"
    JOB_LIMIT = "job_limit"
    USER_LIMIT = "user_limit"
    PROJECT_LIMIT = "project_limit"
    NODES = "nodes"
    QUOTA = "quota"
    NOT_FREE = "not_free"
    KEPT = "kept"
    OTHERS_GAIN = "others_gain"
    NOT_FASTER = "not_faster"
    NOT_WORTH = "not_worth"
    NO_PLACE = "no_place"
    SHRINKING_FIRST = "shrinking_first"
    AFTER_OTHERS = "after_others"
    AT_ONCE = "at_once"


@dataclass(frozen=True, slots=True)
class Growth:
    """Why an elastic job that runs with so many learners gets no more: code, a sentence for its owner that names no
    tenant and no job, and the numbers behind it, which are plain JSON."""

    job: str
    learners: int
    code: GrowthReason
    message: str
    numbers: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions in the order in which to apply them, and an explanation for every job that waits.

    policy_state: what the policy wants to find in the next snapshot. reserved: the waiting jobs for which it keeps
    slots or nodes, by id. growths: why elastic runs have no more learners; they decide
    nothing.
    """

    starts: tuple[Start, ...] = ()
    stops: tuple[Stop, ...] = ()
    resizes: tuple[Resize, ...] = ()
    waits: tuple[Explanation, ...] = ()
    policy_state: Mapping[str, Any] = field(default_factory=dict)
    reserved: tuple[str, ...] = ()
    growths: tuple[Growth, ...] = field(default=(), compare=False)
