"""fair_share: priority class, then queue heads that waited too long, then the tenant that uses the least of its quota.

Inside a tenant the order is priority class, then first come, first served. Aging counts only the time for which a job
was its tenant's queue head: a tenant does not gain on others by queueing ten thousand jobs.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from gpu_scheduler.checks import Finding, Holder
from gpu_scheduler.draft import Draft
from gpu_scheduler.model import Gang, Snapshot
from gpu_scheduler.policies.base import Policy, PolicyState, Round, Window


@dataclass(frozen=True, slots=True)
class FairShare(Policy):
    """Quota-weighted fair share with backfill; docs/scheduling.md states what it promises. Times are in seconds.

    starvation_timeout_s: how long later jobs can overtake a queue head, before slots are reserved for it. aging_s: a
    queue head rises by one priority class each time it has waited this long; 0: never.

    PolicyState: job id -> since when it is a queue head (the first job of its tenant that cannot start on a type).
    """

    name: ClassVar[str] = "fair_share"
    starvation_timeout_s: float = 300
    aging_s: float = 3600

    def begin(self, draft: Draft) -> FairShareRound:
        return FairShareRound(self, draft)

    def next_event_at(self, snapshot: Snapshot) -> datetime | None:
        """The end of a queue head's starvation timeout, its rise by a class, or the end of a promise."""
        now, changes = snapshot.now, list(snapshot.promised.values())
        for since in snapshot.policy_state.values():
            changes.append(since + timedelta(seconds=self.starvation_timeout_s))
            if self.aging_s > 0:
                classes = (now - since).total_seconds() // self.aging_s + 1
                changes.append(since + timedelta(seconds=classes * self.aging_s))
        return min((at for at in changes if at > now), default=None)

    def window(self, state: PolicyState) -> Window:
        return Window(frozenset(state), levels=("-priority",), queue=("tenant", "priority"))

    def dump(self, state: PolicyState) -> dict[str, Any]:
        return {job: since.isoformat() for job, since in state.items()}

    def load(self, stored: Mapping[str, Any]) -> PolicyState:
        return {job: datetime.fromisoformat(since) for job, since in stored.items()}


class FairShareRound(Round):
    """One plan by FairShare."""

    def __init__(self, policy: FairShare, draft: Draft) -> None:
        self._draft = draft
        self._now = draft.snapshot.now
        self._since: Mapping[str, datetime] = draft.state
        self._promised = {job for job, until in draft.snapshot.promised.items() if self._now < until}
        self._timeout = timedelta(seconds=policy.starvation_timeout_s)
        self._aging = timedelta(seconds=policy.aging_s)
        self._queues_with_head: set[tuple[str, str]] = set()
        self._marks: dict[str, datetime] = {}

    def order(self) -> Iterator[Gang]:
        """Gangs that slots are promised to, then by level. Inside a level, the tenants' order follows their shares as
        starts are counted. O(n log n)."""
        levels: defaultdict[int, list[Gang]] = defaultdict(list)
        promised = []
        for gang in self._draft.waiting:
            if gang.job in self._promised:
                promised.append(gang)
            else:
                levels[self._level(gang)].append(gang)
        yield from sorted(promised, key=lambda gang: (-self._level(gang), gang.queued_at, gang.job))
        for level in sorted(levels, reverse=True):
            yield from self._within_level(levels[level])

    def wait(self, gang: Gang, finding: Finding) -> None:
        """Note since when a queue head waits, and reserve slots for it once its starvation timeout is over."""
        if not finding.check.queues:
            return
        slot_type = finding.on.slot_type
        since = self._since.get(gang.job)
        queue = (gang.tenant, slot_type)
        if since is not None or queue not in self._queues_with_head:
            self._marks[gang.job] = since or self._now
        self._queues_with_head.add(queue)
        if self._must_start_next(gang):
            on_nodes = finding.holder is Holder.CLUSTER
            self._draft.reserve(gang, slot_type, finding.on.asked, on_nodes=on_nodes)

    def state(self) -> PolicyState:
        return self._marks

    def notes(self) -> Mapping[str, Mapping[str, Any]]:
        return {job: {"queue_head_since": _timestamp(since)} for job, since in self._marks.items()}

    def _must_start_next(self, gang: Gang) -> bool:
        """Others were stopped for this gang, or its starvation timeout is over."""
        since = self._since.get(gang.job)
        if since is not None and self._now - since >= self._timeout:
            return True
        return gang.job in self._promised

    def _level(self, gang: Gang) -> int:
        """The gang's priority class, raised by one for each whole aging time as a queue head."""
        since = self._since.get(gang.job)
        if since is None or since >= self._now or not self._aging:
            return gang.priority
        return gang.priority + (self._now - since) // self._aging

    def _within_level(self, gangs: list[Gang]) -> Iterator[Gang]:
        overdue, queues = [], defaultdict(list)
        for gang in gangs:
            if self._must_start_next(gang):
                overdue.append(gang)
            else:
                queues[gang.tenant].append(gang)
        overdue.sort(key=lambda gang: (self._since[gang.job], gang.queued_at, gang.job))
        yield from overdue

        share, heads = self._draft.ledger.dominant_share, []
        for tenant, queue in queues.items():
            # Last is next: popping from a list's end is cheap.
            queue.sort(key=_first_come, reverse=True)
            heads.append((share(tenant), queue[-1].queued_at, tenant))
        heapq.heapify(heads)
        while heads:
            _, _, tenant = heapq.heappop(heads)
            queue = queues[tenant]
            yield queue.pop()
            if queue:
                heapq.heappush(heads, (share(tenant), queue[-1].queued_at, tenant))


def _first_come(gang: Gang) -> tuple[int, datetime, str]:
    # A gang that rose by aging comes after the tenant's gangs whose own class is higher.
    return (-gang.priority, gang.queued_at, gang.job)


def _timestamp(at: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, as every time that leaves the platform."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
