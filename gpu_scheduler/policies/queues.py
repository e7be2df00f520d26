"""In which order the waiting gangs of several tenants, and of the projects in each of them, have their turns."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from gpu_scheduler.draft import Draft
from gpu_scheduler.model import Gang


def by_tenant(gangs: Iterable[Gang], share: Callable[[str], float], draft: Draft) -> Iterator[Gang]:
    """These gangs, which are sorted, by tenant: next is always the first gang of the tenant with the smallest share,
    which is asked again after each."""
    queues: defaultdict[str, deque[Gang] | _OfProjects] = defaultdict(deque)
    for tenant in draft.ledger.projects.tenants:
        queues[tenant] = _OfProjects(draft)
    for gang in gangs:
        queues[gang.tenant].append(gang)
    heads = [(share(tenant), queue[0].queued_at, tenant) for tenant, queue in queues.items() if queue]
    heapq.heapify(heads)
    while heads:
        tenant = heads[0][2]
        queue = queues[tenant]
        yield queue.popleft()
        if queue:
            heapq.heapreplace(heads, (share(tenant), queue[0].queued_at, tenant))
        else:
            heapq.heappop(heads)


class _OfProjects:
    """The gangs of one tenant, as a queue of which the first follows from what its projects use at the time: that of
    the project with the lowest rank, which is asked again only for the project that had the last turn."""

    def __init__(self, draft: Draft) -> None:
        self._projects, self._types = draft.ledger.projects, draft.gpu_types
        self._queues: defaultdict[str, deque[Gang]] = defaultdict(deque)
        self._heads: list[tuple[tuple[bool, float], tuple[int, datetime, str], str]] = []
        self._unranked: set[str] = set()
        self._left = 0

    def __bool__(self) -> bool:
        return self._left > 0

    def __getitem__(self, first: int) -> Gang:
        return self._queues[self._next()][first]

    def append(self, gang: Gang) -> None:
        """Before the first one is taken."""
        name = self._projects.account(gang, gang.slot_type or self._types[0]).name
        self._queues[name].append(gang)
        self._unranked.add(name)
        self._left += 1

    def popleft(self) -> Gang:
        name = self._next()
        heapq.heappop(self._heads)
        self._unranked.add(name)
        self._left -= 1
        return self._queues[name].popleft()

    def _next(self) -> str:
        """The project that has its turn. Nothing starts between the turns of two of a tenant's projects but the gang
        that had the first, so only its project's rank has changed."""
        for name in self._unranked:
            if queue := self._queues[name]:
                gang = queue[0]
                types = self._types if gang.slot_type is None else (gang.slot_type,)
                heapq.heappush(self._heads, (self._projects.rank(gang, types), first_come(gang), name))
        self._unranked.clear()
        return self._heads[0][2]


def first_come(gang: Gang) -> tuple[int, datetime, str]:
    """The order inside a tenant, or a project. A gang that rose by aging comes after the gangs whose own class is
    higher."""
    return (-gang.priority, gang.queued_at, gang.job)
