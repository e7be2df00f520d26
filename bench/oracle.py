"""A policy that knows the future, to compare with: no installation can choose it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from gpu_scheduler.draft import Draft
from gpu_scheduler.model import Gang
from gpu_scheduler.policies.fifo import FifoBackfill, FifoBackfillRound


@dataclass(frozen=True)
class ShortestFirst(FifoBackfill):
    """The shortest job first, by lengths (job -> seconds) that are unknown in practice; backfill as fifo_backfill."""

    name: ClassVar[str] = "shortest_first"
    lengths: Mapping[str, float]

    def begin(self, draft: Draft) -> ShortestFirstRound:
        return ShortestFirstRound(draft, self.lengths)


class ShortestFirstRound(FifoBackfillRound):
    """One plan by ShortestFirst."""

    def __init__(self, draft: Draft, lengths: Mapping[str, float]) -> None:
        super().__init__(draft)
        self._lengths = lengths

    def queue(self) -> Iterator[Gang]:
        yield from sorted(self._draft.waiting, key=lambda gang: (self._lengths[gang.job], gang.job))
