"""Which opportunistic runs leave for the starts of a plan that was made without them, and which starts wait for that.

A start on their slots is moved to free ones if it fits there; else the runs in its way are stopped, those that lose the
least first, and it takes place when they have left.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_scheduler.draft import Draft
from gpu_scheduler.losses import lost_work_s
from gpu_scheduler.model import UNCOUNTED, Need, Placement, Room, Running, Snapshot, Start, Stop
from gpu_scheduler.places import is_stuck
from gpu_scheduler.policies.orders import can_be_ordered
from gpu_scheduler.rooms import Rooms, none_of

YIELDED = "preempted"
"""Reason of the stops."""
ByNode = dict[str, Room]


class Free(ByNode):
    """What is free by node. open: the nodes that have any slots: few where the cluster is full, so that not all nodes
    are looked at for each start that finds no place."""

    def __init__(self, rooms: Mapping[str, Room]) -> None:
        super().__init__(rooms)
        self.open = {name for name, room in rooms.items() if room[0] > 0}

    def __setitem__(self, name: str, room: Room) -> None:
        super().__setitem__(name, room)
        (self.open.add if room[0] > 0 else self.open.discard)(name)


@dataclass(slots=True)
class Cleared:
    """What becomes of the starts of a plan that was made without the opportunistic runs: those that take place now,
    those that wait, each for how many runs, and the stops of these."""

    starts: list[Start] = field(default_factory=list)
    waiting: list[tuple[Start, int]] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)


class Clearing:
    """Takes the starts of one plan in their order."""

    def __init__(self, snapshot: Snapshot, draft: Draft) -> None:
        self._snapshot, self._pools = snapshot, draft.pools
        self._gangs = {gang.job: gang for gang in snapshot.waiting}
        self._now: dict[str, Free] = {}
        """By type and node, what is free beside all runs and the starts that take place."""
        self._then: dict[str, Free] = {}
        """What is free when all that were ordered to leave have, beside all starts. Below zero: more must leave."""
        self._planned: dict[str, ByNode] = {}
        """The same beside all nodes on which starts are planned, too, also those that are not decided on."""
        self._left: dict[str, ByNode] = {}
        """What the plan leaves: with its starts where they are now to be, and without opportunistic runs."""
        self._on: dict[str, list[Running]] = {}
        """Opportunistic runs by node, the first to leave first; none that is stuck."""
        self._full: dict[str, tuple[Room, int]] = {}
        """By node that is full: what is free there for a start once a learner has left, and how many leave."""
        self._starting: Counter[str] = Counter()
        """By node, the learners of starts that wait: on a full one as many have to leave."""
        self._cleared_for: defaultdict[str, set[str]] = defaultdict(set)
        """By job, the nodes of runs that leave for it already."""
        self._leaving: set[str] = set()
        runs = [run for run in snapshot.running if run.gang.opportunistic and not is_stuck(run, snapshot.now)]
        full = {node.name for node in snapshot.nodes if node.full}
        for slot_type in {run.slot_type for run in runs} & self._pools.keys():
            pool = self._pools[slot_type]
            self._now[slot_type] = Free(pool.idle.of)
            for run in snapshot.running:
                if run.slot_type == slot_type:
                    _change(self._now[slot_type], run.nodes, pool.need(run.gang), -1)
            for name in full & self._now[slot_type].keys():  # whatever else is free: until a learner leaves
                room = self._now[slot_type][name]
                self._now[slot_type][name] = none = _less(room, none_of(room))
                self._full[name] = (room[0] - none[0], room[1] - none[1], room[2] - none[2]), 0
            self._then[slot_type] = Free(self._now[slot_type])
            self._planned[slot_type] = dict(self._now[slot_type])
            self._left[slot_type] = dict(pool.free.of)
        for run in runs:
            if not can_be_ordered(run):
                self._leave(run)
            if run.order is not None and run.order.for_job is not None:
                self._cleared_for[run.order.for_job].update(run.nodes)
            for name in dict.fromkeys(run.nodes):
                self._on.setdefault(name, []).append(run)
        for on in self._on.values():
            on.sort(key=self._cost)

    def clear(self, starts: Sequence[Start]) -> Cleared:
        """Decide on each start. Those whose nodes are free take place there. Of the others, in their order, one takes
        the free nodes of a later one of its kind, or such as are planned for none, or waits for runs that leave
        already, or for some to leave its own.
        """
        found, taken = Cleared(), dict[str, Start]()
        # Of one kind that take place, the last at the end.
        alike: defaultdict[Hashable, list[Start]] = defaultdict(list)
        unfit = []
        for start in starts:
            if start.placement.slot_type not in self._now:
                taken[start.job] = start
            elif self._take(start):
                taken[start.job] = start
                alike[self._kind(start)].append(start)
            else:
                unfit.append(start)
        order = {start.job: number for number, start in enumerate(starts)}
        for number, start in enumerate(unfit):
            others = alike[self._kind(start)]
            if others and order[others[-1].job] > order[start.job] and self._may_swap(start):
                later = others.pop()
                taken[start.job] = replace(start, placement=later.placement)
                unfit[number] = replace(taken.pop(later.job), placement=start.placement)
        for start in unfit:
            self._plan(start, -1)
        for start in sorted(unfit, key=lambda start: order[start.job]):
            self._put(start, 1)
            start = self._elsewhere(start) or start
            slot_type, nodes = start.placement.slot_type, start.placement.nodes
            if self._take(start):
                taken[start.job] = start
                _change(self._left[slot_type], nodes, self._need(start), -1)
                continue
            self._put(start, -1)
            _change(self._then[slot_type], nodes, self._need(start), -1)
            self._starting.update(nodes)
            victims = self._victims(self._then[slot_type], nodes)
            found.stops += [Stop(run.job, YIELDED, start.job, run.generation) for run in victims]
            found.waiting.append((start, self._count_leaving(nodes)))
        found.starts = sorted(taken.values(), key=lambda start: order[start.job])
        return found

    def _take(self, start: Start) -> bool:
        """Take its nodes, if they are free for it."""
        slot_type, nodes, need = start.placement.slot_type, start.placement.nodes, self._need(start)
        views = self._now[slot_type], self._then[slot_type]
        if not all(_fits(view, nodes, need) for view in views):
            return False
        for view in (*views, self._planned[slot_type]):
            _change(view, nodes, need, -1)
        return True

    def _plan(self, start: Start, sign: int) -> None:
        """Keep its nodes from starts that are moved (-1), or no more (1)."""
        slot_type = start.placement.slot_type
        _change(self._planned[slot_type], start.placement.nodes, self._need(start), sign)

    def _put(self, start: Start, sign: int) -> None:
        """Count it where it is to be (-1), or no more (1)."""
        self._plan(start, sign)
        slot_type = start.placement.slot_type
        _change(self._left[slot_type], start.placement.nodes, self._need(start), sign)

    def _need(self, start: Start) -> Need:
        return self._pools[start.placement.slot_type].need(self._gangs[start.job])

    def _may_swap(self, start: Start) -> bool:
        """Not where anything is reserved: a later start may be on it because it ends soon."""
        return not self._pools[start.placement.slot_type].reserved_nodes

    def _kind(self, start: Start) -> Hashable:
        """What it asks for, and how good its nodes are for it: starts of one kind could as well swap nodes."""
        gang, nodes, slot_type = self._gangs[start.job], start.placement.nodes, start.placement.slot_type
        pool = self._pools[slot_type]
        span = pool.span(nodes) if gang.topology is not None else 0
        by_node = tuple(sorted(Counter(nodes).values()))
        avoided = len(pool.avoided.intersection(nodes))
        return slot_type, self._need(start), by_node, gang.topology, span, avoided

    def _victims(self, then: ByNode, nodes: Sequence[str]) -> list[Running]:
        """The runs that leave so that none of these nodes has less than nothing. Each is needed."""
        chosen: list[Running] = []
        for name in dict.fromkeys(nodes):
            for run in self._on.get(name, ()):
                if self._has_room(then, name):
                    break
                if run.job not in self._leaving:
                    self._leave(run)
                    chosen.append(run)
        for run in sorted(chosen, key=self._cost, reverse=True):
            self._stay(run)
            if all(self._has_room(then, name) for name in run.nodes if name in then):
                chosen.remove(run)
            else:
                self._leave(run)
        return chosen

    def _has_room(self, then: ByNode, name: str) -> bool:
        _, leave = self._full.get(name, (None, self._starting[name]))
        return min(then[name]) >= 0 and leave >= self._starting[name]

    def _count_leaving(self, nodes: Sequence[str]) -> int:
        on = {run.job for name in nodes for run in self._on.get(name, ())}
        return len(on & self._leaving)

    def _elsewhere(self, start: Start) -> Start | None:
        """On other nodes, where it fits now, or where it will when all that leave already have. First those that are
        cleared for it: it had a place there before. None: it has to be made room for on its own."""
        slot_type = start.placement.slot_type
        views = [self._now[slot_type]]
        if not _fits(self._then[slot_type], start.placement.nodes, self._need(start)):
            views.append(self._then[slot_type])
        for free in views:
            for cleared in (True, False):
                if (moved := self._moved(start, free, cleared=cleared)) is not None:
                    return moved
        return None

    def _moved(self, start: Start, free: Free, *, cleared: bool) -> Start | None:
        """On other nodes, where it fits into what is free and planned for none; None where something of the type is
        reserved, or if there are none that are as good: as near to each other, not avoided, and cleared for it, or as
        full as its own would be, so that no larger room is broken up."""
        slot_type, own = start.placement.slot_type, start.placement.nodes
        pool, planned, left = self._pools[slot_type], self._planned[slot_type], self._left[slot_type]
        if pool.reserved_nodes:
            return None
        need, own_left = self._need(start), {left[name] for name in own}
        among = self._cleared_for.get(start.job, ()) if cleared else free.open
        names = [
            name
            for name in free.open.intersection(among)
            if free[name][0] >= need[0] <= planned[name][0]
            and name not in pool.avoided
            and (cleared or any(_in(left[name], each) for each in own_left))
        ]
        rooms = {name: _less(free[name], planned[name]) for name in sorted(names)}
        offer = Rooms({name: room for name, room in rooms.items() if min(room) >= 0})
        if not offer.of:
            return None
        gang = self._gangs[start.job].resized(learners=len(own))
        if pool.capacity(offer, gang, need) < len(own):
            return None
        nodes = tuple(name for name, times in pool.choose(gang, offer) for _ in range(times))
        if gang.topology is not None and pool.span(nodes) > pool.span(own):
            return None
        if not cleared and not _as_full(nodes, own, left):
            return None
        return replace(start, placement=Placement(slot_type, nodes))

    def _leave(self, run: Running) -> None:
        self._leaving.add(run.job)
        self._count(run, 1)

    def _stay(self, run: Running) -> None:
        self._leaving.remove(run.job)
        self._count(run, -1)

    def _count(self, run: Running, sign: int) -> None:
        if run.slot_type in self._then:
            need = self._pools[run.slot_type].need(run.gang)
            for view in (self._then, self._planned):
                _change(view[run.slot_type], run.nodes, need, sign)
            for name in self._full.keys() & run.nodes:
                hidden, leave = self._full[name]
                after = leave + sign * run.nodes.count(name)
                self._full[name] = hidden, after
                if 0 in (leave, after):
                    for view in (self._then, self._planned):
                        _change(view[run.slot_type], (name,), hidden, sign)

    def _cost(self, run: Running) -> tuple[float, float, str]:
        """The least work lost first, then the newest."""
        return lost_work_s(run, self._snapshot.now), -run.started_at.timestamp(), run.job


def _change(rooms: ByNode, nodes: Iterable[str], need: Room, sign: int) -> None:
    """A learner more (-1) or less (1) on each of these nodes. Unlike rooms.minus, it can be below zero: what is
    missing has to be known."""
    for name in nodes:
        if name in rooms:
            slots, *others = rooms[name]
            cpus, memory = (
                has if has == UNCOUNTED else has + sign * one
                for has, one in zip(others, need[1:], strict=True)
            )
            rooms[name] = slots + sign * need[0], cpus, memory


def _less(one: Room, other: Room) -> Room:
    return min(one[0], other[0]), min(one[1], other[1]), min(one[2], other[2])


def _in(one: Room, other: Room) -> bool:
    return _less(one, other) == one


def _as_full(nodes: Sequence[str], own: Sequence[str], left: ByNode) -> bool:
    """Whether as many learners are on each of these nodes as on one of its own that has as much left or more."""
    here, there = (
        sorted((times, left[name]) for name, times in Counter(each).items()) for each in (nodes, own)
    )
    return [times for times, _ in here] == [times for times, _ in there] and all(
        _in(room, other) for (_, room), (_, other) in zip(here, there, strict=True)
    )


def _fits(rooms: ByNode, nodes: Sequence[str], need: Need) -> bool:
    left = {name: rooms[name] for name in nodes}
    _change(left, nodes, need, -1)
    return all(min(room) >= 0 for room in left.values())
