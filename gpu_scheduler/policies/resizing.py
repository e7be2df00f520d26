"""Which elastic gangs run with more or fewer learners from now on.

Every gang keeps its fewest learners. What is left goes where it speeds training up the most in proportion to what a
gang has already: proportional fairness of useful speed, ``goodput_pf`` in the benchmarks. Gangs shrink at once for what
waits for nodes, or for slots of their own tenant or user; they grow into slots that nothing waits for. A change is a
halt and a start, so it must pay for itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpu_scheduler.checks import Finding, Scope
from gpu_scheduler.draft import Draft
from gpu_scheduler.elastic.allocation import Candidate, allocate
from gpu_scheduler.elastic.utility import believed, proportional, sizes, speed
from gpu_scheduler.model import Gang, Resize, Running, Snapshot, Stop, WaitReason
from gpu_scheduler.placement import Pool
from gpu_scheduler.policies.preemption import can_be_stopped

OF_TENANT = frozenset({WaitReason.QUOTA_GPUS, WaitReason.COHORT_GPUS})
"""Why a job waits whose tenant's slots are used up: by its own elastic gangs, maybe."""


@dataclass(frozen=True, slots=True)
class Resizes:
    """When a gang is resized. Times are in seconds.

    every_s: how often a run is looked at, and how long it is left alone after its start. pays_back_s: a change must
    gain more work within this time than it costs. cost_s: what a halt and a start cost where that was never measured.
    """

    every_s: float = 60
    pays_back_s: float = 600
    cost_s: float = 30

    def next_at(self, snapshot: Snapshot) -> datetime | None:
        """When the next elastic run is due to be looked at."""
        due = [self._due(run, snapshot.now) for run in snapshot.running if is_elastic(run)]
        return min(due, default=None)

    def _due(self, run: Running, now: datetime) -> datetime:
        every = timedelta(seconds=self.every_s)
        return run.started_at + (max(timedelta(), now - run.started_at) // every + 1) * every

    def cost_of(self, run: Running, now: datetime) -> float:
        """Seconds without progress if this run is resized, with those whose work may be lost."""
        lost = 0.0
        if not run.saves_when_asked:
            lost = (now - max(run.started_at, run.last_checkpoint_at or run.started_at)).total_seconds()
        if run.checkpoint_cost_s is None and run.restart_cost_s is None:
            return self.cost_s + lost
        return (run.checkpoint_cost_s or 0.0) + (run.restart_cost_s or 0.0) + lost


class Resizing:
    """The sizes in one plan: of gangs that start, and after all were offered slots of those that run."""

    def __init__(self, draft: Draft, rules: Resizes, lease_s: float) -> None:
        self._draft, self._rules, self._now = draft, rules, draft.snapshot.now
        self._lease = timedelta(seconds=lease_s)
        self._runs: defaultdict[str, list[Running]] = defaultdict(list)
        for run in draft.snapshot.running:
            if is_elastic(run):
                self._runs[run.slot_type].append(run)
        self._started: set[str] = set()
        self._first_sizes: dict[str, dict[str, int]] = {}

    @property
    def is_needed(self) -> bool:
        """Whether an elastic gang runs once this plan is carried out."""
        return bool(self._runs) or any(
            gang.job in self._started for gang in self._draft.waiting if gang.elastic
        )

    def first_size(self, gang: Gang) -> int:
        """With how many learners a gang that starts now should do so: those that a resize decided; else, if it was
        measured before, its part of what all elastic gangs and the free nodes have together; else the fewest."""
        size = self._first_size(gang)
        self._started.add(gang.job)
        return size

    def _first_size(self, gang: Gang) -> int:
        if gang.target is not None:
            return gang.target
        if gang.slot_type is None or gang.elastic is None or gang.elastic.step_times is None:
            return gang.learners.min
        sizes_of = self._first_sizes.get(gang.slot_type)
        if sizes_of is None:
            sizes_of = self._first_sizes[gang.slot_type] = self._divide_first(gang.slot_type)
        return sizes_of.get(gang.job, gang.learners.min)

    def _divide_first(self, slot_type: str) -> dict[str, int]:
        pool, runs = self._draft.pools[slot_type], self._runs[slot_type]
        waiting = [
            gang
            for gang in self._draft.waiting
            if gang.slot_type == slot_type and gang.job not in self._started
        ]
        known = [gang for gang in waiting if gang.target is None and gang.elastic and gang.elastic.step_times]
        new = {gang.job: gang for gang in known}
        held = sum(run.slots * len(run.nodes) for run in runs)
        others = sum(
            (gang.target or gang.learners.min) * gang.slots for gang in waiting if gang.job not in new
        )
        free = pool.unreserved.total - others
        running = [self._candidate(pool, run, self._most(pool, run)) for run in runs]
        taken = allocate([*running, *(self._new_candidate(pool, gang) for gang in known)], held + free)
        return {job: taken[job].slots // gang.slots for job, gang in new.items()}

    def _new_candidate(self, pool: Pool, gang: Gang) -> Candidate:
        per_node = pool.per_node(gang)
        most = believed(gang, gang.learners.min)
        choices = {n: -(-n // per_node) for n in sizes(gang.learners.min, most, per_node)}
        options = proportional(gang, choices, now=0, kept=1.0, weight=self._weight(gang, pool.slot_type))
        return Candidate(gang.job, options, gang.tenant)

    def orders(self, waits: Sequence[tuple[Gang, Finding]], stops: Iterable[Stop]) -> list[Resize]:
        """waits: those that cannot start, in the order in which they were offered slots; stops: what is ordered."""
        leaving = {stop.job for stop in stops}
        staying = {
            slot_type: [run for run in runs if run.job not in leaving]
            for slot_type, runs in sorted(self._runs.items())
            if slot_type
            in self._draft.pools  # otherwise its last node is gone, or nothing waits for such nodes
        }
        if not staying:
            return []
        lacking: defaultdict[str, list[tuple[Gang, Finding]]] = defaultdict(list)
        for gang, finding in waits:
            if finding.supply.pool is not None:
                lacking[finding.supply.slot_type].append((gang, finding))
        return [
            resize
            for slot_type, runs in staying.items()
            for resize in self._of_type(self._draft.pools[slot_type], runs, lacking[slot_type])
        ]

    def _of_type(
        self, pool: Pool, runs: list[Running], waits: Sequence[tuple[Gang, Finding]]
    ) -> list[Resize]:
        """Make room for what waits for nodes, else for what waits for slots of its own tenant or user; else divide
        what is free."""
        for_nodes = [gang for gang, finding in waits if finding.scope is Scope.CLUSTER]
        free = max(0, pool.free.total + _leaving(self._draft.snapshot.running, pool.slot_type))
        orders, free = self._make_room(pool, runs, for_nodes, free)
        for those, gangs, room in () if orders else self._limited(pool, runs, waits):
            ordered = {order.job for order in orders}
            orders += self._make_room(pool, [run for run in those if run.job not in ordered], gangs, room)[0]
        if orders:
            return orders
        return self._divide(
            pool, [run for run in runs if self._may_change(run)], min(free, pool.unreserved.total)
        )

    def _limited(
        self, pool: Pool, runs: list[Running], waits: Sequence[tuple[Gang, Finding]]
    ) -> Iterator[tuple[list[Running], list[Gang], int]]:
        """The runs that count against one limit, what waits for slots within it, and how many it leaves."""
        groups: defaultdict[tuple[str, str | None], list[Gang]] = defaultdict(list)
        for gang, finding in waits:
            if finding.check.code in OF_TENANT:
                groups[gang.tenant, None].append(gang)
            elif finding.check.code is WaitReason.USER_GPUS:
                groups[gang.tenant, gang.user].append(gang)
        for (tenant, user), gangs in groups.items():

            def counts(run: Running, tenant: str = tenant, user: str | None = user) -> bool:
                return run.tenant == tenant and user in (None, run.gang.user)

            if user is None:
                room = self._draft.ledger.account(tenant, pool.slot_type).room(gangs[0].asked)
            else:
                users = self._draft.ledger.users(tenant, pool.slot_type)
                room = (users.slots or 0) - users.used[user]
            leaving = _leaving(filter(counts, self._draft.snapshot.running), pool.slot_type)
            yield [run for run in runs if counts(run)], gangs, max(0, max(0, room) + leaving)

    def _make_room(
        self, pool: Pool, runs: list[Running], waiting: Iterable[Gang], free: int
    ) -> tuple[list[Resize], int]:
        """Shrink these runs for what waits, as far as that lets it start; and what is free beside it."""
        able = [run for run in runs if self._may_shrink(run)]
        held = sum((len(run.nodes) - run.gang.learners.min) * run.slots for run in able)
        missing = 0
        for gang in waiting:
            short = max(0, gang.asked - free)
            if missing + short > held or not pool.up_could_hold(gang):
                continue  # no resize would make room for it
            missing += short
            free = max(0, free - gang.asked)
        return (self._shrink(pool, able, missing) if missing else []), free

    def _may_shrink(self, run: Running) -> bool:
        return self._may_be_resized(run, self._lease)

    def _may_change(self, run: Running) -> bool:
        """It has run for long enough to be divided again with the others."""
        return self._may_be_resized(run, timedelta(seconds=self._rules.every_s))

    def _may_be_resized(self, run: Running, lease: timedelta) -> bool:
        """No change may cost more than the time in which it would have to pay."""
        affordable = self._rules.cost_of(run, self._now) <= self._rules.pays_back_s
        return affordable and can_be_stopped(run, now=self._now, lease=lease) and self._could_return(run)

    def _could_return(self, run: Running) -> bool:
        """Whether it could start again: a suspension or a lowered limit stops nothing that runs, so no resize may."""
        jobs, account = (
            self._draft.ledger.jobs(run.tenant),
            self._draft.ledger.account(run.tenant, run.slot_type),
        )
        limit_s, longest_s = run.gang.runs_at_most_s, jobs.max_time_s
        return (
            not jobs.suspended
            and (jobs.limit is None or jobs.used <= jobs.limit)
            and account.used <= account.most
            and (longest_s is None or (limit_s is not None and limit_s <= longest_s))
            and all(name in self._draft.pools[run.slot_type].unreserved.of for name in run.nodes)
        )

    def _shrink(self, pool: Pool, runs: list[Running], missing: int) -> list[Resize]:
        """Take so many slots from where they are worth the least."""
        candidates = [self._candidate(pool, run, len(run.nodes), -missing) for run in runs]
        held = sum(run.slots * len(run.nodes) for run in runs)
        return self._changes(runs, candidates, held - missing)

    def _divide(self, pool: Pool, runs: list[Running], free: int) -> list[Resize]:
        """Divide again what these runs hold and what is free. Growth goes into what is free; what a run is to get from
        another one waits until that one has given it up. Sizes that pack well come first; what is left after these is
        used in any size."""
        by_job = {run.job: run for run in runs}
        changes = self._paying(pool, runs, free, 0) or self._paying(pool, runs, free, free)
        chosen = [each for each in changes if each.learners < len(by_job[each.job].nodes)]
        for each in changes:
            run = by_job[each.job]
            more = (each.learners - len(run.nodes)) * run.slots
            if 0 < more <= free and pool.could_return(run, each.learners):
                free -= more
                chosen.append(each)
        return chosen

    def _paying(self, pool: Pool, runs: list[Running], free: int, more: int) -> list[Resize]:
        """The changes of one division, without growth that does not pay and what others would give up for it."""
        most = {run.job: self._most(pool, run) for run in runs}
        by_job = {run.job: run for run in runs}
        held = sum(run.slots * len(run.nodes) for run in runs)
        while True:
            candidates = [self._candidate(pool, run, most[run.job], more) for run in runs]
            changes = self._changes(runs, candidates, held + free, self._rooms(pool, runs))
            vain = [each for each in changes if not self._pays(pool, by_job[each.job], each.learners)]
            if not vain:
                return changes
            for each in vain:
                most[each.job] = len(by_job[each.job].nodes)

    def _most(self, pool: Pool, run: Running) -> int:
        """The most learners that it may have: by what is known of it, by its nodes, and by limits of jobs and users."""
        gang, now = run.gang, len(run.nodes)
        most = believed(gang, now)
        account = self._draft.ledger.account(gang.tenant, run.slot_type)
        if account.gang_limit is not None:
            most = min(most, account.gang_limit // gang.slots)
        users = self._draft.ledger.users(gang.tenant, run.slot_type)
        if users.slots is not None:
            most = min(most, now + (users.slots - users.used[gang.user]) // gang.slots)
        return max(now, min(most, pool.most_up(gang)))

    def _rooms(self, pool: Pool, runs: Iterable[Running]) -> dict[str, int]:
        """By tenant, the slots that its runs may have beside their fewest."""
        rooms: Counter[str] = Counter()
        for run in runs:
            rooms[run.tenant] += (len(run.nodes) - run.gang.learners.min) * run.slots
        for run in self._draft.snapshot.running:
            if run.slot_type == pool.slot_type and run.tenant in rooms and isinstance(run.order, Resize):
                rooms[run.tenant] -= max(0, run.order.learners - len(run.nodes)) * run.slots  # taken soon
        account = self._draft.ledger.account
        return {
            tenant: max(0, held + max(0, account(tenant, pool.slot_type).room(1)))
            for tenant, held in rooms.items()
        }

    def _candidate(self, pool: Pool, run: Running, most: int, more: int = 0) -> Candidate:
        """more: slots by which it could grow, or less than 0 would have to shrink, if it alone changed."""
        gang, now = run.gang, len(run.nodes)
        per_node = pool.per_node(gang)
        least = min(gang.learners.min, now)
        room = self._draft.ledger.account(gang.tenant, run.slot_type).room(1)
        in_reach = now + min(more, max(0, room)) // run.slots
        choices = self._nodes_for(pool, run, sizes(least, most, per_node, now, in_reach))
        age = (self._now - run.started_at).total_seconds()
        kept = max(age, 1.0) / (max(age, 1.0) + self._rules.cost_of(run, self._now))
        weight = self._weight(gang, run.slot_type)
        options = proportional(gang, choices, now=now, kept=kept, weight=weight)
        return Candidate(run.job, options, gang.tenant)

    def _weight(self, gang: Gang, slot_type: str) -> float:
        """That of its tenant, doubled by each class."""
        return self._draft.ledger.account(gang.tenant, slot_type).weight * 2.0 ** (gang.priority - 1)

    def _changes(
        self,
        runs: Iterable[Running],
        candidates: Sequence[Candidate],
        slots: int,
        rooms: dict[str, int] | None = None,
    ) -> list[Resize]:
        taken = allocate(candidates, slots, rooms)
        return [
            Resize(run.job, learners, run.generation)
            for run in runs
            if (learners := taken[run.job].slots // run.slots) != len(run.nodes)
        ]

    def _pays(self, pool: Pool, run: Running, learners: int) -> bool:
        """Whether a larger size gains more than the change costs."""
        if learners <= len(run.nodes):
            return True
        before, after = (
            speed(run.gang, size, nodes)
            for size, nodes in self._nodes_for(pool, run, (len(run.nodes), learners)).items()
        )
        return (after - before) * self._rules.pays_back_s > self._rules.cost_of(run, self._now) * before

    @staticmethod
    def _nodes_for(pool: Pool, run: Running, choices: Iterable[int]) -> dict[int, int]:
        """By number of learners, on how many nodes they would be; those that it has are where they are."""
        return pool.nodes_for(run, choices) | {len(run.nodes): len(set(run.nodes))}


def is_elastic(run: Running) -> bool:
    """Whether it can run in more than one size."""
    return run.gang.elastic is not None and run.gang.learners.max > run.gang.learners.min


def _leaving(running: Iterable[Running], slot_type: str) -> int:
    """Slots that orders give up that are being carried out, less those that they take."""
    total = 0
    for run in running:
        if run.slot_type != slot_type:
            continue
        if isinstance(run.order, Resize):
            total += (len(run.nodes) - run.order.learners) * run.slots
        elif run.stopping or isinstance(run.order, Stop):
            total += len(run.nodes) * run.slots
    return total
