"""What one node, rack or block of the cluster could hold of a job that must be in one."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime

from gpu_scheduler.model import CPU_TYPE, Gang, Level, Node, PlacementStrategy, Resources
from gpu_scheduler.placement import Pool
from jobs.selectors.nodes import scheduler_nodes
from jobs.spec import Spec
from jobs.spec.context import DEFAULT_MIB


def largest_domains(spec: Spec) -> dict[Level, int]:
    """By level, from the one that the job requires up, the most of its learners that one domain could hold, if all
    nodes were up and nothing ran. Empty for a job that requires none.

    Memory counts only if it is more than the default, as in jobs.spec.check.
    """
    if spec.topology is None or not spec.topology.required:
        return {}
    memory_mib = spec.resources.memory_mib
    gang = Gang(
        "",
        "",
        spec.resources.learners,
        Resources(
            spec.resources.gpus,
            float(spec.resources.cpus),
            memory_mib if memory_mib > DEFAULT_MIB else None,
        ),
        spec.slot_type,
        PlacementStrategy.PACK,
        0,
        datetime.min.replace(tzinfo=UTC),
        topology=spec.topology,
    )
    by_type: defaultdict[str, list[Node]] = defaultdict(list)
    for node in scheduler_nodes():
        if node.slot_type == spec.slot_type or (spec.slot_type is None and node.slot_type != CPU_TYPE):
            by_type[node.slot_type].append(node)
    pools = [Pool(slot_type, nodes, (), gang.queued_at) for slot_type, nodes in by_type.items()]
    return {
        level: max((pool.most_in_one(gang, level, empty=True) for pool in pools), default=0)
        for level in (spec.topology.level, *spec.topology.level.larger)
    }
