"""Preemption: which running jobs are stopped so that an urgent one can start, with the least work lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from gpu_scheduler.checks import Finding, Scope, Supply
from gpu_scheduler.draft import Draft
from gpu_scheduler.model import Gang, Priority, Room, Running, Stop, need_of
from gpu_scheduler.placement import Pool, learners_in, minus, plus

PREEMPTS = Priority.URGENT
"""The class from which on a waiting job stops others; its own class, not one to which it rose by aging."""
REASON = "preempted"


def can_be_stopped(run: Running, gang: Gang, *, now: datetime, lease: timedelta) -> bool:
    """Whether this run may make room for the gang: of a lower class, which rules out cycles; not on its way out
    already, and past its lease, so that a job that is stopped again and again still gets on in between."""
    return (
        run.priority < gang.priority
        and not run.stopping
        and run.order is None
        and run.requeues
        and now - run.started_at >= lease
    )


def lost_work_s(run: Running, now: datetime) -> float:
    """What a stop costs in slot-seconds if its program saves nothing when it is asked to: what it did since its last
    checkpoint, or since it started, and what the restart takes, as far as that was measured."""
    since = max(run.started_at, run.last_checkpoint_at or run.started_at)
    seconds = max(0.0, (now - since).total_seconds()) + (run.restart_cost_s or 0.0)
    return seconds * run.slots * len(run.nodes)


class Preemption:
    """The victims in one plan. Ask in the order in which gangs are offered slots: what one was given is gone for the
    next."""

    def __init__(self, draft: Draft, lease_s: float) -> None:
        self._draft = draft
        self._now = draft.snapshot.now
        self._lease = timedelta(seconds=lease_s)
        self._runs: defaultdict[str, list[Running]] = defaultdict(list)
        for run in draft.snapshot.running:
            self._runs[run.slot_type].append(run)
        self._rooms: dict[str, _Rooms] = {}
        self.stops: list[Stop] = []

    def make_room(self, gang: Gang, finding: Finding) -> int:
        """Choose what to stop for a gang that cannot start. Returns how many runs leave for it, those ordered to
        before included; 0 if no stop would let it start: then none is ordered. O(n log n) in its type's runs."""
        supply = finding.supply
        if gang.priority < PREEMPTS or not finding.check.queues or supply.pool is None:
            return 0
        slot_type, runs = supply.slot_type, self._runs[supply.slot_type]
        rooms = self._rooms.setdefault(slot_type, _Rooms(supply.pool, runs))
        made = _Made(gang, supply, rooms)
        leaving = [run for run in runs if isinstance(run.order, Stop) and run.order.for_job == gang.job]
        for run in leaving:
            made.without(run)
        victims: list[Running] = []
        for run in self._by_preference(gang, finding, runs):
            if made.suffices():
                break
            made.without(run)
            victims.append(run)
        if not made.suffices():
            return 0
        for run in reversed(victims[:-1]):  # those that need not leave after all, the dearest first
            made.with_again(run)
            if made.suffices():
                victims.remove(run)
            else:
                made.without(run)
        rooms.keep(made)
        self._draft.reserve_nodes(gang, slot_type, made.nodes())
        self.stops += [Stop(run.job, REASON, gang.job, run.generation) for run in victims]
        return len(leaving) + len(victims)

    def _by_preference(self, gang: Gang, finding: Finding, runs: Iterable[Running]) -> list[Running]:
        """Those that may be stopped, the first to go first: the tenant's own where its limits are the obstacle; those
        on borrowed slots; the lowest class; the least work lost; the newest."""
        own_first = finding.scope is Scope.TENANT

        def cost(run: Running) -> tuple[bool, bool, int, float, float, str]:
            of_others = own_first and run.tenant != gang.tenant
            newest_first = -run.started_at.timestamp()
            return (
                of_others,
                not run.borrowed,
                run.priority,
                lost_work_s(run, self._now),
                newest_first,
                run.job,
            )

        taken = {stop.job for stop in self.stops}
        return sorted(
            (
                run
                for run in runs
                if run.job not in taken and can_be_stopped(run, gang, now=self._now, lease=self._lease)
            ),
            key=cost,
        )


