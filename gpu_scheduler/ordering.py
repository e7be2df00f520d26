"""Who is considered first: priority class, then heads that waited too long, then the least served tenant.

Inside a tenant the order is priority class, then first come, first served. Ageing counts only the time a job
stood at the head of its tenant's queue: a tenant cannot climb over others by queueing ten thousand jobs.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta

from gpu_scheduler.model import Gang, Snapshot
from gpu_scheduler.quota import Ledger


class Patience:
    """What having waited at the head means for a job: when slots are kept for it, and how far it climbs."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._now = snapshot.now
        self._since = snapshot.policy_state
        self._promised = snapshot.promised
        self._patience = timedelta(seconds=snapshot.policy.patience_s)
        self._aging = timedelta(seconds=snapshot.policy.aging_s)

    def since(self, gang: Gang) -> datetime | None:
        return self._since.get(gang.job)

    def is_promised(self, gang: Gang) -> bool:
        """Others were stopped for this job, and the time in which their slots are offered to it first is not over."""
        until = self._promised.get(gang.job)
        return until is not None and self._now < until

    def is_over(self, gang: Gang) -> bool:
        """Say whether slots are reserved for the job: others were stopped for it, or it waited at the head longer than
        others may overtake it."""
        if self._promised and self.is_promised(gang):
            return True
        since = self._since.get(gang.job)
        return since is not None and self._now - since >= self._patience

    def level(self, gang: Gang) -> int:
        """The job's priority class, raised by one for each whole ageing time at the head."""
        since = self._since.get(gang.job)
        if since is None or since >= self._now or not self._aging:
            return gang.priority
        return gang.priority + (self._now - since) // self._aging


def in_order(snapshot: Snapshot, ledger: Ledger, patience: Patience) -> Iterator[Gang]:
    """Yield every waiting gang once, in the order in which slots are offered.

    The consumer books a start in the ledger before it asks for the next gang: the tenants' order follows
    their shares as they grow. O(n log n).
    """
    levels: defaultdict[int, list[Gang]] = defaultdict(list)
    for gang in snapshot.waiting:
        if snapshot.promised and patience.is_promised(gang):
            yield gang
        else:
            levels[patience.level(gang)].append(gang)
    for level in sorted(levels, reverse=True):
        yield from _within_level(levels[level], ledger, patience)


def _within_level(gangs: list[Gang], ledger: Ledger, patience: Patience) -> Iterator[Gang]:
    overdue = [gang for gang in gangs if patience.is_over(gang)]
    overdue.sort(key=lambda gang: (patience.since(gang), gang.queued_at, gang.job))
    yield from overdue

    queues: defaultdict[str, list[Gang]] = defaultdict(list)
    for gang in gangs:
        if not patience.is_over(gang):
            queues[gang.tenant].append(gang)
    heads = []
    for tenant, queue in queues.items():
        # Last is next: popping from a list's end is cheap.
        queue.sort(key=_first_come, reverse=True)
        heads.append((ledger.dominant_share(tenant), queue[-1].queued_at, tenant))
    heapq.heapify(heads)
    while heads:
        _, _, tenant = heapq.heappop(heads)
        queue = queues[tenant]
        yield queue.pop()
        if queue:
            heapq.heappush(heads, (ledger.dominant_share(tenant), queue[-1].queued_at, tenant))


def _first_come(gang: Gang) -> tuple[int, datetime, str]:
    # A raised job stands behind the tenant's jobs whose own class is higher.
    return (-gang.priority, gang.queued_at, gang.job)
