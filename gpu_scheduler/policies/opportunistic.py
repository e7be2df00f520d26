"""The third pass of a plan: opportunistic jobs on what no other job can take. Nothing is kept or stopped for them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from gpu_scheduler.checks import OPPORTUNISTIC_CHECKS, Check, Finding
from gpu_scheduler.draft import Draft
from gpu_scheduler.model import Gang, Running, Snapshot
from gpu_scheduler.policies.base import Policy, PolicyState, Round, Window
from gpu_scheduler.policies.queues import by_tenant, first_come


@dataclass(frozen=True, slots=True)
class Opportunistic(Policy):
    """First the tenant whose opportunistic jobs hold the least, by its weight; of its jobs, first those of the highest
    class. Of no installation: plans of other policies end with it (``gpu_scheduler.opportunistic``).

    kept: nodes of which the jobs before it have reserved something. growing: runs that save to start again with so many
    more learners.
    """

    name: ClassVar[str] = "opportunistic"
    checks: ClassVar[tuple[Check, ...]] = OPPORTUNISTIC_CHECKS
    kept: frozenset[str] = frozenset()
    growing: tuple[tuple[Running, int], ...] = ()

    def begin(self, draft: Draft) -> OpportunisticRound:
        for pool in draft.pools.values() if self.kept else ():
            pool.withhold(self.kept)
        for run, learners in self.growing:
            if run.slot_type in draft.pools:
                draft.pools[run.slot_type].withhold_beside(run, learners)
        return OpportunisticRound(draft)

    def next_event_at(self, snapshot: Snapshot) -> datetime | None:
        return None

    def window(self, state: PolicyState) -> Window:
        return Window()


class OpportunisticRound(Round):
    """One third pass."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._held: Counter[tuple[str, str]] = Counter()
        for run in draft.snapshot.running:
            if run.gang.opportunistic:
                self._held[run.tenant, run.slot_type] += run.slots * len(run.nodes)
        self._weights: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for quota in draft.snapshot.quotas:
            self._weights[quota.tenant][quota.slot_type] = quota.weight

    def queue(self) -> Iterator[Gang]:
        yield from by_tenant(sorted(self._draft.waiting, key=first_come), self._share, self._draft)

    def _share(self, tenant: str) -> float:
        """The largest part of a type's slots that its opportunistic jobs hold, over all types, by its weight."""
        pools, given = self._draft.pools, self._draft.ledger.opportunistic
        return max(
            (
                (self._held[tenant, slot_type] + given[tenant, slot_type]) / pools[slot_type].total / weight
                for slot_type, weight in self._weights[tenant].items()
                if slot_type in pools and pools[slot_type].total
            ),
            default=0.0,
        )

    def wait(self, gang: Gang, finding: Finding) -> None:
        """Nothing is kept for it."""

    def state(self) -> PolicyState:
        return {}
