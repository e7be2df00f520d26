"""Nodes and pools with what is free, as any user can see them; names of invisible jobs stay hidden."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime

from gpu_scheduler.model import Resources
from jobs.models import Attempt, ClusterNode
from jobs.selectors import installation
from jobs.selectors.jobs import jobs_visible_to
from jobs.selectors.requests import per_learner, requested
from jobs.selectors.snapshot import database_now
from jobs.selectors.usage import gpus_first
from tenants import access


@dataclass(frozen=True, slots=True)
class Occupant:
    """A gang's share of one node. The names are None where the caller cannot see the job. opportunistic: it leaves when
    another job can start there."""

    job: str | None
    name: str | None
    tenant: str | None
    slots: int
    opportunistic: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """What a node has of CPUs, or of memory in MiB. used: by learners, with their shippers; others: by programs
    outside Luthier."""

    total: float
    used: float
    others: float

    @property
    def free(self) -> float:
        return max(0, self.total - self.used - self.others)


@dataclass(frozen=True, slots=True)
class Avoid:
    """A node that failed a gang: until then, learners go there only if they fit on no others."""

    until: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class NodeUse:
    """One node: its slots, those in use, and who uses them. A node that takes no new learners has none free.

    rack, block: empty: not known. others: slots that programs outside Luthier hold. unhealthy: devices beside the slots
    that the node cannot use. why: what keeps learners away, as far as the cluster says. cpus: beside GPUs; slots of
    type ``cpu`` are CPUs. cpus and memory are None where the cluster does not divide them among the learners, or does
    not say how much there is.
    """

    name: str
    slot_type: str
    rack: str
    block: str
    slots: int
    used: int
    others: int
    ready: bool
    cordoned: bool
    unhealthy: int
    why: str
    avoid: Avoid | None
    cpus: Share | None
    memory: Share | None
    occupants: tuple[Occupant, ...]

    @property
    def opportunistic(self) -> int:
        """Slots of used that opportunistic jobs hold."""
        return sum(each.slots for each in self.occupants if each.opportunistic)

    @property
    def takes_learners(self) -> bool:
        return self.ready and not self.cordoned

    @property
    def unused(self) -> int:
        return max(0, self.slots - self.used - self.others)

    @property
    def free(self) -> int:
        return self.unused if self.takes_learners else 0


@dataclass(frozen=True, slots=True)
class PoolUse:
    """All nodes of one slot type; slots == free + used + others + down, unless a node lost devices under its jobs.

    down: unused slots of nodes that are not ready or cordoned. opportunistic: the part of used that opportunistic jobs
    hold.
    """

    slot_type: str
    nodes: int
    slots: int
    used: int
    others: int
    free: int
    down: int
    largest_free: int
    opportunistic: int = 0


def nodes(user: access.Person) -> list[NodeUse]:
    """Every node with its occupants, by name."""
    occupants: dict[str, list[Occupant]] = defaultdict(list)
    learners: dict[str, list[Resources]] = defaultdict(list)
    held = list(
        Attempt.objects.filter(held=True)
        .values_list(
            "job_id", "job__name", "tenant__slug", "slots", "nodes", "opportunistic", requested("job__")
        )
        .order_by("job_id")
    )
    now = database_now()
    shown = set(jobs_visible_to(user).filter(pk__in=[row[0] for row in held]).values_list("pk", flat=True))
    for job, name, tenant, slots, at, opportunistic, resources in held:
        seen = job in shown
        for node, ranks in Counter(at).items():
            learners[node] += [per_learner(None, slots, resources)] * ranks
            occupants[node].append(
                Occupant(
                    job if seen else None,
                    name if seen else None,
                    tenant if seen else None,
                    slots * ranks,
                    opportunistic,
                )
            )
    return [
        NodeUse(
            row.name,
            row.slot_type,
            row.rack,
            row.block,
            row.slots,
            sum(each.slots for each in occupants[row.name]),
            row.others_slots,
            row.ready,
            row.cordoned,
            row.unhealthy,
            row.why,
            Avoid(row.avoid_until, row.avoid_reason) if row.avoid_until and row.avoid_until > now else None,
            _cpus(row, learners[row.name]),
            _memory(row, learners[row.name]),
            tuple(occupants[row.name]),
        )
        for row in installation.nodes()
    ]


def _cpus(row: ClusterNode, learners: list[Resources]) -> Share | None:
    if row.cpus is None:
        return None
    used = sum((each.cpus or 0) + row.learner_cpus for each in learners)
    return Share(row.cpus, round(used, 3), round(row.others_cpus, 3))


def _memory(row: ClusterNode, learners: list[Resources]) -> Share | None:
    if row.divided_mib is None:
        return None
    used = sum((each.memory_mib or 0) + row.learner_mib for each in learners)
    return Share(row.divided_mib, used, row.others_mib)


def pools(found: list[NodeUse]) -> list[PoolUse]:
    """The nodes summed up by slot type."""
    by_type: dict[str, list[NodeUse]] = defaultdict(list)
    for node in found:
        by_type[node.slot_type].append(node)
    return [
        PoolUse(
            slot_type,
            len(group),
            sum(node.slots for node in group),
            sum(node.used for node in group),
            sum(node.others for node in group),
            sum(node.free for node in group),
            sum(node.unused for node in group if not node.takes_learners),
            max(node.free for node in group),
            sum(node.opportunistic for node in group),
        )
        for slot_type, group in sorted(by_type.items(), key=lambda each: gpus_first(each[0]))
    ]
