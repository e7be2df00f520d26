"""With how many learners elastic gangs start, and how those that run share what nothing waits for.

Every gang keeps its fewest learners. What is left goes where it speeds training up the most in proportion to what a
gang has already: proportional fairness of useful speed between tenants, ``goodput_pf`` in the benchmarks. A change is a
halt and a start, so it must pay for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from gpu_scheduler.checks import Finding, Scope
from gpu_scheduler.draft import Draft
from gpu_scheduler.elastic.allocation import Candidate, Refusal, allocate
from gpu_scheduler.elastic.utility import believed, bounds
from gpu_scheduler.model import Gang, Growth, GrowthReason, Resize, Running, Stop
from gpu_scheduler.placement import Pool
from gpu_scheduler.policies.ahead import Ahead
from gpu_scheduler.policies.growths import Note
from gpu_scheduler.policies.orders import Orders
from gpu_scheduler.policies.sizes import Resizes, Sizes

Changes = Mapping[str, int]
"""By job, with how many learners it is to run."""
Bound = tuple[GrowthReason, int]
"""Why a run may have so many learners at most."""
ATTEMPTS = 20
"""Divisions that are tried, each with less for those that cannot have what the one before gave them."""


class Resizing:
    """The sizes in one plan: of gangs that start, and after all were offered slots of those that run."""

    def __init__(self, orders: Orders, sizes: Sizes, rules: Resizes) -> None:
        self._orders, self._sizes, self._rules = orders, sizes, rules
        self._draft: Draft = orders.draft
        self._growths = sizes.growths
        self._started: set[str] = set()
        self._first_sizes: dict[str, dict[str, int]] = {}

    @property
    def is_needed(self) -> bool:
        """Whether an elastic gang runs once this plan is carried out."""
        return self._sizes.any_runs or any(
            gang.job in self._started for gang in self._draft.waiting if gang.elastic
        )

    def first_size(self, gang: Gang) -> int:
        """With how many learners a gang that starts now should do so: those that a resize decided; else, if it was
        measured before, its part of what all elastic gangs and the free nodes have together; else the fewest."""
        size = self._first_size(gang)
        self._started.add(gang.job)
        return size

    def waits(self, gang: Gang) -> bool:
        """Whether it has not started in this plan, and is not one that a resize brought here."""
        return gang.target is None and gang.job not in self._started

    def _first_size(self, gang: Gang) -> int:
        if gang.target is not None:
            return gang.target
        if gang.slot_type is None or not _is_measured(gang):
            return gang.learners.min
        sizes_of = self._first_sizes.get(gang.slot_type)
        if sizes_of is None:
            sizes_of = self._first_sizes[gang.slot_type] = self._divide_first(gang.slot_type)
        return sizes_of.get(gang.job, gang.learners.min)

    def _divide_first(self, slot_type: str) -> dict[str, int]:
        pool, runs = self._draft.pools[slot_type], self._sizes.of(slot_type)
        waiting = [
            gang
            for gang in self._draft.waiting
            if gang.slot_type == slot_type and gang.job not in self._started and self._draft.may_start(gang)
        ]
        new = {gang.job: gang for gang in waiting if gang.target is None and _is_measured(gang)}
        tenants = {gang.tenant for gang in waiting} | {run.tenant for run in runs}
        rooms = {tenant: self._room(tenant, slot_type) for tenant in tenants}
        free = pool.unreserved.total - sum(gang.asked for gang in new.values())
        for gang in new.values():
            rooms[gang.tenant] -= gang.asked
        others = [gang for gang in waiting if gang.job not in new]
        for gang in sorted(others, key=lambda gang: (-gang.priority, gang.queued_at, gang.job)):
            slots = (gang.target or gang.learners.min) * gang.slots
            if slots <= min(free, rooms[gang.tenant]):  # else it waits whatever the new ones have
                free -= slots
                rooms[gang.tenant] -= slots
        for run in runs:
            rooms[run.tenant] += (len(run.nodes) - run.gang.learners.min) * run.slots
        slots = (
            sum(run.slots * len(run.nodes) for run in runs) + sum(gang.asked for gang in new.values()) + free
        )
        starting = Counter(gang.tenant for gang in new.values())
        candidates = [self._candidate(pool, run, self._most(pool, run), 0) for run in runs]
        candidates += [
            self._sizes.new_candidate(pool, gang, self._most_of_new(pool, gang), starting[gang.tenant])
            for gang in new.values()
        ]
        taken = allocate(candidates, slots, {tenant: max(0, room) for tenant, room in rooms.items()})
        return {job: taken[job].slots // gang.slots for job, gang in new.items()}

    def _room(self, tenant: str, slot_type: str) -> int:
        """Slots that the tenant can have in addition now."""
        jobs = self._draft.ledger.jobs(tenant)
        if jobs.suspended or not jobs.budget_lasts(1):
            return 0
        return max(0, self._draft.ledger.account(tenant, slot_type).room(1))

    def orders(self, waits: Iterable[tuple[Gang, Finding]]) -> None:
        """Order what is left to divide once all gangs were offered slots. waits: those that cannot start, in the order
        in which they were."""
        if not self._sizes.any_runs:
            return
        busy = {resize.job for resize in self._orders.resizes}
        reach = {slot_type: self._reach(slot_type) for slot_type in self._sizes.types}
        wanted: Counter[str] = Counter()
        for gang, finding in waits:
            pool, slot_type = finding.supply.pool, finding.supply.slot_type
            if finding.scope is not Scope.CLUSTER or pool is None or slot_type not in reach:
                continue
            # What would not start even if all elastic runs shrank waits for others: until these leave, free slots are
            # as good as not wanted.
            if wanted[slot_type] + gang.asked <= reach[slot_type] and pool.up_could_hold(gang):
                wanted[slot_type] += gang.asked
        for slot_type in self._sizes.types:
            pool = self._draft.pools.get(slot_type)
            if pool is None:
                for run in self._sizes.of(slot_type):
                    self._growths.note(run.job, GrowthReason.NODE_CLOSED)
                continue  # its last node is gone
            if any(run.job in busy for run in self._sizes.of(slot_type)):
                for run in self._sizes.of(slot_type):
                    self._growths.note(run.job, GrowthReason.SHRINKING_FIRST)
                continue
            self._divide(pool, self._sizes.can_change(pool), wanted[slot_type])

    def growths(self) -> Sequence[Growth]:
        """Why the elastic runs get no more learners, once `orders` has decided."""
        runs = [run for slot_type in self._sizes.types for run in self._sizes.of(slot_type)]
        ordered = {each.job: each for each in self._orders.resizes}
        for run in runs:
            order = ordered.get(run.job, run.order)
            if isinstance(order, Resize) and order.learners == len(run.nodes):
                self._growths.note(run.job, GrowthReason.MOVING)
            elif isinstance(order, Resize):
                self._growths.note(run.job, GrowthReason.RESIZING, to=order.learners)
        stopped = {stop.job for stop in self._orders.stops}
        staying = [run for run in runs if run.job not in stopped and not isinstance(run.order, Stop)]
        return self._growths.explained(staying)

    def _reach(self, slot_type: str) -> int:
        """Slots that are free once what leaves has left and every elastic run has its fewest learners."""
        if slot_type not in self._draft.pools:
            return 0
        spare = sum((len(run.nodes) - run.gang.learners.min) * run.slots for run in self._sizes.of(slot_type))
        return self._draft.pools[slot_type].free.total + self._leaving(slot_type) + spare

    def _leaving(self, slot_type: str) -> int:
        """Slots that orders give up that are being carried out, less those that they take, on nodes that take learners.
        What stands in for learners on other nodes is withheld already, where anything is."""
        total, up = 0, self._draft.pools[slot_type].free.of
        for run in self._orders.of_type[slot_type]:
            if not (run.stopping or run.order is not None):
                continue
            there = sum(name in up for name in run.nodes)
            if isinstance(run.order, Resize):
                less, more = there - run.order.learners, run.order.learners - len(run.nodes)
                total += (max(0, less) - max(0, more)) * run.slots
            else:
                total += there * run.slots
        return total

    def _divide(self, pool: Pool, runs: Sequence[Running], wanted: int) -> None:
        """Divide again what these runs hold and what is free. Growth goes into what is free; what a run is to get from
        another one waits until that one has given it up. Sizes that pack well come first; what is left after these is
        used in any size."""
        if not runs:
            return
        free = max(0, pool.free.total + self._leaving(pool.slot_type) - wanted)
        free = min(free, pool.unreserved.total)
        changes = self._changes(pool, runs, free, 0) or self._changes(pool, runs, free, free)
        by_job = {run.job: run for run in runs}
        at_once = max(self._rules.at_least, int(self._rules.at_once * len(self._sizes.of(pool.slot_type))))
        shrinking = [job for job, learners in changes.items() if learners < len(by_job[job].nodes)]
        for job in shrinking:
            self._growths.note(job, GrowthReason.OTHERS_GAIN)
        growing, ahead = [], Ahead(self._draft, pool)
        for job, learners in changes.items():
            run = by_job[job]
            more = (learners - len(run.nodes)) * run.slots
            if 0 < more <= free and ahead.most(run, learners) == learners:
                ahead.take(run, learners)
                free -= more
                growing.append(job)
                self._growths.note(job, GrowthReason.AT_ONCE, to=learners, at_once=at_once)
            elif more > 0:
                self._growths.note(job, GrowthReason.AFTER_OTHERS, to=learners)
        under_way = sum(isinstance(run.order, Resize) for run in self._sizes.of(pool.slot_type))
        for job in [*growing, *shrinking][: max(0, at_once - under_way)]:
            run = by_job[job]
            self._orders.order(run, Resize(job, changes[job], run.generation))

    def _changes(self, pool: Pool, runs: Sequence[Running], free: int, more: int) -> Changes:
        """The changes of one division, without growth that does not pay or is not allowed, and without what others
        would give up for that. more: slots by which a run could grow to a size between those that pack well."""
        bound = {run.job: self._bound(pool, run) for run in runs}
        most = {run.job: max(len(run.nodes), bound[run.job][1]) for run in runs}
        stopped: dict[str, Note] = {}
        held = sum(run.slots * len(run.nodes) for run in runs)
        rooms = self._rooms(pool, runs)
        for _ in range(ATTEMPTS):
            candidates = [self._candidate(pool, run, most[run.job], more) for run in runs]
            refused: dict[str, Refusal] = {}
            taken = allocate(candidates, held + free, rooms, refused)
            sizes = {run.job: taken[run.job].slots // run.slots for run in runs}
            changes = {run.job: sizes[run.job] for run in runs if sizes[run.job] != len(run.nodes)}
            less = self._too_many(pool, [run for run in runs if run.job in changes], changes)
            if not less:
                for run in runs:
                    if run.job not in changes:
                        reason, found = stopped.get(run.job) or self._kept_by(pool, run, bound, refused, free)
                        self._growths.note(run.job, reason, **found)
                return changes
            stopped |= {
                run.job: self._stopped(pool, run, changes[run.job], less[run.job])
                for run in runs
                if run.job in less
            }
            most |= less
        return {}

    def _too_many(self, pool: Pool, runs: Sequence[Running], changes: Changes) -> dict[str, int]:
        """By job, the most learners that it should be given where a change gives it more: where growth does not pay,
        those that it has."""
        less = {run.job: len(run.nodes) for run in runs if not self._sizes.pays(pool, run, changes[run.job])}
        if less:
            return less
        shrunk = [(run, changes[run.job]) for run in runs if changes[run.job] < len(run.nodes)]
        ahead = Ahead(self._draft, pool, shrunk)
        for run in runs:
            if changes[run.job] > len(run.nodes):
                most = max(len(run.nodes), ahead.most(run, changes[run.job]))
                if most < changes[run.job]:
                    less[run.job] = most
                else:
                    ahead.take(run, most)
        return less

    def _stopped(self, pool: Pool, run: Running, tried: int, less: int) -> Note:
        """Which rule of `_too_many` it was."""
        if not self._sizes.pays(pool, run, tried):
            return GrowthReason.NOT_WORTH, self._compared(pool, run, tried) | self._rules.costs(run)
        return GrowthReason.NO_PLACE, {"tried": tried, "fits": less}

    def _kept_by(
        self,
        pool: Pool,
        run: Running,
        bound: Mapping[str, Bound],
        refused: Mapping[str, Refusal],
        free: int,
    ) -> Note:
        """What kept a division from giving it more, which ended with the learners that it has."""
        reason, most = bound[run.job]
        if most <= len(run.nodes):
            return reason, {"most": max(0, most)}
        if (refusal := refused.get(run.job)) is None:
            return self._not_faster(pool, run, most)
        needed = refusal.slots - len(run.nodes) * run.slots
        if refusal.of_group:
            left = max(0, self._draft.ledger.account(run.tenant, run.slot_type).room(1))
            if needed > left:
                return GrowthReason.QUOTA, {"needed": needed, "left": left}
            return GrowthReason.OTHERS_GAIN, {}  # of its own tenant: they have what is left
        if needed > pool.free.total:
            return GrowthReason.NOT_FREE, {"needed": needed, "free": pool.free.total}
        if needed > free:
            kept = pool.free.total - free
            return GrowthReason.KEPT, {"needed": needed, "free": pool.free.total, "kept": kept}
        return GrowthReason.OTHERS_GAIN, {}

    def _not_faster(self, pool: Pool, run: Running, most: int) -> Note:
        """By the fastest of the larger sizes: that is no faster, or not by as much as a change costs."""
        options = (option.slots // run.slots for option in self._candidate(pool, run, most, 0).options)
        compared = [self._compared(pool, run, size) for size in options if size > len(run.nodes)]
        found = max(compared, key=itemgetter("times"))
        if found["times"] < 1.005:  # as it is written
            return GrowthReason.NOT_FASTER, found
        return GrowthReason.NOT_WORTH, found | self._rules.costs(run)

    def _compared(self, pool: Pool, run: Running, learners: int) -> dict[str, Any]:
        before, after = self._sizes.compared(pool, run, learners)
        return {"tried": learners, "times": after / before if before > 0 else 1.0}

    def _candidate(self, pool: Pool, run: Running, most: int, more: int) -> Candidate:
        room = max(0, self._draft.ledger.account(run.tenant, run.slot_type).room(1))
        return self._sizes.candidate(pool, run, most, len(run.nodes) + min(more, room) // run.slots)

    def _most(self, pool: Pool, run: Running) -> int:
        """The most learners that it may have: by what is known of it, by its nodes, and by limits of jobs, users and
        projects."""
        return max(len(run.nodes), self._bound(pool, run)[1])

    def _bound(self, pool: Pool, run: Running) -> Bound:
        """What that comes from, of equal ones the first; less than it has, where a limit was lowered since."""
        gang, now = run.gang, len(run.nodes)
        found = chain(bounds(gang, now), self._limits(pool, gang, held=now * run.slots))
        return min(found, key=itemgetter(1))

    def _most_of_new(self, pool: Pool, gang: Gang) -> int:
        least = gang.learners.min
        limits = (most for _, most in self._limits(pool, gang, held=0))
        return max(least, min(believed(gang, least), *limits))

    def _limits(self, pool: Pool, gang: Gang, *, held: int) -> Iterator[Bound]:
        """What limits of jobs, users and projects, and the nodes, allow it."""
        account = self._draft.ledger.account(gang.tenant, pool.slot_type)
        users = self._draft.ledger.users(gang.tenant, pool.slot_type)
        if account.gang_limit is not None:
            yield GrowthReason.JOB_LIMIT, account.gang_limit // gang.slots
        if users.slots is not None:
            yield GrowthReason.USER_LIMIT, (held + users.slots - users.used[gang.user]) // gang.slots
        project = self._draft.ledger.projects.account(gang, pool.slot_type)
        if project.limit is not None:
            yield GrowthReason.PROJECT_LIMIT, (held + project.limit - project.used) // gang.slots
        yield GrowthReason.NODES, pool.most_up(gang)

    def _rooms(self, pool: Pool, runs: Iterable[Running]) -> dict[str, int]:
        """By tenant, the slots that its runs may have beside their fewest."""
        rooms: Counter[str] = Counter()
        for run in runs:
            rooms[run.tenant] += (len(run.nodes) - run.gang.learners.min) * run.slots
        for run in self._orders.of_type[pool.slot_type]:
            if run.tenant in rooms and isinstance(run.order, Resize):
                rooms[run.tenant] -= max(0, run.order.learners - len(run.nodes)) * run.slots  # taken soon
        account = self._draft.ledger.account
        return {
            tenant: max(0, held + max(0, account(tenant, pool.slot_type).room(1)))
            for tenant, held in rooms.items()
        }


def _is_measured(gang: Gang) -> bool:
    return gang.elastic is not None and gang.elastic.step_times is not None
