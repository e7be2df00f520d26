"""fifo and fifo_backfill: priority class, then first come, first served, over all tenants.

Both keep to quotas and limits: a job that its own tenant's limits hold back delays later jobs of this tenant only.
Neither stops jobs, and neither carries anything from plan to plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from gpu_scheduler.checks import Finding, Scope
from gpu_scheduler.draft import Draft
from gpu_scheduler.model import Gang, Snapshot
from gpu_scheduler.policies.base import Policy, PolicyState, Round, Window, reservations_move_at


@dataclass(frozen=True, slots=True)
class Fifo(Policy):
    """Strict: while a job waits for nodes, no later job starts on nodes of its type, even on slots that the first
    cannot use."""

    name: ClassVar[str] = "fifo"

    def begin(self, draft: Draft) -> FifoRound:
        return FifoRound(draft)

    def next_event_at(self, snapshot: Snapshot) -> datetime | None:
        return None

    def window(self, state: PolicyState) -> Window:
        return Window(levels=("-priority",), queue=("priority",))


class FifoRound(Round):
    """One plan by Fifo."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def queue(self) -> Iterator[Gang]:
        yield from sorted(self._draft.waiting, key=lambda gang: (-gang.priority, gang.queued_at, gang.job))

    def wait(self, gang: Gang, finding: Finding) -> None:
        if not finding.check.queues:
            return
        if finding.check.own:
            self._draft.reserve_of_user(gang, finding.supply.slot_type, gang.asked)
            if finding.check.of_project:
                self._draft.reserve_of_project(gang, finding.supply.slot_type, gang.asked)
            return
        self._reserve(gang, finding.supply.slot_type, on_nodes=finding.scope is Scope.CLUSTER)

    def _reserve(self, gang: Gang, slot_type: str, *, on_nodes: bool) -> None:
        self._draft.reserve(gang, slot_type, gang.asked, on_nodes=on_nodes, whole_pool=True)

    def state(self) -> PolicyState:
        return {}


@dataclass(frozen=True, slots=True)
class FifoBackfill(Fifo):
    """Slots are reserved for the first job of each type that waits for nodes; later jobs can use all others, and the
    reserved ones if their time limit ends before it can start (EASY backfill; Lifka, 1995)."""

    name: ClassVar[str] = "fifo_backfill"

    def next_event_at(self, snapshot: Snapshot) -> datetime | None:
        return min(reservations_move_at(snapshot), default=None)

    def begin(self, draft: Draft) -> FifoBackfillRound:
        return FifoBackfillRound(draft)


class FifoBackfillRound(FifoRound):
    """One plan by FifoBackfill."""

    def _reserve(self, gang: Gang, slot_type: str, *, on_nodes: bool) -> None:
        self._draft.reserve(gang, slot_type, gang.asked, on_nodes=on_nodes)
