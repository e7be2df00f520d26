"""The room that running gangs leave for waiting ones when they are stopped or shrunk, on nodes and in limits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest

from gpu_scheduler.checks import Supply
from gpu_scheduler.ledger import Account, Ledger
from gpu_scheduler.model import Domain, Gang, Need, Resize, Room, Running, Stop
from gpu_scheduler.placement import Pool
from gpu_scheduler.rooms import Rooms, learners_in, minus, plus

MOVED = "moved"
"""Reason of the stop of a run that is to start again elsewhere."""


class RoomLeft:
    """What nodes and limits will have left once earlier gangs of this plan were given theirs."""

    def __init__(self, pool: Pool, runs: Iterable[Running]) -> None:
        self.pool = pool
        self._made: list[RoomMade] = []
        self._left: dict[str, Room] = {}
        self._left_of, self._counted = -1, 0  # free slots that _left began with, and how many of _made it has
        self._fitting: dict[Need, dict[str, int]] = {}  # learners of a size by node, in _left
        self.free_slots = 0
        """Those of all nodes, in what ``left`` said last."""
        held: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for run in runs:
            for name in run.nodes:
                held[name].update(dict(enumerate(pool.need(run.gang))))
        idle = pool.idle.of
        self.owed = {
            name: tuple(max(0, by_place[place] - idle[name][place]) for place in range(3))
            for name, by_place in held.items()
            if name in idle
        }
        """By node, how much more the runs hold than there is, after it lost devices: their end frees that much less."""
        self.slots: Counter[str] = Counter()
        self.jobs: Counter[str] = Counter()
        self.users: Counter[tuple[str, str]] = Counter()
        """By tenant, and slots by its user, what it will have in use in addition; less than nothing if more leave."""
        self.too_small_for: set[Hashable] = set()
        """Shapes of gangs that do not fit on nodes whatever leaves."""

    @property
    def changed(self) -> bool:
        """Whether runs leave that could make room for several."""
        return bool(self._made)

    def left(self) -> dict[str, Room]:
        """By node of the pool; for the caller to change. Starts of this plan take slots in between: then all is counted
        again."""
        free = self.pool.free
        if free.total != self._left_of:
            self._left, self._left_of, self._counted = dict(free.of), free.total, 0
            self._fitting.clear()
            self.free_slots = free.total
        if self._counted < len(self._made):
            self._count(self._made[self._counted :])
        return self._left.copy()

    def _count(self, new: Sequence[RoomMade]) -> None:
        left, names = self._left, {name for made in new for name in made.touched() if name in self._left}
        self.free_slots -= sum(left[name][0] for name in names)
        for made in new:  # all of them first: a gang may be where runs leave that shrink for another one
            made.vacate(left)
        for made in new:
            made.fill(left)
        self._counted = len(self._made)
        self.free_slots += sum(left[name][0] for name in names)
        for need, fitting in self._fitting.items():
            for name in names:
                fitting[name] = learners_in(left[name], need)

    def fitting(self, need: Need) -> dict[str, int]:
        """How many learners of this size fit into what ``left`` said last, by node; for the caller to change."""
        known = self._fitting.get(need)
        if known is None:
            fit = {room: learners_in(room, need) for room in set(self._left.values())}
            known = self._fitting[need] = {name: fit[room] for name, room in self._left.items()}
        return known.copy()

    def place_all(self, made: RoomMade) -> bool:
        """Place this gang, those before it, and the runs that start again after them, as plans will, one after the
        other: places that exist are not always those that are chosen. What was noted of earlier ones follows. False:
        one of them does not fit then, and nothing has changed."""
        makes = [*self._made, made]
        rooms = dict(self.pool.free.of)
        for each in makes:
            each.vacate(rooms)
        kept = self.pool.kept_for_others(made.gang)
        offer = Rooms({name: room for name, room in rooms.items() if name not in kept})
        gangs: list[tuple[RoomMade, Running | None, int]] = [
            (each, None, each.gang.learners.min) for each in makes
        ]
        back = sorted(
            ((each, run, learners) for each in makes for run, learners in each.back()),
            key=lambda each: (-each[1].priority, each[1].gang.queued_at, each[1].job),
        )
        nodes: dict[int, dict[str, int]] = {}  # of each of these makes
        placed: defaultdict[int, list[tuple[Running, str, int]]] = defaultdict(list)
        # Who would borrow is offered slots after the others.
        owners, borrowers = ([each for each in gangs if each[0].owns is owns] for owns in (True, False))
        for each, run, learners in [*owners, *back, *borrowers]:
            if run is None and each is not made and not each.back():
                chosen = [(name, times) for name, times in each.nodes().items() if name in offer.of]
            else:
                gang = each.gang if run is None else run.gang.resized(learners=learners)
                if self.pool.capacity(offer, gang, self.pool.need(gang)) < learners:
                    return False
                chosen = self.pool.choose(gang, offer)
            need = self.pool.need(each.gang if run is None else run.gang)
            for name, times in chosen:
                offer.lower(name, minus(offer.of[name], need, times))
            if run is None:
                nodes[id(each)] = dict(chosen)
            else:
                placed[id(each)] += [(run, name, times) for name, times in chosen]
        for each in makes:
            each.placed(nodes[id(each)], placed[id(each)])
        self._left_of = -1  # count all of them again
        return True

    def keep(self, made: RoomMade) -> None:
        self._made.append(made)
        self.slots.update(made.slots)
        self.jobs.update(made.jobs)
        self.users.update(made.users)
        self.too_small_for.clear()


class RoomMade:
    """The room that one gang finds when these runs have left or shrunk, on nodes and in its tenant's limits.

    slots, jobs, users: what will be in use in addition, by tenant and by its user. owns: its limit covers the gang.
    around_reservations: not on nodes reserved for another gang that waited too long. Learners are counted by domain
    where the gang requires one, else all together.
    """

    def __init__(
        self,
        gang: Gang,
        supply: Supply,
        rooms: RoomLeft,
        ledger: Ledger,
        *,
        owns: bool,
        around_reservations: bool,
    ) -> None:
        self.gang, self._supply, self._pool, self._ledger = gang, supply, rooms.pool, ledger
        self._need = rooms.pool.need(gang)
        self._owed = rooms.owed
        self._before, self._rooms, self.owns = rooms.left(), rooms, owns
        self._fitting, self._free_slots = rooms.fitting(self._need), rooms.free_slots
        if around_reservations:
            for name in rooms.pool.kept_for_others(gang):
                if (kept := self._before.pop(name, None)) is not None:
                    self._free_slots -= kept[0]
                    del self._fitting[name]
        self.slots = Counter({gang.tenant: gang.asked})
        self.jobs = Counter({gang.tenant: 1})
        self.users = Counter({(gang.tenant, gang.user): gang.asked})
        self._gone: defaultdict[str, list[Running]] = defaultdict(
            list
        )  # by node, once for each learner there
        self._back: dict[
            str, tuple[Running, int]
        ] = {}  # by job, those that start again, with how many learners
        level = gang.required_level
        self._domains = rooms.pool.domains(level) if level is not None else {}
        self._learners: Counter[Domain] = Counter()  # those that fit, by domain
        self._large_enough = 0  # domains
        self._nodes: dict[str, int] | None = None  # of nodes(), once asked for
        self._placed_back: list[tuple[Running, str, int]] | None = None  # of placed()
        self._fit_all()
        self._vacated_slots: Counter[str] = Counter()  # by node, what is free in addition
        self._shared: int | None = None  # of _more_shared(), over all tenants, once asked for

    @property
    def slot_type(self) -> str:
        return self._supply.slot_type

    @property
    def holds_gang(self) -> bool:
        """Whether all its learners fit on nodes."""
        return self._large_enough > 0

    def could_hold(self, held: Mapping[str, Room], gone: Iterable[Running]) -> bool:
        """Whether its learners could fit if nodes had all of this in addition, of which these are gone already. Quick
        beside trying one run after the other."""
        more = dict(held)
        for run in gone:
            for name in run.nodes:
                more[name] = minus(more[name], self._pool.need(run.gang))
        learners: Counter[Domain] = Counter()
        for name, fitting in self._fitting.items():
            if name in more:
                fitting = learners_in(plus(self._room(name), more[name]), self._need)
            learners[self.domain_of(name)] += fitting
        return any(found >= self.gang.learners.min for found in learners.values())

    def learners_on(self, name: str) -> int | None:
        """How many of its learners fit on this node now; None: none may be there."""
        return self._fitting.get(name)

    def slots_on(self, name: str) -> int:
        """How many slots this node has left for it now, on nodes where it may be."""
        return self._room(name)[0]

    def more_fit_without(self, name: str, runs: Iterable[Running]) -> bool:
        """Whether more of its learners would fit on this node without these runs, with their CPUs and memory, too."""
        room = self._room(name)
        for run in runs:
            for _ in range(run.nodes.count(name)):
                room = plus(room, self._pool.need(run.gang))
        return learners_in(room, self._need) > self._fitting[name]

    def domain_of(self, name: str) -> Domain:
        """The domain of this node in which all its learners have to be; () where it requires none."""
        return self._domains.get(name, ())

    def _fit_all(self) -> None:
        """Count every node once, at the beginning."""
        domains = self._domains
        if not domains:
            self._learners[()] = sum(self._fitting.values())
        else:
            for name, learners in self._fitting.items():
                self._learners[domains.get(name, ())] += learners
        least = self.gang.learners.min
        self._large_enough = sum(learners >= least for learners in self._learners.values())

    def _set_fitting(self, name: str, learners: int) -> None:
        domain, least = self._domains.get(name, ()), self.gang.learners.min
        before = self._learners[domain]
        now = self._learners[domain] = before + learners - self._fitting.get(name, 0)
        self._fitting[name] = learners
        self._large_enough += (now >= least) - (before >= least)

    def without(self, run: Running) -> None:
        for name in run.nodes:
            self._gone[name].append(run)
        self._count(run, -1)

    def moved(self, run: Running) -> None:
        """It leaves, and starts again as large as it is, elsewhere or beside the gang."""
        self.without(run)
        self._back[run.job] = run, len(run.nodes)
        self._count_use(run, len(run.nodes), 1)

    def none_moves(self) -> None:
        """Those that move leave, and find no place elsewhere."""
        for run, learners in list(self._back.values()):
            if learners == len(run.nodes):
                self.with_again(run)
                self.without(run)

    def starts_again(self, run: Running) -> bool:
        return run.job in self._back

    @property
    def moves_runs(self) -> bool:
        """Whether any run starts again."""
        return bool(self._back)

    def with_again(self, run: Running) -> None:
        if run.job in self._back:
            self._count_use(run, self._back.pop(run.job)[1], -1)
        for name in run.nodes:
            self._gone[name].remove(run)
        self._count(run, 1)

    def resized(self, run: Running, learners: int) -> None:
        """It leaves, and starts again with so many learners once the gang has its place. As many as it has: it stays
        as it is."""
        if run.job in self._back:
            self.with_again(run)
        if learners != len(run.nodes):
            self.without(run)
            self._back[run.job] = run, learners
            self._count_use(run, learners, 1)

    def sizes(self) -> dict[str, int]:
        """By job, with how many learners those start again that were not ordered to before."""
        return {job: learners for job, (run, learners) in sorted(self._back.items()) if run.order is None}

    def missing(self) -> int:
        """Slots that certainly have to be given up before the gang can start; 0 or less: maybe none."""
        tenant, user, account = self.gang.tenant, self.gang.user, self._supply.account
        of_user, used = self._supply.users.slots, self._supply.users.used[user]
        return max(
            self.gang.asked - self._free(),
            self._used(tenant, account) - account.most,
            -1
            if of_user is None
            else used + self._rooms.users[tenant, user] + self.users[tenant, user] - of_user,
        )

    def freed_of_user(self) -> int:
        """Slots that the gang's user gives up for it."""
        return self.gang.asked - self.users[self.gang.tenant, self.gang.user]

    def carried_out(self, run: Running, order: Stop | Resize) -> None:
        """It does what it was ordered to. Growth does not count: the gang comes before that."""
        if isinstance(order, Resize):
            self.resized(run, min(order.learners, len(run.nodes)))
        elif order.reason == MOVED:
            self.moved(run)
        else:
            self.without(run)

    def suffices(self) -> bool:
        """Whether every check that a stop or a resize can help with passes: slots and jobs of the tenant and its users,
        and whole learners on nodes that take any, beside those of the runs that start again."""
        if not self.holds_gang or self.missing() > 0:
            return False
        tenant, user, account, jobs = (
            self.gang.tenant,
            self.gang.user,
            self._supply.account,
            self._supply.jobs,
        )
        more_jobs = self._rooms.jobs[tenant] + self.jobs[tenant]
        if jobs.limit is not None and jobs.used + more_jobs > jobs.limit:
            return False
        more = self._rooms.users[tenant, user] + self.users[tenant, user]
        if not self._supply.users.allow(user, slots=more, jobs=1):
            return False
        if self._used(tenant, account) > account.most or not self._cohort_suffices(account):
            return False
        return not self._back or self._places_back() is not None

    def _cohort_suffices(self, account: Account) -> bool:
        cohort = account.cohort
        if cohort is None:
            return True
        if self._shared is None:
            self._shared = sum(map(self._more_shared, self._rooms.slots.keys() | self.slots.keys()))
        return cohort.taken + (0 if self.owns else cohort.claimed) + self._shared <= cohort.shared

    def await_of_cohort(self) -> None:
        """Keep what the gang will borrow of its cohort, with what those before it will, from other borrowers."""
        cohort = self._supply.account.cohort
        if cohort is not None and not self.owns:
            more = sum(map(self._more_shared, self._rooms.slots.keys() | self.slots.keys()))
            cohort.awaited = max(cohort.awaited, more)
            cohort.awaited_by = (*cohort.awaited_by, self.gang.job)

    def _more_shared(self, tenant: str) -> int:
        """How much more than now this tenant will take of what the gang's cohort shares."""
        other = self._ledger.account(tenant, self._supply.slot_type)
        if other.cohort is not self._supply.account.cohort:
            return 0
        return other.of_shared(self._used(tenant, other)) - other.of_shared(other.used)

    def _used(self, tenant: str, account: Account) -> int:
        return account.used + self._rooms.slots[tenant] + self.slots[tenant]

    def nodes(self) -> dict[str, int]:
        """Where the gang will be, with how many learners: on as few nodes as possible, of the domain in which the least
        is left."""
        if self._nodes is None:
            self._nodes = self._choose_nodes()
        return self._nodes

    def _choose_nodes(self) -> dict[str, int]:
        found, left = {}, self.gang.learners.min
        enough = [(learners, domain) for domain, learners in self._learners.items() if learners >= left]
        if not enough:
            return {}
        _, chosen = min(enough)
        holding = [(-fit, name) for name, fit in self._fitting.items() if fit]
        of_domain = [each for each in holding if self.domain_of(each[1]) == chosen]
        for fit, name in nsmallest(left, of_domain):
            found[name] = min(left, -fit)
            left -= found[name]
            if not left:
                break
        return found

    def fill(self, rooms: dict[str, Room]) -> None:
        """Change these rooms as the starts of the gang and of those that start again do."""
        for name, times in self.nodes().items():
            rooms[name] = minus(rooms[name], self._need, times)
        for run, name, times in self._places_back() or ():
            rooms[name] = minus(rooms[name], self._pool.need(run.gang), times)

    def touched(self) -> Iterator[str]:
        """The nodes on which it changes anything."""
        yield from self._gone
        yield from self.nodes()
        yield from (name for _, name, _ in self._places_back() or ())

    def vacate(self, rooms: dict[str, Room]) -> None:
        """Change these rooms as all that leave do."""
        for name in self._gone:
            if name in rooms:
                rooms[name] = self._vacated(name, rooms[name])

    def back(self) -> list[tuple[Running, int]]:
        """The runs that start again, with how many learners."""
        return list(self._back.values())

    def placed(self, nodes: dict[str, int], back: list[tuple[Running, str, int]]) -> None:
        """Where the gang and those that start again will be. Said last."""
        self._nodes, self._placed_back = nodes, back

    def returns(self) -> Iterator[tuple[Gang, dict[str, int]]]:
        """The gangs that start again, with how many learners will be where they have none now."""
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for run, name, times in self._places_back() or ():
            if (more := times - run.nodes.count(name)) > 0:
                found[run.job][name] += more
        for job, (run, _) in self._back.items():
            if job in found:
                yield run.gang, dict(found[job])

    def _places_back(self) -> list[tuple[Running, str, int]] | None:
        """Where the runs that start again find their learners beside the gang: on their own nodes as far as they can.
        None: one does not."""
        if self._placed_back is not None:
            return self._placed_back
        if not self._back:
            return []
        left = {name: self._room(name) for name in self._before}
        for name, times in self.nodes().items():
            left[name] = minus(left[name], self._need, times)
        unfilled = [name for name, room in left.items() if room[0]]
        found = []
        for _, (run, learners) in sorted(self._back.items()):
            need = self._pool.need(run.gang)
            for name in self._in_order_for(run, unfilled):
                if times := min(learners, learners_in(left[name], need)):
                    found.append((run, name, times))
                    left[name] = minus(left[name], need, times)
                    learners -= times
                if not learners:
                    break
            if learners:
                return None
            while unfilled and not left[unfilled[-1]][0]:
                unfilled.pop()
        return found

    def _in_order_for(self, run: Running, unfilled: Sequence[str]) -> Iterator[str]:
        """Its own nodes, then all others of the domain that it requires, of these the last first."""
        own = {name: None for name in run.nodes if name in self._before}
        yield from own
        level = run.gang.required_level
        domains = self._pool.domains(level) if level is not None else {}
        at = {domains.get(name) for name in own}
        yield from (name for name in reversed(unfilled) if name not in own and domains.get(name) in at)

    def _free(self) -> int:
        """Free slots when those that leave are gone and those that start again have, before the gang has its own."""
        return self._free_slots - sum(run.slots * learners for run, learners in self._back.values())

    def _room(self, name: str) -> Room:
        """What the node has left when those that leave are gone."""
        before = self._before[name]
        return self._vacated(name, before) if name in self._gone else before

    def _count(self, run: Running, sign: int) -> None:
        """Count the run as gone (-1), or as staying after all (1)."""
        self._nodes = self._placed_back = None
        self._count_use(run, len(run.nodes), sign)
        for name in {name for name in run.nodes if name in self._before}:
            room = self._vacated(name, self._before[name])
            self._set_fitting(name, learners_in(room, self._need))
            more = room[0] - self._before[name][0]
            self._free_slots += more - self._vacated_slots[name]
            self._vacated_slots[name] = more

    def _count_use(self, run: Running, learners: int, sign: int) -> None:
        slots = sign * run.slots * learners
        if self._shared is not None:
            self._shared -= self._more_shared(run.tenant)
        self.slots[run.tenant] += slots
        if self._shared is not None:
            self._shared += self._more_shared(run.tenant)
        self.users[run.tenant, run.gang.user] += slots
        self.jobs[run.tenant] += sign

    def _vacated(self, name: str, room: Room) -> Room:
        slots = cpus = memory = 0
        for run in self._gone[name]:
            need = self._pool.need(run.gang)
            slots, cpus, memory = slots + need[0], cpus + need[1], memory + need[2]
        owed = self._owed[name]
        return plus(room, (max(0, slots - owed[0]), max(0, cpus - owed[1]), max(0, memory - owed[2])))
