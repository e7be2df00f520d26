"""Preemption: which running jobs are stopped so that a waiting one can start, with the least work lost.

Two rules stop jobs. An urgent job stops those of lower classes (preempted). A job that its tenant's own limit covers
takes back what its tenant lends: it stops those that run on borrowed slots, whatever their class (reclaimed). A job
that would itself borrow stops jobs of its own tenant only. So no two jobs ever stop each other: which slots are
borrowed, and which class a job has, is not changed by who waits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from datetime import datetime, timedelta
from heapq import nsmallest

from gpu_scheduler.checks import Finding, Scope, Supply
from gpu_scheduler.draft import Draft
from gpu_scheduler.ledger import Account, Ledger
from gpu_scheduler.model import Domain, Gang, Priority, Room, Running, Snapshot, Stop, WaitReason, need_of
from gpu_scheduler.placement import Pool
from gpu_scheduler.rooms import learners_in, minus, plus

PREEMPTS = Priority.URGENT
"""The class from which on a waiting job stops others; its own class, not one to which it rose by aging."""
PREEMPTED, RECLAIMED = "preempted", "reclaimed"
"""Reasons of the stops."""
TRIES = 4
"""Sizes of jobs of one tenant and type for which a plan looks in vain for what to reclaim, before it looks no more."""


def borrowed(snapshot: Snapshot) -> dict[str, int]:
    """By job, how many of its slots are not its tenant's own, of tenants in a cohort.

    A tenant's limit covers its highest class first, then what has run the longest; what leaves anyway comes last. So a
    tenant that borrows more turns none of its covered jobs into borrowers, unless those are of a lower class.
    """
    limits = {(quota.tenant, quota.slot_type): quota.limit for quota in snapshot.quotas if quota.cohort}
    runs: defaultdict[tuple[str, str], list[Running]] = defaultdict(list)
    for run in snapshot.running if limits else ():
        if (run.tenant, run.slot_type) in limits:
            runs[run.tenant, run.slot_type].append(run)
    found = {}
    for key, own in runs.items():
        left = limits[key]
        for run in sorted(own, key=_covered_first):
            slots = run.slots * len(run.nodes)
            if slots > left:
                found[run.job] = slots - left
            left = max(0, left - slots)
    return found


def _covered_first(run: Running) -> tuple[bool, int, datetime, str]:
    leaves = run.stopping or isinstance(run.order, Stop)
    return leaves, -run.priority, run.started_at, run.job


def can_be_stopped(run: Running, *, now: datetime, lease: timedelta) -> bool:
    """Whether this run may be stopped at all: not on its way out already, and past its lease, so that a job that is
    stopped again and again still gets on in between."""
    return not run.stopping and run.order is None and run.requeues and now - run.started_at >= lease


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
        self._stoppable: defaultdict[str, list[Running]] = defaultdict(list)
        self._leaving: defaultdict[str, list[Running]] = defaultdict(list)  # by the job that they leave for
        for run in draft.snapshot.running:
            self._runs[run.slot_type].append(run)
            if can_be_stopped(run, now=self._now, lease=self._lease):
                self._stoppable[run.slot_type].append(run)
            elif isinstance(run.order, Stop) and run.order.for_job is not None:
                self._leaving[run.order.for_job].append(run)
        self._borrowed = borrowed(draft.snapshot)
        self._rooms: dict[str, _Rooms] = {}
        self._users: Counter[tuple[str, str, str]] = Counter()
        """By tenant, user and type, the slots that this plan makes room for; the type "" counts jobs."""
        self._in_vain: defaultdict[tuple[str, str], set[Hashable]] = defaultdict(set)
        self.stops: list[Stop] = []

    def make_room(self, gang: Gang, finding: Finding) -> int:
        """Choose what to stop for a gang that cannot start. Returns how many runs leave for it, those ordered to
        before included; 0 if no stop would let it start: then none is ordered. O(n log n) in its type's runs."""
        supply = finding.supply
        if not finding.check.queues or supply.pool is None:
            return 0
        urgent = gang.priority >= PREEMPTS
        if not urgent and not self._may_reclaim(gang, finding):
            return 0
        if not self._user_allows(gang, supply):
            return 0
        slot_type = supply.slot_type
        rooms = self._rooms.get(slot_type)
        if rooms is None:
            rooms = self._rooms[slot_type] = _Rooms(supply.pool, self._runs[slot_type])
        owns = not supply.account.borrows(max(0, rooms.slots[gang.tenant]) + gang.asked)
        candidates, leaving = self._candidates(gang, supply, owns=owns), self._leaving.get(gang.job, [])
        shape = (urgent, "" if urgent and owns else gang.tenant, gang.need, gang.learners.min, gang.topology)
        if (
            not (urgent or owns)
            or not (candidates or leaving or rooms.changed)
            or shape in rooms.too_small_for
        ):
            return 0
        made = _Made(gang, supply, rooms, self._draft.ledger, owns=owns, around_reservations=not urgent)
        for run in leaving:
            made.without(run)
        victims: list[Running] = []
        for run in self._by_preference(gang, finding, candidates):
            if made.suffices():
                break
            made.without(run)
            victims.append(run)
        if not made.suffices():
            self._in_vain[gang.tenant, slot_type].add(_size(gang))
            if not made.holds_gang:
                rooms.too_small_for.add(shape)
            return 0
        for run in reversed(victims[:-1]):  # those that need not leave after all, the dearest first
            made.with_again(run)
            if made.suffices():
                victims.remove(run)
            else:
                made.without(run)
        rooms.keep(made)
        self._users[gang.tenant, gang.user, slot_type] += gang.asked
        self._users[gang.tenant, gang.user, ""] += 1
        self._draft.reserve_nodes(gang, slot_type, made.nodes())
        for run in victims:
            reason = RECLAIMED if self._is_reclaimed(run, gang, supply, owns) else PREEMPTED
            self.stops.append(Stop(run.job, reason, gang.job, run.generation))
            self._stoppable[slot_type].remove(run)
        return len(leaving) + len(victims)

    def _user_allows(self, gang: Gang, supply: Supply) -> bool:
        """Whether its user can have what it asks for, with what this plan makes room for before."""
        slots = self._users[gang.tenant, gang.user, supply.slot_type] + gang.asked
        jobs = self._users[gang.tenant, gang.user, ""] + 1
        return supply.users.allow(gang.user, slots=slots, jobs=jobs)

    def whose(self, job: str) -> str:
        """Which runs are stopped for this job, in words that follow "a running job"."""
        orders = [run.order for run in self._leaving.get(job, ())]
        before = {order.reason for order in orders if isinstance(order, Stop)}
        reasons = before | {stop.reason for stop in self.stops if stop.for_job == job}
        if RECLAIMED not in reasons:
            return "of lower priority"
        return "on borrowed devices" if len(reasons) == 1 else "of lower priority or on borrowed devices"

    def _may_reclaim(self, gang: Gang, finding: Finding) -> bool:
        """Whether it makes sense to look for borrowers: its tenant's limit covers the job, and what it lacks is what
        others could have borrowed. Quick, because it is asked for every job that waits."""
        account = finding.supply.account
        if account.cohort is None or account.borrows(gang.asked):
            return False
        if finding.scope is Scope.TENANT and finding.check.code is not WaitReason.COHORT_GPUS:
            return False
        if gang.job in self._leaving:
            return True
        vain = self._in_vain[gang.tenant, finding.supply.slot_type]
        return bool(self._borrowed) and len(vain) < TRIES and _size(gang) not in vain

    def _is_reclaimed(self, run: Running, gang: Gang, supply: Supply, owns: bool) -> bool:
        """Whether this run holds slots that it borrowed of the gang's cohort, and that the gang's tenant takes back."""
        if not owns or run.job not in self._borrowed or run.tenant == gang.tenant:
            return False
        cohort = supply.account.cohort
        return cohort is not None and self._draft.ledger.account(run.tenant, run.slot_type).cohort is cohort

    def _candidates(self, gang: Gang, supply: Supply, *, owns: bool) -> list[Running]:
        """Those that may be stopped for the gang. owns: its tenant's limit covers it."""
        urgent = gang.priority >= PREEMPTS

        def may_go(run: Running) -> bool:
            if urgent and run.priority < gang.priority and (owns or run.tenant == gang.tenant):
                return True
            return self._is_reclaimed(run, gang, supply, owns)

        return [run for run in self._stoppable[supply.slot_type] if may_go(run)]

    def _by_preference(self, gang: Gang, finding: Finding, candidates: Iterable[Running]) -> list[Running]:
        """The first to go first: the tenant's own where its limits are the obstacle; those on borrowed slots; the
        lowest class; the least work lost; the newest."""
        code = finding.check.code
        own_first = finding.scope is Scope.TENANT and code is not WaitReason.COHORT_GPUS

        def cost(run: Running) -> tuple[bool, bool, int, float, float, str]:
            of_others = own_first and run.tenant != gang.tenant
            newest_first = -run.started_at.timestamp()
            return (
                of_others,
                run.job not in self._borrowed,
                run.priority,
                lost_work_s(run, self._now),
                newest_first,
                run.job,
            )

        return sorted(candidates, key=cost)


