"""Frozen values that pass between the scheduler, the cluster drivers and their callers.

No clock, no I/O and no Django in here: a snapshot goes in, decisions and explanations come out. Slots are
devices of one type: GPUs, or for a job without GPUs (``gpus: 0``) the CPU slots of type ``cpu``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any

CPU_TYPE = "cpu"
"""Slot type of a job that asks for no GPU; the quota and the nodes use the same word."""


class Placing(StrEnum):
    """How the learners of a gang are laid onto nodes."""

    PACK = "pack"
    SPREAD = "spread"


class Priority(IntEnum):
    """A job's class. Ranks are one apart: ageing lifts a waiting head by one class at a time."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    URGENT = 3


class WaitReason(StrEnum):
    """Why a job does not start; one code for API, portal and events (portal.md, why-pending)."""

    SPEC_INVALID = "SPEC_INVALID"
    DATA_UNREACHABLE = "DATA_UNREACHABLE"
    NO_MATCHING_POOL = "NO_MATCHING_POOL"
    EXCEEDS_MAX_QUOTA = "EXCEEDS_MAX_QUOTA"
    TENANT_SUSPENDED = "TENANT_SUSPENDED"
    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
    QUOTA_GPUS = "QUOTA_GPUS"
    QUOTA_JOBS = "QUOTA_JOBS"
    FAIR_SHARE = "FAIR_SHARE"
    INSUFFICIENT_CAPACITY = "INSUFFICIENT_CAPACITY"
    GANG_FRAGMENTED = "GANG_FRAGMENTED"
    WAITING_PREEMPTION = "WAITING_PREEMPTION"
    HELD_BY_USER = "HELD_BY_USER"
    HELD_BY_ADMIN = "HELD_BY_ADMIN"
    NOT_EVALUATED = "NOT_EVALUATED"


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of the cluster as its driver sees it now.

    slots counts the healthy devices of slot_type; a node that is not ready takes no new learner. memory_mib is
    the most that one learner may ever have there, None if the driver cannot tell; plan() places by slots alone.
    """

    name: str
    slot_type: str
    slots: int
    ready: bool = True
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Gang:
    """All learners of one waiting job: they start together or not at all.

    slots is per learner. slot_type None means any GPU type. priority is a Priority rank; queued_at orders
    equals, ids break ties. runs_at_most_s: seconds after which it ends for certain (a time limit), if known;
    only such a job may run on slots that are kept for a larger one.
    """

    job: str
    tenant: str
    learners: int
    slots: int
    slot_type: str | None
    placing: Placing
    priority: int
    queued_at: datetime
    runs_at_most_s: float | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A gang that holds its slots: node name per rank, and when it should end if a limit is known."""

    job: str
    tenant: str
    slots: int
    slot_type: str
    nodes: tuple[str, ...]
    ends_by: datetime | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """What one tenant may hold of one slot type: limit and use in slots."""

    tenant: str
    slot_type: str
    limit: int
    used: int


@dataclass(frozen=True, slots=True)
class TenantState:
    """A tenant's own limits: suspended starts nothing; jobs_limit None means no limit on live jobs."""

    tenant: str
    suspended: bool = False
    jobs_limit: int | None = None
    jobs_used: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """The scheduler's two time constants, in seconds; docs/scheduling.md says why.

    patience_s: how long later jobs may overtake a head that cannot start, before slots are kept for it.
    aging_s: a head climbs one priority class each time it has waited this long.
    """

    patience_s: float = 300
    aging_s: float = 3600


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything plan() may know. now and the policy's own state are values in here, so plan() is pure.

    head_since: job id -> when it first stood at the head of its queue unable to start (starvation guard);
    what the last Plan.head_since said, carried over by the caller.
    """

    now: datetime
    nodes: tuple[Node, ...]
    waiting: tuple[Gang, ...]
    running: tuple[Running, ...]
    shares: tuple[Share, ...]
    tenants: tuple[TenantState, ...] = ()
    head_since: Mapping[str, datetime] = field(default_factory=dict)
    policy: Policy = Policy()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a gang runs: one node name per rank, len == learners, all of slot_type."""

    slot_type: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """Start this job now, there."""

    job: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job does not start: code, a sentence for its owner, and the numbers behind it.

    numbers is plain JSON: position (1 = next in the tenant's line for the type, or for all types where its live
    jobs are counted), cluster_position (1 = nobody who waits for nodes of the type stands before it), limit, used,
    asked, free, largest_block, learners, slots, slot_type, nodes_fitting … whichever the code needs.
    """

    job: str
    code: WaitReason
    message: str
    numbers: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions in the order in which they must be applied, and an explanation for every job that waits."""

    starts: tuple[Start, ...]
    waits: tuple[Explanation, ...]
    head_since: Mapping[str, datetime] = field(default_factory=dict)
