"""With how many learners a resized run comes back, where jobs came to wait while it halted and started again."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpu_scheduler.draft import Draft
from gpu_scheduler.model import CPU_TYPE, Gang
from gpu_scheduler.placement import Pool
from gpu_scheduler.policies.ahead import Limits
from gpu_scheduler.rooms import minus

LOOKED_AT = 16
"""Waiting jobs, the first ones, that a run makes room for: each takes several trials. And other runs that come back in
the same plan, with more of which none makes room."""


class Returning:
    """One run that starts again. It was to have ``most`` learners; jobs that start beside it if it has fewer would have
    it shrink as soon as it may, at the cost of another halt and start: so it makes room for them now."""

    def __init__(self, draft: Draft, gang: Gang, slot_type: str) -> None:
        self._draft, self._gang, self._slot_type = draft, gang, slot_type
        self._pool: Pool = draft.pools[slot_type]
        self._ledger = draft.ledger.of_type(slot_type)
        self._limits = Limits(draft, self._ledger, slot_type)

    def size(
        self,
        most: int,
        waiting: Iterable[Gang],
        order: Callable[[Gang], tuple[Any, ...]],
        others: Iterable[Gang] = (),
    ) -> int:
        """Of so many learners, the most with which the first of these start that can, in this order; never fewer than
        its fewest. Jobs that would borrow are not among them: what they borrow may be used until they have it.

        others: further resized runs that start again after it, each with its fewest learners at least.
        """
        least, need = self._gang.learners.min, self._pool.need(self._gang)
        size = min(most, self._pool.capacity(self._pool.unreserved, self._gang, need))
        beside = [gang for gang in others if gang.slot_type == self._slot_type]
        if len(beside) > LOOKED_AT:  # each trial places all of these
            return max(least, size)
        for gang in heapq.nsmallest(LOOKED_AT, filter(self._may_start, waiting), key=order):
            with_it = [*beside, gang]
            if self._fits(size, with_it):
                beside = with_it
            elif size > least and self._fits(least, with_it):
                size, beside = self._largest(least, size, with_it), with_it
        return max(least, size)

    def _may_start(self, gang: Gang) -> bool:
        on_type = gang.slot_type == self._slot_type or (
            gang.slot_type is None and self._slot_type != CPU_TYPE
        )
        return (
            on_type
            and gang.job != self._gang.job
            and gang.asked + self._gang.asked <= self._pool.unreserved.total
            and not self._borrows(gang)
        )

    def _borrows(self, gang: Gang) -> bool:
        return self._ledger.account(gang.tenant, self._slot_type).borrows(gang.asked)

    def _largest(self, low: int, high: int, beside: Sequence[Gang]) -> int:
        """low fits beside these, high does not."""
        while high - low > 1:
            middle = (low + high) // 2
            if self._fits(middle, beside):
                low = middle
            else:
                high = middle
        return low

    def _fits(self, size: int, beside: Sequence[Gang]) -> bool:
        """Whether it starts with so many learners and all of these do, after it, on nodes and in all limits."""
        rooms = self._pool.unreserved.copy()
        taken: list[Gang] = []
        try:
            for gang in (self._gang.resized(learners=size), *beside):
                need = self._pool.need(gang)
                if self._pool.capacity(rooms, gang, need) < gang.learners.min:
                    return False
                if not self._limits.allow(gang):
                    return False
                if gang.target is None and self._borrows(gang):  # with what those before it have taken
                    return False
                self._ledger.take(gang, self._slot_type, gang.asked)
                taken.append(gang)
                for name, learners in self._pool.choose(gang, rooms):
                    rooms.lower(name, minus(rooms.of[name], need, learners))
            return True
        finally:
            for gang in taken:
                self._ledger.release(gang, self._slot_type, gang.asked)
