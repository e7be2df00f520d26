"""What nodes offer in slots, CPUs and memory, and how many learners fit into that.

A learner's slots, CPUs and memory are taken together on its node; what a node does not report is not counted.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from copy import copy

from gpu_scheduler.domains import Domains, Fitting
from gpu_scheduler.model import UNCOUNTED, Domain, Level, Need, Room

SLOTS, CPUS, MEMORY = 0, 1, 2
"""Places in a Room."""
NO_ROOM: Room = (0, 0, 0)
ONE_SLOT: Room = (1, 0, 0)
SIZES_HELD = 8
"""Distinct sizes of learners for which the rooms that hold them are kept sorted."""
NEEDS_KNOWN = 64
"""Distinct sizes of learners for which the number that fits is kept up to date."""


def learners_in(room: Room, need: Room) -> int:
    """How many learners of this size fit."""
    slots, cpus, memory = need
    most = room[0] // slots
    if cpus and room[1] < most * cpus:
        most = room[1] // cpus
    if memory and room[2] < most * memory:
        most = room[2] // memory
    return most


def minus(room: Room, need: Room, times: int = 1) -> Room:
    """What is left; never less than nothing, also on a node that lost devices under its learners."""
    slots, cpus, memory = room[0] - need[0] * times, room[1], room[2]
    if cpus != UNCOUNTED:
        cpus = max(0, cpus - need[1] * times)
    if memory != UNCOUNTED:
        memory = max(0, memory - need[2] * times)
    return (slots if slots > 0 else 0, cpus, memory)


def none_of(room: Room) -> Room:
    """Nothing of what it counts."""
    return minus(room, room)


def times(need: Room, learners: int) -> Room:
    return need[0] * learners, need[1] * learners, need[2] * learners


def plus(room: Room, need: Room) -> Room:
    """What there is again when a learner leaves."""
    slots, cpus, memory = room
    cpus += 0 if cpus == UNCOUNTED else need[1]
    memory += 0 if memory == UNCOUNTED else need[2]
    return slots + need[0], cpus, memory


class Rooms:
    """What each node offers, and which nodes offer the same. It only decreases."""

    def __init__(self, of: Mapping[str, Room]) -> None:
        self.of = dict(of)
        self._count = Counter(of.values())
        self.total = sum(room[0] * count for room, count in self._count.items())
        self._heaps: defaultdict[Room, list[str]] | None = None  # most plans place little or nothing
        self._capacity: dict[Room, tuple[int, int]] = {}  # how many fit, after so many of _changes
        self._changes: list[tuple[str, Room, Room]] = []  # node, what it offered before and after
        self._most: dict[tuple[int, Room], int] = {}
        self._by_fit: dict[Need, Counter[int]] = {}
        self._holding: dict[Room, list[tuple[int, Room]]] = {}
        self._by_domain: dict[tuple[Level, Room], Fitting] = {}

    def copy(self) -> Rooms:
        """The same, to be lowered by itself."""
        found = copy(self)
        found.of, found._count, found._heaps = dict(self.of), self._count.copy(), None
        found._capacity, found._most, found._by_domain, found._by_fit = {}, {}, {}, {}
        found._holding, found._changes = {}, []
        return found

    def without(self, names: Collection[str]) -> Rooms:
        """The same without these nodes."""
        return Rooms({name: room for name, room in self.of.items() if name not in names})

    def only(self, names: Iterable[str]) -> Rooms:
        """The same of these nodes alone."""
        return Rooms({name: self.of[name] for name in names})

    def lower(self, name: str, to: Room) -> None:
        """Set what a node offers to less than before."""
        before = self.of[name]
        if to == before:
            return
        self.of[name] = to
        self.total += to[0] - before[0]
        self._count[before] -= 1
        is_last, is_new = not self._count[before], to not in self._count
        if is_last:
            del self._count[before]
        self._count[to] += 1
        if self._holding and (is_last or is_new):
            self._hold(before if is_last else None, to if is_new else None)
        if self._heaps is not None:
            heapq.heappush(self._heaps[to], name)
        self._most.clear()
        self._by_fit.clear()
        if self._capacity or self._by_domain:
            self._changes.append((name, before, to))

    def capacity(self, need: Room) -> int:
        """How many learners of this size fit. O(distinct rooms) once, then O(1) for each change since it was asked."""
        known, now = self._capacity.get(need), len(self._changes)
        if known is not None:
            fitting, seen = known
            if seen == now:
                return fitting
            for _, before, to in self._changes[seen:]:
                fitting += learners_in(to, need) - learners_in(before, need)
        else:
            if len(self._capacity) > NEEDS_KNOWN:
                self._capacity.clear()
            fitting = sum([count * learners_in(room, need) for room, count in self._count.items()])
        self._capacity[need] = fitting, now
        return fitting

    def by_domain(self, need: Room, domains: Domains) -> Fitting:
        """How many learners of this size fit into each domain of a level. O(nodes) once, then O(log nodes) for each
        domain that changed since it was asked: most sizes are asked for seldom, and gangs fill a domain at once."""
        known = self._by_domain.get((domains.level, need))
        if known is None:
            if len(self._by_domain) > NEEDS_KNOWN:
                self._by_domain.clear()
            fit = {room: learners_in(room, need) for room in self._count}
            learners: defaultdict[Domain, int] = defaultdict(int)
            for name, room in self.of.items():
                learners[domains.of[name]] += fit[room]
            known = self._by_domain[domains.level, need] = Fitting(domains, learners)
            known.seen = len(self._changes)
        elif known.seen < len(self._changes):
            lost: defaultdict[Domain, int] = defaultdict(int)
            for name, before, to in self._changes[known.seen :]:
                lost[domains.of[name]] += learners_in(before, need) - learners_in(to, need)
            known.lower(lost)
            known.seen = len(self._changes)
        return known

    def holding(self, need: Room) -> list[tuple[int, Room]]:
        """The distinct rooms in which at least one learner fits, with how many; those with the fewest first. Not to be
        changed."""
        found = self._holding.get(need)
        if found is None:
            if len(self._holding) >= SIZES_HELD:
                self._holding.clear()
            fitting = [(learners_in(room, need), room) for room in self._count]
            found = self._holding[need] = sorted([each for each in fitting if each[0]])
        return found

    def _hold(self, gone: Room | None, new: Room | None) -> None:
        """Keep what ``holding`` said up to date: no node offers the one room any longer, one offers the other now."""
        for need, rooms in self._holding.items():
            if gone is not None and (fit := learners_in(gone, need)):
                del rooms[bisect_left(rooms, (fit, gone))]
            if new is not None and (fit := learners_in(new, need)):
                insort(rooms, (fit, new))

    def by_fit(self, need: Need) -> Counter[int]:
        """How many nodes hold how many learners of this size; not to be changed."""
        found = self._by_fit.get(need)
        if found is None:
            found = self._by_fit[need] = Counter()
            for room, nodes in self._count.items():
                found[learners_in(room, need)] += nodes
        return found

    def pop(self, room: Room) -> str | None:
        """Hand out the first node by name that offers exactly this; the caller must lower it."""
        if self._heaps is None:
            self._heaps = defaultdict(list)
            for name in sorted(self.of):  # in order, so each list is a heap from the start
                self._heaps[self.of[name]].append(name)
        names = self._heaps[room]
        while names:
            name = heapq.heappop(names)
            # An entry outlives its node's change; it is dropped when it comes up.
            if self.of[name] == room:
                return name
        return None

    def distinct(self) -> Iterable[Room]:
        """Each room that some node offers, once."""
        return self._count.keys()

    def most(self, resource: int, need: Room = NO_ROOM) -> int:
        """The most that one node offers of a resource (its index in a Room), of the nodes that offer the need."""
        found = self._most.get((resource, need))
        if found is None:
            fitting = self._count if need == NO_ROOM else [room for _, room in self.holding(need)]
            found = max([room[resource] for room in fitting], default=0)
            self._most[resource, need] = found
        return found
