"""The third pass of a plan: opportunistic jobs on what no other job can take. Nothing is kept or stopped for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from gpu_scheduler.checks import IDLE_CHECKS, Check, Finding
from gpu_scheduler.draft import Draft
from gpu_scheduler.model import Gang, Snapshot
from gpu_scheduler.policies.base import Policy, PolicyState, Round, Window
from gpu_scheduler.policies.queues import by_tenant, first_come


@dataclass(frozen=True, slots=True)
class Idle(Policy):
    """By class, then the tenant whose opportunistic jobs hold the least, by its quota. Of no installation: plans of
    other policies end with it (``gpu_scheduler.idle``)."""

    name: ClassVar[str] = "idle"
    checks: ClassVar[tuple[Check, ...]] = IDLE_CHECKS

    def begin(self, draft: Draft) -> IdleRound:
        return IdleRound(draft)

    def next_event_at(self, snapshot: Snapshot) -> datetime | None:
        return None

    def window(self, state: PolicyState) -> Window:
        return Window(levels=("-priority",))


class IdleRound(Round):
    """One third pass."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def queue(self) -> Iterator[Gang]:
        levels = sorted({gang.priority for gang in self._draft.waiting}, reverse=True)
        for level in levels:
            gangs = sorted((gang for gang in self._draft.waiting if gang.priority == level), key=first_come)
            yield from by_tenant(gangs, self._draft.ledger.dominant_share, self._draft)

    def wait(self, gang: Gang, finding: Finding) -> None:
        """Nothing is kept for it."""

    def state(self) -> PolicyState:
        return {}
