"""How many learners fit into each node, rack or block, while nodes are being filled."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping

from gpu_scheduler.model import Domain, Level, domain_at


class Domains:
    """The domains of one level. of: by node. nodes: the names in each. around: the smallest larger domain that each is
    in, () if none is known."""

    def __init__(self, level: Level, at: Mapping[str, Domain]) -> None:
        self.level = level
        self.of = {name: domain_at(level, inner) for name, inner in at.items()}
        self.nodes: defaultdict[Domain, list[str]] = defaultdict(list)
        for name, domain in self.of.items():
            self.nodes[domain].append(name)
        self.around = {
            domain: next((outer for each in level.larger if (outer := domain_at(each, domain)) != domain), ())
            for domain in self.nodes
        }


class Fitting:
    """How many learners of one size fit into each domain of one level, of nodes that offer only ever less.

    seen: how many changes of the nodes it knows; Rooms, which keeps it, counts them.
    """

    def __init__(self, domains: Domains, learners: Mapping[Domain, int]) -> None:
        self.learners = dict(learners)
        self.seen = 0
        self._domains = domains
        self._count = Counter(self.learners.values())
        self._most: int | None = None
        self._widest: tuple[Domain, int] | None = None
        self._heaps: defaultdict[int, dict[Domain, list[Domain]]] | None = None  # built by the first start

    def lower(self, fewer: Mapping[Domain, int]) -> None:
        """By domain, so many learners fewer fit."""
        for domain, by in fewer.items():
            if by:
                self._lower(domain, by)
        self._most = self._widest = None

    def _lower(self, domain: Domain, by: int) -> None:
        before = self.learners[domain]
        now = self.learners[domain] = before - by
        self._count[before] -= 1
        if not self._count[before]:
            del self._count[before]
        self._count[now] += 1
        if self._heaps is not None:
            around = self._domains.around[domain]
            heapq.heappush(self._heaps[now].setdefault(around, []), domain)
            heap = self._heaps[before][around]
            while heap and self.learners[heap[0]] != before:  # one below the top is dropped when it comes up
                heapq.heappop(heap)
            if not heap:
                del self._heaps[before][around]

    @property
    def most(self) -> int:
        """How many learners fit into the domain that holds the most. O(distinct numbers) once after each change."""
        if self._most is None:
            self._most = max(self._count, default=0)
        return self._most

    @property
    def widest(self) -> tuple[Domain, int]:
        """That domain, the last by name if there are several, and how many. O(domains) once after each change."""
        if self._widest is None:
            self._widest = max(self.learners.items(), key=lambda each: (each[1], each[0]), default=((), 0))
        return self._widest

    def tightest(self, least: int) -> tuple[int, list[tuple[Domain, Domain]]]:
        """The smallest number of learners, at least this, that fits into a domain; and by what is around them, the
        first by name of the domains with that number. Empty if none holds so many."""
        if self._heaps is None:
            self._heaps = defaultdict(dict)
            for domain in sorted(self.learners):  # in order, so each list is a heap from the start
                heaps = self._heaps[self.learners[domain]]
                heaps.setdefault(self._domains.around[domain], []).append(domain)
        fewest = min((learners for learners in self._count if learners >= least), default=0)
        if not fewest:
            return 0, []
        return fewest, [(around, heap[0]) for around, heap in self._heaps[fewest].items()]