def _size(gang: Gang) -> Hashable:
    return gang.slots, gang.learners.min, gang.topology


class _Rooms:
    """What nodes and limits will have left once earlier gangs of this plan were given theirs."""

    def __init__(self, pool: Pool, runs: Iterable[Running]) -> None:
        self.pool = pool
        self._made: list[_Made] = []
        self._left: dict[str, Room] = {}
        self._left_of, self._counted = -1, 0  # free slots that _left began with, and how many of _made it has
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
        """By tenant, what it will have in use in addition; less than nothing if more leave."""
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
        for made in self._made[self._counted :]:
            made.carry_out(self._left)
        self._counted = len(self._made)
        return dict(self._left)

    def keep(self, made: _Made) -> None:
        self._made.append(made)
        self.slots.update(made.slots)
        self.jobs.update(made.jobs)
        self.too_small_for.clear()


class _Made:
    """The room that one gang finds when these runs have left, on nodes and in its tenant's limits.

    slots, jobs: by tenant, what it will have in use in addition. owns: its limit covers the gang. around_reservations:
    not on nodes reserved for another gang that waited too long. Learners are counted by domain where the gang requires
    one, else all together.
    """

    def __init__(
        self,
        gang: Gang,
        supply: Supply,
        rooms: _Rooms,
        ledger: Ledger,
        *,
        owns: bool,
        around_reservations: bool,
    ) -> None:
        self._gang, self._supply, self._pool, self._ledger = gang, supply, rooms.pool, ledger
        self._need = rooms.pool.need(gang)
        self._owed = rooms.owed
        self._before, self._rooms, self._owns = rooms.left(), rooms, owns
        if around_reservations:
            for name in rooms.pool.kept_for_others(gang):
                self._before.pop(name, None)
        self.slots = Counter({gang.tenant: gang.asked})
        self.jobs = Counter({gang.tenant: 1})
        self._gone: defaultdict[str, list[Running]] = defaultdict(
            list
        )  # by node, once for each learner there
        level = gang.required_level
        self._domains = rooms.pool.domains(level) if level is not None else {}
        self._learners: Counter[Domain] = Counter()  # those that fit, by domain
        self._large_enough = 0  # domains
        self._fitting: dict[str, int] = {}
        self._nodes: dict[str, int] | None = None  # of nodes(), once asked for
        for name, room in self._before.items():
            self._set_fitting(name, learners_in(room, self._need))

    @property
    def holds_gang(self) -> bool:
        """Whether all its learners fit on nodes."""
        return self._large_enough > 0

    def _set_fitting(self, name: str, learners: int) -> None:
        domain, least = self._domains.get(name, ()), self._gang.learners.min
        before = self._learners[domain]
        now = self._learners[domain] = before + learners - self._fitting.get(name, 0)
        self._fitting[name] = learners
        self._large_enough += (now >= least) - (before >= least)

    def without(self, run: Running) -> None:
        for name in run.nodes:
            self._gone[name].append(run)
        self._count(run, -1)

    def with_again(self, run: Running) -> None:
        for name in run.nodes:
            self._gone[name].remove(run)
        self._count(run, 1)

    def suffices(self) -> bool:
        """Whether every check that a stop can help with passes: the tenant's slots and jobs, and whole learners on
        nodes that take any."""
        if not self.holds_gang:
            return False
        tenant, account, jobs = self._gang.tenant, self._supply.account, self._supply.jobs
        more_jobs = self._rooms.jobs[tenant] + self.jobs[tenant]
        if jobs.limit is not None and jobs.used + more_jobs > jobs.limit:
            return False
        return self._used(tenant, account) <= account.most and self._cohort_suffices(account)

    def _cohort_suffices(self, account: Account) -> bool:
        cohort, slot_type = account.cohort, self._supply.slot_type
        if cohort is None:
            return True
        taken = cohort.taken + (0 if self._owns else cohort.claimed)
        for tenant in self._rooms.slots.keys() | self.slots.keys():
            other = self._ledger.account(tenant, slot_type)
            if other.cohort is cohort:
                taken += other.of_shared(self._used(tenant, other)) - other.of_shared(other.used)
        return taken <= cohort.shared

    def _used(self, tenant: str, account: Account) -> int:
        return account.used + self._rooms.slots[tenant] + self.slots[tenant]

    def nodes(self) -> dict[str, int]:
        """Where the gang will be, with how many learners: on as few nodes as possible, of the domain in which the least
        is left."""
        if self._nodes is None:
            self._nodes = self._choose_nodes()
        return self._nodes

    def _choose_nodes(self) -> dict[str, int]:
        found, left = {}, self._gang.learners.min
        enough = [(learners, domain) for domain, learners in self._learners.items() if learners >= left]
        if not enough:
            return {}
        _, chosen = min(enough)
        of_domain = (
            (-fit, name)
            for name, fit in self._fitting.items()
            if fit and self._domains.get(name, ()) == chosen
        )
        for fit, name in nsmallest(left, of_domain):
            found[name] = min(left, -fit)
            left -= found[name]
            if not left:
                break
        return found

    def carry_out(self, rooms: dict[str, Room]) -> None:
        """Change these rooms as the stops and then the start of the gang do."""
        for name in self._gone:
            if name in rooms:
                rooms[name] = self._vacated(name, rooms[name])
        for name, times in self.nodes().items():
            rooms[name] = minus(rooms[name], self._need, times)

    def _count(self, run: Running, sign: int) -> None:
        """Count the run as gone (-1), or as staying after all (1)."""
        self._nodes = None
        self.slots[run.tenant] += sign * run.slots * len(run.nodes)
        self.jobs[run.tenant] += sign
        for name in {name for name in run.nodes if name in self._before}:
            self._set_fitting(name, learners_in(self._vacated(name, self._before[name]), self._need))

    def _vacated(self, name: str, room: Room) -> Room:
        freed = [0, 0, 0]
        for run in self._gone[name]:
            freed = [sum(pair) for pair in zip(freed, self._pool.need(run.gang), strict=True)]
        slots, cpus, memory = (
            max(0, more - owed) for more, owed in zip(freed, self._owed[name], strict=True)
        )
        return plus(room, need_of(slots, cpus, memory))
