"""Nodes and pools with what is free, as any user can see them; names of invisible jobs stay hidden."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from jobs.models import Attempt
from jobs.selectors import installation
from jobs.selectors.jobs import jobs_visible_to
from jobs.selectors.usage import gpus_first
from tenants import access


@dataclass(frozen=True, slots=True)
class Occupant:
    """A gang's share of one node. The names are None where the caller cannot see the job."""

    job: str | None
    name: str | None
    tenant: str | None
    slots: int


@dataclass(frozen=True, slots=True)
class NodeUse:
    """One node: its slots, those in use, and who uses them. A node that is not ready has none free."""

    name: str
    slot_type: str
    slots: int
    used: int
    ready: bool
    occupants: tuple[Occupant, ...]

    @property
    def free(self) -> int:
        return max(0, self.slots - self.used) if self.ready else 0


@dataclass(frozen=True, slots=True)
class PoolUse:
    """All nodes of one slot type; slots == free + used + down, unless a node lost devices under its jobs."""

    slot_type: str
    nodes: int
    slots: int
    used: int
    free: int
    down: int
    largest_free: int


def nodes(user: access.Person) -> list[NodeUse]:
    """Every node with its occupants, by name."""
    occupants: dict[str, list[Occupant]] = defaultdict(list)
    held = list(
        Attempt.objects.filter(held=True)
        .values_list("job_id", "job__name", "tenant__slug", "slots", "nodes")
        .order_by("job_id")
    )
    shown = set(jobs_visible_to(user).filter(pk__in=[row[0] for row in held]).values_list("pk", flat=True))
    for job, name, tenant, slots, at in held:
        seen = job in shown
        for node, ranks in Counter(at).items():
            occupants[node].append(
                Occupant(
                    job if seen else None, name if seen else None, tenant if seen else None, slots * ranks
                )
            )
    return [
        NodeUse(
            row.name,
            row.slot_type,
            row.slots,
            sum(each.slots for each in occupants[row.name]),
            row.ready,
            tuple(occupants[row.name]),
        )
        for row in installation.nodes()
    ]


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
            sum(node.free for node in group),
            sum(max(0, node.slots - node.used) for node in group if not node.ready),
            max(node.free for node in group),
        )
        for slot_type, group in sorted(by_type.items(), key=lambda each: gpus_first(each[0]))
    ]
