"""A plan while it is made: what is free, what each tenant uses, and what is reserved, after the decisions so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from typing import Any

from gpu_scheduler.checks import Candidate, Finding
from gpu_scheduler.model import CPU_TYPE, Gang, Node, Placement, Running, Snapshot, Start
from gpu_scheduler.placement import Pool
from gpu_scheduler.quota import Ledger


class Draft:
    """Pools and ledger of one snapshot; a policy reserves in it, the cycle starts gangs in it.

    waiting: the gangs that the policy at hand orders. state: what that policy asked to have carried over.
    failed: findings by shape of gang, valid until slots are taken or reserved.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.waiting: Sequence[Gang] = snapshot.waiting
        self.state: Mapping[str, Any] = snapshot.policy_state
        self.ledger = Ledger(snapshot.shares, snapshot.tenants)
        self.pools = _pools(snapshot)
        self.gpu_types = [slot_type for slot_type in self.pools if slot_type != CPU_TYPE] or [""]
        self.failed: dict[Hashable, Finding] = {}

    def part(self, waiting: Sequence[Gang], state: Mapping[str, Any]) -> Draft:
        """The same draft for a policy that orders only these gangs."""
        part = copy(self)
        part.waiting, part.state = waiting, state
        return part

    def candidate(self, gang: Gang, slot_type: str) -> Candidate:
        return Candidate(
            gang,
            slot_type,
            gang.learners.min * gang.slots,
            self.pools.get(slot_type),
            self.ledger.account(gang.tenant, slot_type),
            self.ledger.jobs(gang.tenant),
            self.snapshot.now,
        )

    def start(self, gang: Gang, slot_type: str) -> Start:
        """Place a gang that passed all checks on this type, and count its slots and itself as used."""
        nodes = self.pools[slot_type].place(gang)
        self.ledger.take(gang.tenant, slot_type, len(nodes) * gang.slots)
        self.failed.clear()
        return Start(gang.job, Placement(slot_type, nodes))

    def reserve(self, gang: Gang, slot_type: str, slots: int, *, on_nodes: bool) -> None:
        """Reserve slots of the tenant's limits for this gang, and with on_nodes the nodes where it can start soonest.

        Does nothing where the tenant's account, or the pool, has a reservation already.
        """
        self.ledger.reserve(gang.tenant, slot_type, slots, job=gang.job)
        if on_nodes:
            self.pools[slot_type].reserve_for(gang)
        self.failed.clear()


def _pools(snapshot: Snapshot) -> Mapping[str, Pool]:
    by_type: defaultdict[str, list[Node]] = defaultdict(list)
    for node in snapshot.nodes:
        by_type[node.slot_type].append(node)
    held: defaultdict[str, list[Running]] = defaultdict(list)
    for run in snapshot.running:
        held[run.slot_type].append(run)
    return {
        slot_type: Pool(slot_type, by_type[slot_type], held[slot_type], snapshot.now)
        for slot_type in sorted(by_type)
    }
