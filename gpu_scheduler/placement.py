"""All learners of a gang onto the nodes of one slot type, or none.

A pool is every node of one type. Slots that are reserved for one gang are taken out of what other gangs can use, node
by node; everything else about a pool is counting.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from gpu_scheduler.domains import Domains, Fitting
from gpu_scheduler.model import (
    LEVELS,
    NOTHING,
    UNCOUNTED,
    Domain,
    Gang,
    Level,
    Need,
    Node,
    PlacementStrategy,
    Room,
    Running,
    need_of,
)
from gpu_scheduler.places import Place, known_end, places, soonest
from gpu_scheduler.rooms import (
    MEMORY,
    NO_ROOM,
    ONE_SLOT,
    SLOTS,
    Rooms,
    learners_in,
    minus,
    none_of,
    plus,
    times,
)


class Pool:
    """The nodes of one slot type while a plan is being made. Nodes that are not ready take nothing new.

    idle: what is free if none of our learners runs. free: what nothing runs on. unreserved: what is free and no gang
    has reserved. reserved_for: the gang that has. reserved_until: when all of it will be free, so that it starts; None
    unless every run on it has a known end in sight, and if runs leave for it by order. passable: what is free for gangs
    that end before that: all but what other gangs have reserved since, for which runs leave by order.
    avoided: nodes that take learners only if these fit on no others.
    withheld: free slots that are offered to no gang of this plan.
    counts_cpus, counts_memory: a node reports them. only_slots: none does, so whether slots fit is whether learners do;
    plans ask that a lot.
    """

    def __init__(
        self, slot_type: str, nodes: Iterable[Node], running: Iterable[Running], now: datetime
    ) -> None:
        self.slot_type = slot_type
        nodes = list(nodes)
        self._now = now
        self._ready = {node.name: node.room for node in nodes if node.takes_learners}
        self._empty = Rooms({node.name: node.room for node in nodes})
        self._empty_ready = self._empty if len(self._ready) == len(nodes) else Rooms(self._ready)
        rooms = self._empty.distinct()
        self.counts_cpus = any(room[1] != UNCOUNTED for room in rooms)
        self.counts_memory = any(room[2] != UNCOUNTED for room in rooms)
        self._per_learner = _largest([node for node in nodes if node.per_learner is not NOTHING], slot_type)
        self._adds_nothing = self._per_learner == NO_ROOM
        self.only_slots = self._adds_nothing and not (self.counts_cpus or self.counts_memory)
        self._needs: dict[Need, Need] = {}
        self._most_learners: dict[int | Need, int] = {}  # by slots or need per learner, on the empty nodes
        self._most_in_one: dict[tuple[Level, Need], int] = {}  # domain of a level, on the empty nodes
        self._domains: dict[Level, Domains] = {}
        self._at = {node.name: node.domain for node in nodes}
        self.avoided = frozenset(node.name for node in nodes if node.avoid_until and node.is_avoided(now))
        self.total = self._empty_ready.total
        self.nodes_down = len(nodes) - len(self._ready)
        self.largest_node = self._empty.most(SLOTS)
        self._running = list(running)
        free = dict(self._ready)
        shared = [node for node in nodes if node.used_by_others is not NOTHING and node.name in free]
        for node in shared:
            free[node.name] = minus(free[node.name], node.used_by_others.needed(slot_type))
        self.idle = Rooms(free) if shared else self._empty_ready
        for run in self._running:
            need = self.need(run.gang)
            for name in run.nodes:
                if name in free:
                    free[name] = minus(free[name], need)
        for node in nodes:
            if node.full and node.name in free:
                free[node.name] = none_of(free[node.name])
        self.free = Rooms(free)
        # One object until something is reserved: most plans then count each start once.
        self.unreserved = self.passable = self.free
        self.withheld = 0
        self.reserved_for: Gang | None = None
        self.reserved_until: datetime | None = None
        self._reserved: dict[str, Room] = {}
        self._awaited: dict[str, Room] = {}  # the part of it that gangs may not pass, beside reserved_until
        self._kept: frozenset[str] = frozenset()
        self._numbers: tuple[tuple[int, int], dict[str, int]] | None = None

    def need(self, gang: Gang) -> Need:
        """What one of its learners takes of a node."""
        if self._adds_nothing:
            return gang.need
        found = self._needs.get(gang.need)
        if found is None:
            slots, cpus, memory = (one + more for one, more in zip(gang.need, self._per_learner, strict=True))
            found = self._needs[gang.need] = need_of(slots, cpus, memory)
        return found

    def could_hold_slots(self, gang: Gang) -> bool:
        """Say whether its slots would fit if every node of the type were up and empty."""
        most = self._most_learners.get(gang.slots)
        if most is None:
            most = self._most_learners[gang.slots] = self._empty.capacity((gang.slots, 0, 0))
        return most >= gang.learners.min

    def could_hold(self, gang: Gang) -> bool:
        """Say whether the gang would fit if every node of the type were up and empty."""
        most = self._most_learners.get(gang.need)
        if most is None:
            most = self._most_learners[gang.need] = self._empty.capacity(self.need(gang))
        return most >= gang.learners.min

    def up_could_hold(self, gang: Gang) -> bool:
        """Say whether the gang would fit if the nodes that are up were empty."""
        return self.most_up(gang) >= gang.learners.min

    def most_up(self, gang: Gang) -> int:
        """How many of its learners would fit if the nodes that are up were empty."""
        return self.capacity(self._empty_ready, gang, self.need(gang))

    def per_node(self, gang: Gang) -> int:
        """How many of its learners the largest node has slots for, at least one."""
        return max(1, self.largest_node // gang.slots)

    def domains(self, level: Level) -> Mapping[str, Domain]:
        """Which domain of this level each node is in."""
        return self._domains_of(level).of

    def _domains_of(self, level: Level) -> Domains:
        found = self._domains.get(level)
        if found is None:
            found = self._domains[level] = Domains(level, self._at)
        return found

    def knows(self, level: Level) -> bool:
        """Say whether the domain of this level is known of any node."""
        part = {Level.BLOCK: 0, Level.RACK: 1, Level.NODE: 2}[level]
        return any(inner[part] for inner in self._at.values())

    def span(self, nodes: Collection[str]) -> int:
        """The place in LEVELS of the smallest domain that all these nodes are in; beyond them if there is none."""
        for number, level in enumerate(LEVELS):
            of = self._domains_of(level).of
            if len({of[name] for name in nodes}) == 1:
                return number
        return len(LEVELS)

    def capacity(self, offer: Rooms, gang: Gang, need: Room) -> int:
        """How many of its learners can be on these nodes at once: in one domain, if it requires that."""
        level = gang.required_level
        if level is None:
            return offer.capacity(need)
        return offer.by_domain(need, self._domains_of(level)).most

    def most_in_one(self, gang: Gang, level: Level, *, empty: bool = False) -> int:
        """How many of its learners fit into one domain of a level now, or with empty if nothing ran."""
        if not empty:
            return self._fitting(gang, level, empty=False).most
        known = self._most_in_one.get((level, gang.need))  # asked for each job that requires a domain
        if known is None:
            known = self._most_in_one[level, gang.need] = self._fitting(gang, level, empty=True).most
        return known

    def widest(self, gang: Gang, level: Level, *, empty: bool = False) -> tuple[Domain, int]:
        """The domain of a level into which most of its learners fit now, or with empty if nothing ran, and how many."""
        return self._fitting(gang, level, empty=empty).widest

    def _fitting(self, gang: Gang, level: Level, *, empty: bool) -> Fitting:
        offer = self._empty if empty else self.free
        return offer.by_domain(self.need(gang), self._domains_of(level))

    def free_in(self, level: Level, domain: Domain) -> int:
        """Free slots in this domain."""
        return self.free.by_domain(ONE_SLOT, self._domains_of(level)).learners.get(domain, 0)

    def learners_fitting(self, gang: Gang) -> int:
        """How many of its learners fit into what is free."""
        return self.free.capacity(gang.need if self._adds_nothing else self.need(gang))

    def slots_fit(self, gang: Gang) -> bool:
        """Say whether the free slots lie on nodes so that each learner's fit whole, whatever else it needs."""
        return self.free.capacity((gang.slots, 0, 0)) >= gang.learners.min

    def shortage(self, gang: Gang, resource: int, *, empty: bool = False) -> Shortage | None:
        """What the gang lacks of CPUs or of memory beside what comes before that in a Room; None: nothing.

        Of what is free now, or with empty, of what the nodes have.
        """
        slots, cpus, memory = self.need(gang)
        before, need = (slots, 0, 0), (slots, cpus, 0)
        if resource == MEMORY:
            before, need = need, (slots, cpus, memory)
        offer = self._empty if empty else self.free
        fitting = offer.capacity(need)
        if fitting >= gang.learners.min:
            return None
        requested = gang.need[resource]
        more = need[resource] - requested if requested else 0
        least = gang.learners.min
        by_others = not empty and self.idle.capacity(need) < least <= self._empty_ready.capacity(need)
        return Shortage(
            requested or need[resource], max(0, offer.most(resource, before) - more), fitting, by_others
        )

    def reserved_free(self) -> int:
        """Slots that are free and reserved."""
        return self.free.total - self.unreserved.total

    def numbers(self) -> Mapping[str, int]:
        """Its slots as explanations show them. Counted once for all jobs that wait after the last start."""
        state = self.free.total, self.unreserved.total
        if self._numbers is None or self._numbers[0] != state:
            self._numbers = (
                state,
                {
                    "free": self.free.total,
                    "total": self.total,
                    "reserved": self.reserved_free(),
                    "largest_block": self.free.most(SLOTS),
                    "largest_node": self.largest_node,
                    "nodes_down": self.nodes_down,
                },
            )
        return self._numbers[1]

    def fits(self, gang: Gang, now: datetime) -> bool:
        """Say whether the gang can start now: on unreserved slots, or on reserved ones because it ends soon enough."""
        need = gang.need if self._adds_nothing else self.need(gang)
        if self.capacity(self.unreserved, gang, need) >= gang.learners.min:
            return True
        return self._ends_in_time(gang, now) and self.capacity(self.passable, gang, need) >= gang.learners.min

    def fits_on_free(self, gang: Gang, need: Room) -> bool:
        """Say whether the gang fits into what is free, reserved or not."""
        return self.capacity(self.free, gang, need) >= gang.learners.min

    def place(self, gang: Gang) -> tuple[str, ...]:
        """Choose a node per rank and take the slots of a gang that ``fits``.

        PACK: fewest nodes, the last one the tightest that fits. SPREAD: as many nodes as possible, the freest
        first. Ties go by name. Nodes that are avoided are used only if the gang does not fit on the others. Of a gang
        with a topology, all of that counts inside the domain that _domain_for chooses.
        """
        need, offer, least = self.need(gang), self.unreserved, gang.learners.min
        if self.capacity(offer, gang, need) < least:
            offer = self.passable.copy()
        chosen = self.choose(gang, offer)
        for name, learners in chosen:
            left = minus(self.free.of[name], need, learners)
            self.free.lower(name, left)
            if self.unreserved is not self.free:
                self.unreserved.lower(name, minus(left, self._reserved.get(name, NO_ROOM)))
            if self.passable is not self.free:
                self.passable.lower(name, minus(left, self._awaited.get(name, NO_ROOM)))
        return tuple(name for name, learners in chosen for _ in range(learners))

    def choose(self, gang: Gang, offer: Rooms) -> list[tuple[str, int]]:
        """How many of its fewest learners go to which of these nodes, which hold them."""
        need, least = self.need(gang), gang.learners.min
        if self.avoided and self.capacity(others := offer.without(self.avoided), gang, need) >= least:
            offer = others
        if gang.topology is not None and (names := self._domain_for(gang, need, offer)):
            offer = offer.only(names)
        chosen = _pack if gang.strategy is PlacementStrategy.PACK else _spread
        return chosen(offer, least, need)

    def nodes_for(self, run: Running, sizes: Iterable[int]) -> dict[int, int]:
        """By number of learners: over how many nodes this run's would be laid if it started again and nothing else
        changed. Of sizes that do not fit: over how many empty nodes of the largest kind."""
        gang = run.gang
        need, offer = self.need(gang), self.unreserved
        nodes = offer.by_fit(need).copy()
        for name, learners in Counter(run.nodes).items():
            if name in offer.of:
                fit = learners_in(offer.of[name], need)
                nodes[fit] -= 1
                nodes[fit + learners] += 1
        fits = sorted((fit for fit in nodes if fit and nodes[fit] > 0), reverse=True)
        spread = gang.strategy is PlacementStrategy.SPREAD
        whole = self.per_node(gang)
        found = {}
        for size in sizes:
            left, used = size, 0
            for fit in fits:
                more = min(nodes[fit], left if spread else -(-left // fit))
                left, used = left - more * (1 if spread else fit), used + more
                if left <= 0:
                    break
            found[size] = used if left <= 0 else -(-size // whole)
        return found

    def fitting_beside(self, run: Running, offer: Rooms) -> int:
        """How many learners it can have on these nodes beside those that it has. If it requires a domain: in the one
        where it is, or in another one that holds all of them."""
        need, level = self.need(run.gang), run.gang.required_level
        if level is None:
            return offer.capacity(need)
        fitting = offer.by_domain(need, self._domains_of(level))
        return max(0, fitting.learners.get(self._domain_of(run, level), 0), fitting.most - len(run.nodes))

    def names_beside(self, run: Running, offer: Rooms, learners: int) -> Iterable[str] | None:
        """The nodes among which so many learners of a run that ``fitting_beside`` are; None: any."""
        level = run.gang.required_level
        if level is None:
            return None
        domains, domain = self._domains_of(level), self._domain_of(run, level)
        fitting = offer.by_domain(self.need(run.gang), domains)
        if fitting.learners.get(domain, 0) < learners:
            domain, _ = fitting.widest
        return domains.nodes[domain]

    def _domain_of(self, run: Running, level: Level) -> Domain:
        """The domain in which all its learners are; () if that left the cluster."""
        of = self._domains_of(level).of
        return next((of[name] for name in run.nodes if name in of), ())

    def _domain_for(self, gang: Gang, need: Room, offer: Rooms) -> list[str]:
        """The nodes of the smallest domain that holds all its learners; none if none of a level that counts does.

        PACK looks at the smallest level first, SPREAD at its own, and both at larger ones if its own is not required.
        Of a level's domains the one is taken in which the least is left, then in whose rack and in whose block: that
        keeps large domains whole for gangs that need them.
        """
        assert gang.topology is not None
        own = LEVELS.index(gang.topology.level)
        first = 0 if gang.strategy is PlacementStrategy.PACK else own
        last = own if gang.topology.required else len(LEVELS) - 1
        for level in LEVELS[first : last + 1]:
            domains = self._domains_of(level)
            fewest, tied = offer.by_domain(need, domains).tightest(gang.learners.min)
            for larger in level.larger if len(tied) > 1 else ():
                outer = self._domains_of(larger)
                learners = offer.by_domain(need, outer).learners
                # Around a domain of which no such larger one is known, as little is left as in it itself.
                left = [learners.get(around, fewest) for around, _ in tied]
                fewest = min(left)
                tied = [
                    (outer.around.get(around, around), domain)
                    for (around, domain), learners_left in zip(tied, left, strict=True)
                    if learners_left == fewest
                ]
            if tied:
                chosen = min(domain for _, domain in tied)
                return [name for name in domains.nodes[chosen] if name in offer.of]
        return []

    def reserve_for(self, gang: Gang, *, all_nodes: bool = False) -> bool:
        """Reserve the nodes on which the gang can start soonest; False if the pool has a reservation already.

        all_nodes: every node, until the gang has started.

        Without known run times, those are the nodes that lack the least, of one domain if it requires that. What is
        free there stays free, but for what ends in time, so what is lacking only shrinks from plan to plan: the gang
        starts at the latest when the learners that run there now have ended, whatever else arrives.
        """
        if self.reserved_for is not None or not self.up_could_hold(gang):
            return False
        if all_nodes:
            self._reserve(gang, self._ready)
            return True
        # What programs of others hold may never be free: it counts as theirs, unless the gang then fits nowhere.
        holds = self.capacity(self.idle, gang, self.need(gang)) >= gang.learners.min
        chosen = self._soonest(gang, self.idle.of if holds else self._ready)
        self.reserve_nodes(gang, chosen)
        self.reserved_until = self._all_free_at(self._reserved)
        self._kept = frozenset(chosen)
        return True

    def _soonest(self, gang: Gang, offered: Mapping[str, Room]) -> Counter[str]:
        """How many of its learners go where. offered: what there would be if none of our learners ran.

        The fewest wait for runs whose end is not known; then all are free the soonest; then the least is lacking now.
        So what starts there because it ends in time changes nothing: a reservation moves only to be free sooner.
        """
        learners, need = gang.learners.min, self.need(gang)
        level = gang.required_level
        domains = self.domains(level) if level is not None else {}
        ends = self._known_ends()
        by_domain: defaultdict[Domain, list[Place]] = defaultdict(list)
        for name, room in offered.items():
            most = min(learners, room[0] // need[0] if self.only_slots else learners_in(room, need))
            by_domain[domains.get(name, ())] += places(
                name, self.free.of[name], need, most, ends.get(name, ()), avoided=name in self.avoided
            )
        return Counter(place.node for place in soonest(by_domain.values(), learners))

    def _known_ends(self) -> Mapping[str, list[tuple[datetime, Need]]]:
        """By node, when what of it is certainly released, as far as that is in sight."""
        ends: defaultdict[str, list[tuple[datetime, Need]]] = defaultdict(list)
        for run in self._running:
            if (end := known_end(run, self._now)) is not None:
                for name in run.nodes:
                    ends[name].append((end, self.need(run.gang)))
        return ends

    @property
    def reserved_nodes(self) -> Collection[str]:
        """Those of which a gang has reserved anything."""
        return self._reserved.keys()

    def withhold(self, nodes: Collection[str]) -> None:
        """Offer nothing of these nodes, before anything is reserved or placed."""
        mine = [name for name in nodes if name in self.free.of]
        if not mine:
            return
        before = self.free.total
        self.free = self.unreserved = self.passable = self.free.copy()
        for name in mine:
            self.free.lower(name, NO_ROOM)
        self.withheld += before - self.free.total

    def withhold_beside(self, run: Running, learners: int) -> None:
        """Offer to no gang of this plan what so many more learners of a run will take, as far as it is free: on its own
        nodes first. Of one that requires a domain and finds too little in its own: what all of them will take in
        another one. Before anything is reserved or placed."""
        before, need = self.free.total, self.need(run.gang)
        self.free = self.unreserved = self.passable = self.free.copy()
        names = self.names_beside(run, self.free, learners)
        if names is not None and set(names).isdisjoint(run.nodes):
            learners += sum(name in self.free.of for name in run.nodes)
        offer = self.free.copy() if names is None else self.free.only(set(names) & self.free.of.keys())
        for name in sorted(set(run.nodes) & offer.of.keys()):
            more = min(learners, learners_in(offer.of[name], need))
            offer.lower(name, minus(offer.of[name], need, more))
            learners -= more
        learners = min(learners, offer.capacity(need))
        for name, more in self.choose(run.gang.resized(learners=learners), offer) if learners else ():
            offer.lower(name, minus(offer.of[name], need, more))
        for name, room in offer.of.items():
            self.free.lower(name, room)
        self.withheld += before - self.free.total

    def kept_for_others(self, gang: Gang) -> Collection[str]:
        """The nodes that were reserved for another gang because it waited too long."""
        return self._kept if self.reserved_for is not gang else ()

    def reserve_nodes(self, gang: Gang, learners: Mapping[str, int]) -> None:
        """Reserve for this gang what so many of its learners take by node, beside what is reserved there already. No
        other one passes it because it ends in time: runs leave for it by order, long before their time limits."""
        more = {name: times(self.need(gang), count) for name, count in learners.items()}
        if self.reserved_until is not None:
            self._awaited |= _beside(self._awaited, more)
            if self.passable is self.free:
                self.passable = self.free.copy()
            for name in more:
                self.passable.lower(name, minus(self.free.of[name], self._awaited[name]))
        self._reserve(gang, _beside(self._reserved, more))

    def _reserve(self, gang: Gang, rooms: Mapping[str, Room]) -> None:
        self._reserved |= rooms
        if self.unreserved is self.free:
            self.unreserved = self.free.copy()
        for name, reserved in rooms.items():
            self.unreserved.lower(name, minus(self.free.of[name], reserved))
        self.reserved_for = self.reserved_for or gang

    def _ends_in_time(self, gang: Gang, now: datetime) -> bool:
        """Say whether the gang has certainly ended before the one with the reservation can start."""
        if self.reserved_until is None or gang.runs_at_most_s is None:
            return False
        return gang.runs_at_most_s <= (self.reserved_until - now).total_seconds()

    def _all_free_at(self, rooms: Mapping[str, Room]) -> datetime | None:
        """When so much of these nodes will all be free; None unless all runs there have known ends, and if nothing is
        awaited but runs that leave now: they take as long as they save."""
        ends = self._known_ends()
        latest: datetime | None = None
        for name, reserved in rooms.items():
            missing = minus(reserved, self.free.of[name])
            for end, released in sorted(ends.get(name, ())):
                if missing == NO_ROOM:
                    break
                missing = minus(missing, released)
                latest = end if latest is None else max(latest, end)
            if missing != NO_ROOM:
                return None
        return latest if latest is not None and latest > self._now else None


@dataclass(frozen=True, slots=True)
class Shortage:
    """Too little of one resource beside the slots. need: per learner; have: the most on one node. fitting: how many
    learners fit. by_others: even if none of our learners ran, because of what programs of others hold."""

    need: int
    have: int
    fitting: int
    by_others: bool = False


def _beside(rooms: Mapping[str, Room], more: Mapping[str, Room]) -> dict[str, Room]:
    """Of the nodes of more: both together."""
    return {name: plus(rooms.get(name, NO_ROOM), room) for name, room in more.items()}


def _largest(nodes: Iterable[Node], slot_type: str) -> Room:
    """What a learner takes beyond what it requests, on the node where that is most; no slots."""
    extra = [node.per_learner.needed(slot_type) for node in nodes]
    return (0, max((each[1] for each in extra), default=0), max((each[2] for each in extra), default=0))


def _pack(offer: Rooms, learners: int, need: Room) -> list[tuple[str, int]]:
    """Fewest nodes: whole large ones first, then the tightest that takes the rest. offer holds enough."""
    chosen = []
    left = learners
    holding = offer.holding(need)
    while left:
        at = bisect_left(holding, (left,))
        fit, room = holding[min(at, len(holding) - 1)]
        name = offer.pop(room)
        if name is None:
            holding = [each for each in holding if each != (fit, room)]
            continue
        taken = min(left, fit)
        chosen.append((name, taken))
        left -= taken
    return chosen


def _spread(offer: Rooms, learners: int, need: Room) -> list[tuple[str, int]]:
    """Most nodes: one learner on each of the freest; if there are too few nodes, round after round."""
    capacities: list[tuple[str, int]] = []
    for fit, room in reversed(offer.holding(need)):
        while len(capacities) < learners and (name := offer.pop(room)) is not None:
            capacities.append((name, fit))
    given = [0] * len(capacities)
    left = learners
    while left:
        for index, (_, capacity) in enumerate(capacities):
            if left and given[index] < capacity:
                given[index] += 1
                left -= 1
    return [(name, count) for (name, _), count in zip(capacities, given, strict=True)]
