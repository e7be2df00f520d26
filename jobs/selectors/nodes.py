"""A node of the scheduler as a row, and back: the one place that knows which column is which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db.models.functions import Now

from gpu_scheduler.model import CPU_TYPE, NOTHING, Node, Resources
from jobs.models import ClusterNode, NodeChange

NODE_COLUMNS = (
    "name", "slot_type", "slots", "ready", "memory_mib", "cpus", "divided_mib", "learner_cpus", "learner_mib",
    "others_slots", "others_cpus", "others_mib", "cordoned", "unhealthy", "why", "rack", "block",
)  # fmt: skip
"""Of ClusterNode: what the cluster reports of a node."""


def node_row(node: Node) -> dict[str, Any]:
    """The values of NODE_COLUMNS. Slots of type ``cpu`` are CPUs: such a node has no CPUs beside its slots."""
    has, others, more = node.allocatable, node.used_by_others, node.per_learner
    cpu_slots = node.slot_type == CPU_TYPE
    return {
        "name": node.name,
        "slot_type": node.slot_type,
        "slots": node.slots,
        "ready": node.ready,
        "memory_mib": node.most_memory_mib,
        "cpus": None if cpu_slots else has.cpus,
        "divided_mib": has.memory_mib,
        "learner_cpus": more.cpus or 0,
        "learner_mib": more.memory_mib or 0,
        "others_slots": others.slots(node.slot_type),
        "others_cpus": 0 if cpu_slots else others.cpus or 0,
        "others_mib": others.memory_mib or 0,
        "cordoned": node.cordoned,
        "unhealthy": node.unhealthy,
        "why": node.why[:500],
        "rack": node.rack,
        "block": node.block,
    }


def node_of_row(
    name: str,
    slot_type: str,
    slots: int,
    ready: bool,
    memory_mib: int | None,
    cpus: float | None,
    divided_mib: int | None,
    learner_cpus: float,
    learner_mib: int,
    others_slots: int,
    others_cpus: float,
    others_mib: int,
    cordoned: bool,
    unhealthy: int,
    why: str,
    rack: str,
    block: str,
    avoid_until: datetime | None = None,
) -> Node:
    """The node whose row has these values of NODE_COLUMNS, and avoid_until, which no cluster reports."""
    used_by_others = per_learner = NOTHING
    if others_slots or others_cpus or others_mib:
        used_by_others = Resources.of_slots(slot_type, others_slots, cpus=others_cpus, memory_mib=others_mib)
    if learner_cpus or learner_mib:
        per_learner = Resources(0, learner_cpus or None, learner_mib or None)
    return Node(
        name,
        slot_type,
        Resources.of_slots(slot_type, slots, cpus=cpus, memory_mib=divided_mib),
        ready=ready,
        used_by_others=used_by_others,
        per_learner=per_learner,
        cordoned=cordoned,
        learner_mib=memory_mib if divided_mib is None else None,
        avoid_until=avoid_until,
        unhealthy=unhealthy,
        why=why,
        rack=rack,
        block=block,
    )


def scheduler_nodes() -> list[Node]:
    """The nodes as of the last scheduling cycle, by name."""
    rows = ClusterNode.objects.order_by("name").values_list(*NODE_COLUMNS, "avoid_until")
    return [node_of_row(*row) for row in rows]


def with_avoided(nodes: Sequence[Node]) -> list[Node]:
    """Nodes as their cluster reports them, with what the platform knows of those that failed a gang."""
    marked = ClusterNode.objects.filter(avoid_until__gt=Now())
    avoid = dict(marked.values_list("name", "avoid_until"))
    return [replace(node, avoid_until=avoid[node.name]) if node.name in avoid else node for node in nodes]


History = Mapping[str, Mapping[str, Any]]
"""By name, what is kept of the past of a node: its slot type, slots and state. A node that is gone is not in it."""


def history_of(rows: Mapping[str, Mapping[str, Any]]) -> History:
    """Of nodes by the values of NODE_COLUMNS."""
    return {name: _in_history(row) for name, row in rows.items()}


def newest_history() -> History:
    """As the newest lines of history say."""
    rows = NodeChange.objects.order_by("name", "-at", "-pk").distinct("name")
    return {
        row.name: {"slot_type": row.slot_type, "slots": row.slots, "state": row.state}
        for row in rows
        if row.state != NodeChange.State.GONE
    }


def node_changes(before: History, after: History) -> Iterator[NodeChange]:
    """The lines of history of what a pass found."""
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if now is None and was is not None:
            yield NodeChange(name=name, **{**was, "state": NodeChange.State.GONE})
        elif now is not None and now != was:
            yield NodeChange(name=name, **now)


def _in_history(row: Mapping[str, Any]) -> dict[str, Any]:
    state = NodeChange.State.READY
    if not row["ready"]:
        state = NodeChange.State.DOWN
    elif row["cordoned"]:
        state = NodeChange.State.CORDONED
    return {"slot_type": row["slot_type"], "slots": row["slots"], "state": state}
