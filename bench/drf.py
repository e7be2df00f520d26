"""Dominant resource fairness as a policy, to compare with: next is who has the least (Ghodsi et al., NSDI 2011).

A tenant's dominant share is the largest part that its runs hold of anything the cluster has: the slots of a type, the
CPUs or the memory of the nodes that report them. Inside a tenant the order is priority class, then first come, first
served. Quotas and limits bound what a tenant may have, they do not weigh it.

No installation can choose it. As published it reserves nothing, so small gangs keep a large one waiting forever; the
class of a job counts against no other tenant; and what tenants lend does not come back. fair_share has dominant shares
of quotas in their place.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from gpu_scheduler.checks import Finding
from gpu_scheduler.draft import Draft
from gpu_scheduler.model import CPU_TYPE, Gang, Node, Running, Snapshot
from gpu_scheduler.policies.base import Policy, PolicyState, Round, Window

CPUS, MEMORY = "cpus:", "memory:"
"""Names of resources beside the slot types."""


@dataclass(frozen=True, slots=True)
class Drf(Policy):
    """Carries nothing from plan to plan and stops no job."""

    name: ClassVar[str] = "drf"

    def begin(self, draft: Draft) -> DrfRound:
        return DrfRound(draft)

    def next_event_at(self, snapshot: Snapshot) -> datetime | None:
        return None

    def window(self, state: PolicyState) -> Window:
        return Window(queue=("tenant",), order=("-priority", "queued_at", "job"))


class DrfRound(Round):
    """One plan by Drf."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._shares = Shares(draft.snapshot.nodes, draft.snapshot.running)

    def queue(self) -> Iterator[Gang]:
        queues: defaultdict[str, deque[Gang]] = defaultdict(deque)
        for gang in sorted(self._draft.waiting, key=lambda gang: (-gang.priority, gang.queued_at, gang.job)):
            queues[gang.tenant].append(gang)
        heads = [(self._shares.dominant(tenant), tenant) for tenant in queues]
        heapq.heapify(heads)
        while heads:
            _, tenant = heapq.heappop(heads)
            gang = queues[tenant].popleft()
            before = self._used(gang)
            yield gang
            for slot_type, slots in (self._used(gang) - before).items():
                self._shares.take(gang, slot_type, slots // gang.slots)
            if queues[tenant]:
                heapq.heappush(heads, (self._shares.dominant(tenant), tenant))

    def _used(self, gang: Gang) -> Counter[str]:
        """What its tenant uses of the types that it may start on; the cycle says nowhere else that it started one."""
        types = self._draft.gpu_types if gang.slot_type is None else [gang.slot_type]
        account = self._draft.ledger.account
        return Counter({slot_type: account(gang.tenant, slot_type).used for slot_type in types})

    def wait(self, gang: Gang, finding: Finding) -> None:
        """Nothing is kept for it."""

    def state(self) -> PolicyState:
        return {}


class Shares:
    """What each tenant holds of each resource, and what there is of it. What nodes do not report does not count."""

    def __init__(self, nodes: Iterable[Node], running: Iterable[Running]) -> None:
        self._has: Counter[str] = Counter()
        self._held: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for node in nodes:
            self._has[node.slot_type] += node.slots
            self._has[MEMORY] += node.allocatable.memory_mib or 0
            if node.slot_type != CPU_TYPE:  # there they are the slots
                self._has[CPUS] += round((node.allocatable.cpus or 0) * 1000)
        for run in running:
            self.take(run.gang, run.slot_type, len(run.nodes))

    def take(self, gang: Gang, slot_type: str, learners: int) -> None:
        held = self._held[gang.tenant]
        slots, cpus, memory = gang.need
        held[slot_type] += learners * slots
        held[CPUS] += learners * cpus
        held[MEMORY] += learners * memory

    def dominant(self, tenant: str) -> float:
        """The largest part of anything that the tenant holds."""
        held = self._held[tenant]
        return max((held[name] / has for name, has in self._has.items() if has), default=0.0)
