"""What the cluster has at all, whatever runs: devices of the type, and nodes that are large enough."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.checks.base import Check, Finding, Remedy, Scope
from gpu_scheduler.checks.words import amount, devices, numbers_of, shape
from gpu_scheduler.draft import Supply
from gpu_scheduler.model import Gang, WaitReason, unit
from gpu_scheduler.placement import Shortage
from gpu_scheduler.rooms import CPUS, MEMORY


class MatchingPool(Check):
    """Nodes of the type exist, up or down, and would hold the gang's slots if nothing else ran."""

    code = WaitReason.NO_MATCHING_POOL
    key = "pool"
    title = "Device type"
    claim = "The cluster has enough devices of this type"
    label = "no such devices"
    remedy = Remedy.FIX
    scope = Scope.CLUSTER
    queues = False

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        if supply.pool is not None and supply.pool.could_hold_slots(gang):
            return None
        return Finding(self, gang, supply, None)

    def nearness(self, finding: Finding) -> int:
        return finding.supply.pool.largest_node if finding.supply.pool else 0

    def sentence(self, finding: Finding) -> str:
        gang, kind, pool = finding.gang, finding.gang.slot_type or "", finding.supply.pool
        if pool is None:
            if not kind:
                return "This cluster has no GPU nodes; request no GPUs (gpus: 0)."
            return f"This cluster has no {kind} nodes; choose another type."
        largest = pool.largest_node
        if gang.slots > largest:
            return (
                f"No node is large enough: a learner needs {gang.slots} {unit(kind, gang.slots)} on one"
                f" node, the largest node has {largest}. Request at most {largest} per learner."
            )
        of_one_type = "" if kind else " of one type"
        return (
            f"The cluster is too small: {shape(gang)} {unit(kind, gang.asked)}{of_one_type} do not fit even if"
            f" nothing else runs. Request fewer learners."
        )


class NodeSize(Check):
    """A learner's CPUs and memory would fit beside its slots if nothing else ran, and so would the whole gang."""

    code = WaitReason.NODE_TOO_SMALL
    key = "node_size"
    title = "Node size"
    claim = "Nodes of this type have the CPUs and the memory"
    label = "larger than any node"
    remedy = Remedy.FIX
    scope = Scope.CLUSTER
    queues = False

    def applies(self, supply: Supply) -> bool:
        return supply.pool is not None and (supply.pool.counts_cpus or supply.pool.counts_memory)

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        assert supply.pool is not None
        return None if supply.pool.could_hold(gang) else Finding(self, gang, supply, None)

    def shortage_numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        found = _short_of(gang, supply)
        return numbers_of(*found) if found else {}

    def sentence(self, finding: Finding) -> str:
        gang, slot_type = finding.gang, finding.supply.slot_type
        found = _short_of(gang, finding.supply)
        assert found is not None
        resource, short = found
        needs = f"{amount(resource, short.need)} beside its {devices(gang, slot_type)}"
        if short.have < short.need:
            return (
                f"No node is large enough: a learner needs {needs} on one node, the most that a learner can have is"
                f" {amount(resource, short.have)}. Request at most that per learner."
            )
        return (
            f"The cluster is too small: only {short.fitting} of {gang.learners.min} learners, each with {needs}, fit"
            f" even if nothing else runs. Request fewer learners, or less for each."
        )


def _short_of(gang: Gang, supply: Supply) -> tuple[int, Shortage] | None:
    """What the nodes have too little of, even if nothing else ran."""
    for resource in (CPUS, MEMORY):
        if supply.pool and (short := supply.pool.shortage(gang, resource, empty=True)):
            return resource, short
    return None