class _Rooms:
    """What nodes and limits will have left once earlier gangs of this plan were given theirs."""

    def __init__(self, pool: Pool, runs: Iterable[Running]) -> None:
        self.pool = pool
        self._made: list[_Made] = []
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

    def left(self) -> dict[str, Room]:
        """By node of the pool. Read again for each gang: starts of this plan take slots in between."""
        rooms = dict(self.pool.free.of)
        for made in self._made:
            made.carry_out(rooms)
        return rooms

    def more_used(self, tenant: str) -> tuple[int, int]:
        """The slots and the jobs that the tenant will have in use in addition; less than nothing if more leave."""
        made = [made.more_used(tenant) for made in self._made]
        return sum(slots for slots, _ in made), sum(jobs for _, jobs in made)

    def keep(self, made: _Made) -> None:
        self._made.append(made)


class _Made:
    """The room that one gang finds when these runs have left, on nodes and in its tenant's limits."""

    def __init__(self, gang: Gang, supply: Supply, rooms: _Rooms) -> None:
        self._gang, self._supply, self._pool = gang, supply, rooms.pool
        self._need = rooms.pool.need(gang)
        self._owed = rooms.owed
        self._before, self._earlier = rooms.left(), rooms.more_used(gang.tenant)
        self._leaving: dict[str, Running] = {}
        self._gone: defaultdict[str, list[Running]] = defaultdict(
            list
        )  # by node, once for each learner there
        self._fitting = {name: learners_in(room, self._need) for name, room in self._before.items()}
        self._learners = sum(self._fitting.values())

    def without(self, run: Running) -> None:
        self._leaving[run.job] = run
        for name in run.nodes:
            self._gone[name].append(run)
        self._count(run)

    def with_again(self, run: Running) -> None:
        del self._leaving[run.job]
        for name in run.nodes:
            self._gone[name].remove(run)
        self._count(run)

    def suffices(self) -> bool:
        """Whether every check that a stop can help with passes: the tenant's slots and jobs, and whole learners on
        nodes that take any."""
        if self._learners < self._gang.learners.min:
            return False
        more_slots, more_jobs = self.more_used(self._gang.tenant)
        account, jobs = self._supply.account, self._supply.jobs
        return account.used + self._earlier[0] + more_slots <= account.limit and (
            jobs.limit is None or jobs.used + self._earlier[1] + more_jobs <= jobs.limit
        )

    def more_used(self, tenant: str) -> tuple[int, int]:
        """Slots and jobs: those of the gang less those of the runs that leave, as far as they are this tenant's."""
        leaving = [run for run in self._leaving.values() if run.tenant == tenant]
        slots, jobs = -sum(run.slots * len(run.nodes) for run in leaving), -len(leaving)
        return (slots + self._gang.asked, jobs + 1) if self._gang.tenant == tenant else (slots, jobs)

    def nodes(self) -> dict[str, int]:
        """Where the gang will be, with how many learners: on as few nodes as possible."""
        found, left = {}, self._gang.learners.min
        for name in sorted(self._fitting, key=lambda name: (-self._fitting[name], name)):
            times = min(left, self._fitting[name])
            if times:
                found[name] = times
                left -= times
        return found

    def carry_out(self, rooms: dict[str, Room]) -> None:
        """Change these rooms as the stops and then the start of the gang do."""
        for name in self._gone:
            if name in rooms:
                rooms[name] = self._vacated(name, rooms[name])
        for name, times in self.nodes().items():
            rooms[name] = minus(rooms[name], self._need, times)

    def _count(self, run: Running) -> None:
        for name in {name for name in run.nodes if name in self._before}:
            fitting = learners_in(self._vacated(name, self._before[name]), self._need)
            self._learners += fitting - self._fitting[name]
            self._fitting[name] = fitting

    def _vacated(self, name: str, room: Room) -> Room:
        freed = [0, 0, 0]
        for run in self._gone[name]:
            freed = [sum(pair) for pair in zip(freed, self._pool.need(run.gang), strict=True)]
        slots, cpus, memory = (
            max(0, more - owed) for more, owed in zip(freed, self._owed[name], strict=True)
        )
        return plus(room, need_of(slots, cpus, memory))
