"""Whether one node, rack or block holds all learners of a gang that requires that."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.checks.base import Check, Finding, Meter, Remedy, Scope
from gpu_scheduler.checks.words import are, devices
from gpu_scheduler.draft import Supply
from gpu_scheduler.model import Domain, Gang, Level, WaitReason, unit
from gpu_scheduler.placement import Pool


class _InOneDomain(Check):
    """Of gangs that require a level, those that no domain of it holds fail. empty: if nothing ran, else now."""

    scope = Scope.CLUSTER
    reads = ("required_level",)
    empty: bool

    def concerns(self, gang: Gang) -> bool:
        return gang.required_level is not None

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        level = gang.required_level
        if level is None:
            return None
        assert supply.pool is not None
        have = supply.pool.most_in_one(gang, level, empty=self.empty)
        return (
            None
            if have >= gang.learners.min
            else Finding(self, gang, supply, None if self.empty else self.scope)
        )

    def shortage_numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        """level: what it requires. need: its learners; have: how many of them fit into domain, the one that holds the
        most of them; domain_free: free slots there."""
        level, pool = gang.required_level, supply.pool
        assert level is not None
        assert pool is not None
        domain, have = pool.widest(gang, level, empty=self.empty)
        return {
            "level": level.value,
            "need": gang.learners.min,
            "have": have,
            "domain": place(level, domain),
            "domain_free": pool.free_in(level, domain),
        }

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        if "level" not in numbers:
            return None
        return Meter(0, numbers["have"], numbers["need"])

    def meter_text(self, *, used: int, limit: int, asked: int) -> str:
        return f"{limit} of {asked} learner{'' if asked == 1 else 's'} fit into one"


class TopologySize(_InOneDomain):
    """A domain of the level that the job requires would hold the gang if nothing else ran."""

    code = WaitReason.TOPOLOGY_TOO_SMALL
    key = "topology_size"
    title = "Size of the topology level"
    claim = "One domain of the required level is large enough"
    label = "larger than any domain of its topology level"
    remedy = Remedy.FIX
    queues = False
    empty = True

    def sentence(self, finding: Finding) -> str:
        gang, numbers = finding.gang, finding.numbers
        level, pool = gang.required_level, finding.supply.pool
        assert level is not None
        assert pool is not None
        unknown = ""
        if not pool.knows(level):
            unknown = f" (no node with {unit(finding.supply.slot_type, 2)} reports its {level})"
        return (
            f"No {level} is large enough{unknown}: {gang.learners.min} learners with"
            f" {devices(gang, finding.supply.slot_type)} each must be in one, the largest holds {numbers['have']}"
            f" even if nothing else runs. {remedy(gang, level, pool)}"
        )


class OneDomain(_InOneDomain):
    """All learners fit at the same time into one domain of the level that the job requires."""

    code = WaitReason.TOPOLOGY_FRAGMENTED
    key = "topology"
    title = "Topology"
    claim = "All learners fit into one domain of the required level"
    label = "waiting for room in one domain"
    empty = False

    def sentence(self, finding: Finding) -> str:
        gang, numbers, slot_type = finding.gang, finding.numbers, finding.supply.slot_type
        free, have = numbers["domain_free"], numbers["have"]
        return (
            f"Waiting for {gang.learners.min} learners with {devices(gang, slot_type)} each in one {numbers['level']}:"
            f" {have} {'fits' if have == 1 else 'fit'} into {numbers['domain']}, the one with the most room, where"
            f" {free} {unit(slot_type, free)} {are(free)} free."
        )


def place(level: Level, domain: Domain) -> str:
    """As people read it: "rack r1 of block b1", "node gpu-1 (its rack is not known)"."""
    kind = {1: Level.BLOCK, 2: Level.RACK}.get(len(domain), Level.NODE)
    named = f"{kind} {domain[-1] if domain else ''}"
    if kind is Level.RACK and domain[0]:
        named += f" of block {domain[0]}"
    return named if kind is level else f"{named} (its {level} is not known)"


def remedy(gang: Gang, level: Level, pool: Pool) -> str:
    """What the owner can change. Of the larger levels only those are named of which one domain is large enough."""
    enough = [each for each in level.larger if pool.most_in_one(gang, each, empty=True) >= gang.learners.min]
    wider = f"require a {' or a '.join(enough)}, " if enough else ""
    return f"Request fewer learners, {wider}or prefer the {level} (topology.preferred)."
