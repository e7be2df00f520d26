"""fair_share_history: fair_share, but whose turn it is also follows what tenants held recently.

fair_share knows only what is held now: a tenant that had the cluster for a week and lets go of it for a minute is equal
to one that had nothing. Here the past counts, half as much for each half-life that it is ago.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, ClassVar

from gpu_scheduler.draft import Draft
from gpu_scheduler.model import Gang, QuotaUse
from gpu_scheduler.policies.fair_share import FairShare, FairShareRound

HALF_LIFE_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class FairShareHistory(FairShare):
    """Between tenants the one comes first whose part of its quota, held now and recently, is the smallest."""

    name: ClassVar[str] = "fair_share_history"

    def begin(self, draft: Draft) -> FairShareHistoryRound:
        return FairShareHistoryRound(self, draft)

    def half_life_s(self) -> float | None:
        return HALF_LIFE_S


class FairShareHistoryRound(FairShareRound):
    """One plan by FairShareHistory."""

    def __init__(self, policy: FairShareHistory, draft: Draft) -> None:
        super().__init__(policy, draft)
        self._recently: defaultdict[str, float] = defaultdict(float)
        for quota in draft.snapshot.quotas:
            self._recently[quota.tenant] = max(self._recently[quota.tenant], _part(quota))

    def overdue_order(self, gang: Gang) -> tuple[Any, ...]:
        """By share here, too: otherwise tenants whose jobs wait longer than the timeout would have turns in turn.
        Aging still lifts each over the others in time."""
        return self.share(gang.tenant), *super().overdue_order(gang)

    def share(self, tenant: str) -> float:
        """What it holds now counts as much as what it held recently, so that one that had nothing does not get all."""
        return super().share(tenant) + self._recently.get(tenant, 0.0)


def _part(quota: QuotaUse) -> float:
    """0 without a quota: what it has given up is not held against it on other types."""
    return quota.used_recently / quota.limit if quota.limit else 0.0
