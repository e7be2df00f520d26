"""All learners of a gang onto the nodes of one slot type, or none.

A pool is every node of one type. Slots that are reserved for one gang are taken out of what other gangs can use, node
by node; everything else about a pool is counting.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime

from gpu_scheduler.model import NOTHING, Gang, Node, PlacementStrategy, Running


class Slots:
    """How many slots each node offers, and which nodes offer how many. Counts only decrease."""

    def __init__(self, of: Mapping[str, int]) -> None:
        self.of = dict(of)
        self.total = sum(of.values())
        self._count = Counter(of.values())
        self._heaps: defaultdict[int, list[str]] | None = None  # most plans place little or nothing
        self._capacity: dict[int, int] = {}

    def lower(self, name: str, to: int) -> None:
        """Set a node's slots to fewer than before."""
        before = self.of[name]
        if to == before:
            return
        self.of[name] = to
        self.total += to - before
        self._count[before] -= 1
        self._count[to] += 1
        if self._heaps is not None:
            heapq.heappush(self._heaps[to], name)
        self._capacity.clear()

    def capacity(self, slots: int) -> int:
        """How many learners of this size fit. O(distinct sizes), remembered until something changes."""
        known = self._capacity.get(slots)
        if known is None:
            known = sum(count * (size // slots) for size, count in self._count.items())
            self._capacity[slots] = known
        return known

    def sizes(self, least: int) -> list[int]:
        """The numbers of slots, from least on, that some node offers; ascending."""
        return sorted(size for size, count in self._count.items() if count and size >= least)

    def pop(self, size: int) -> str | None:
        """Hand out the first node by name that offers exactly this many; the caller must lower it."""
        if self._heaps is None:
            self._heaps = defaultdict(list)
            for name in sorted(self.of):  # in order, so each list is a heap from the start
                self._heaps[self.of[name]].append(name)
        names = self._heaps[size]
        while names:
            name = heapq.heappop(names)
            # An entry outlives its node's change; it is dropped when it comes up.
            if self.of[name] == size:
                return name
        return None

    @property
    def largest(self) -> int:
        return max((size for size, count in self._count.items() if count), default=0)


class Pool:
    """The nodes of one slot type while a plan is being made. Nodes that are not ready take nothing new.

    free: slots that nothing runs on. unreserved: free slots that no gang has reserved. reserved_for: the gang that has.
    reserved_until: when all its slots will be free, so that it starts; None unless every run on them has a known end.
    """

    def __init__(
        self, slot_type: str, nodes: Iterable[Node], running: Iterable[Running], now: datetime
    ) -> None:
        self.slot_type = slot_type
        nodes = list(nodes)
        self._ready = {node.name: node.slots for node in nodes if node.takes_learners(now)}
        self._empty = Slots({node.name: node.slots for node in nodes})
        self._most_learners: dict[int, int] = {}  # by slots per learner, on the empty nodes
        self._empty_ready = Slots(self._ready)
        self.total = self._empty_ready.total
        self.nodes_down = len(nodes) - len(self._ready)
        self.largest_node = self._empty.largest
        self._running = list(running)
        free = dict(self._ready)
        for node in [node for node in nodes if node.used_by_others is not NOTHING]:
            if node.name in free:
                free[node.name] = max(0, free[node.name] - node.used_by_others.slots(slot_type))
        for run in self._running:
            slots = run.gang.slots
            for name in run.nodes:
                if name in free:
                    left = free[name] - slots
                    free[name] = (
                        left if left > 0 else 0
                    )  # below zero if a node lost devices under its learners
        self.free = Slots(free)
        self.unreserved = Slots(free)
        self.reserved_for: Gang | None = None
        self.reserved_until: datetime | None = None
        self._reserved: dict[str, int] = {}

    def could_hold(self, gang: Gang) -> bool:
        """Say whether the gang would fit if every node of the type were up and empty."""
        most = self._most_learners.get(gang.slots)
        if most is None:
            most = self._most_learners[gang.slots] = self._empty.capacity(gang.slots)
        return most >= gang.learners.min

    def up_could_hold(self, gang: Gang) -> bool:
        """Say whether the gang would fit if the nodes that are up were empty."""
        return self._empty_ready.capacity(gang.slots) >= gang.learners.min

    def reserved_free(self) -> int:
        """Slots that are free and reserved."""
        return self.free.total - self.unreserved.total

    def fits(self, gang: Gang, now: datetime) -> bool:
        """Say whether the gang can start now: on unreserved slots, or on reserved ones because it ends soon enough."""
        if self.unreserved.capacity(gang.slots) >= gang.learners.min:
            return True
        return self._ends_in_time(gang, now) and self.free.capacity(gang.slots) >= gang.learners.min

    def place(self, gang: Gang) -> tuple[str, ...]:
        """Choose a node per rank and take the slots of a gang that ``fits``.

        PACK: fewest nodes, the last one the tightest that fits. SPREAD: as many nodes as possible, the freest
        first. Ties go by name.
        """
        offer = self.unreserved
        if offer.capacity(gang.slots) < gang.learners.min:
            offer = Slots(self.free.of)
        choose = _pack if gang.strategy is PlacementStrategy.PACK else _spread
        chosen = choose(offer, gang.learners.min, gang.slots)
        for name, learners in chosen:
            left = self.free.of[name] - learners * gang.slots
            self.free.lower(name, left)
            self.unreserved.lower(name, max(0, left - self._reserved.get(name, 0)))
        return tuple(name for name, learners in chosen for _ in range(learners))

    def reserve_for(self, gang: Gang) -> bool:
        """Reserve the nodes on which the gang can start soonest; False if the pool has a reservation already.

        Without known run times, those are the nodes that lack the fewest slots. What is free there stays free, so
        what is lacking only shrinks from plan to plan: the gang starts at the latest when the learners that run there
        now have ended, whatever else arrives.
        """
        if self.reserved_for is not None or not self.up_could_hold(gang):
            return False
        learners, slots, free, lacking = gang.learners.min, gang.slots, self.free.of, []
        for name, size in self._ready.items():
            for nth in range(1, min(learners, size // slots) + 1):
                missing = nth * slots - free[name]
                lacking.append((0 if missing < 0 else slots if missing > slots else missing, name, nth))
        for _, name, _ in heapq.nsmallest(learners, lacking):
            self._reserved[name] = self._reserved.get(name, 0) + slots
        for name, reserved in self._reserved.items():
            self.unreserved.lower(name, max(0, self.free.of[name] - reserved))
        self.reserved_for = gang
        self.reserved_until = self._all_reserved_free_at()
        return True

    def _ends_in_time(self, gang: Gang, now: datetime) -> bool:
        """Say whether the gang has certainly ended before the one with the reservation can start."""
        if self.reserved_until is None or gang.runs_at_most_s is None:
            return False
        return gang.runs_at_most_s <= (self.reserved_until - now).total_seconds()

    def _all_reserved_free_at(self) -> datetime | None:
        """When the reserved slots will all be free; None unless every run on them has a known end."""
        ends: defaultdict[str, list[tuple[datetime, int]]] = defaultdict(list)
        for run in self._running:
            for name in run.nodes:
                if name in self._reserved and run.ends_by is not None:
                    ends[name].append((run.ends_by, run.gang.slots))
        latest: datetime | None = None
        for name, reserved in self._reserved.items():
            missing = reserved - self.free.of[name]
            for end, slots in sorted(ends[name]):
                if missing <= 0:
                    break
                missing -= slots
                latest = end if latest is None else max(latest, end)
            if missing > 0:
                return None
        return latest


def _pack(offer: Slots, learners: int, slots: int) -> list[tuple[str, int]]:
    """Fewest nodes: whole large ones first, then the tightest that takes the rest. offer holds enough."""
    chosen = []
    left = learners
    sizes = offer.sizes(slots)
    while left:
        size = next((size for size in sizes if size // slots >= left), sizes[-1])
        name = offer.pop(size)
        if name is None:
            sizes.remove(size)
            continue
        taken = min(left, size // slots)
        chosen.append((name, taken))
        left -= taken
    return chosen


def _spread(offer: Slots, learners: int, slots: int) -> list[tuple[str, int]]:
    """Most nodes: one learner on each of the freest; if there are too few nodes, round after round."""
    capacities: list[tuple[str, int]] = []
    for size in reversed(offer.sizes(slots)):
        while len(capacities) < learners and (name := offer.pop(size)) is not None:
            capacities.append((name, size // slots))
    given = [0] * len(capacities)
    left = learners
    while left:
        for index, (_, capacity) in enumerate(capacities):
            if left and given[index] < capacity:
                given[index] += 1
                left -= 1
    return [(name, count) for (name, _), count in zip(capacities, given, strict=True)]
