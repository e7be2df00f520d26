"""Which elastic gangs shrink so that a waiting one can start: where learners are worth the least, no more than needed.

For what waits for nodes any gang of the type does; for what waits for slots of its own tenant or user, the gangs that
hold these; for what its tenant takes back from a cohort, those on borrowed slots. Nothing is stopped for a gang that
starts once others have shrunk.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence

from gpu_scheduler.checks import Finding, Scope
from gpu_scheduler.elastic.allocation import allocate
from gpu_scheduler.model import Gang, Resize, Running, Stop, WaitReason
from gpu_scheduler.placement import Pool
from gpu_scheduler.policies.orders import Order, Orders
from gpu_scheduler.policies.preemption import borrowed
from gpu_scheduler.policies.room import RoomMade
from gpu_scheduler.policies.sizes import Sizes

TRIES, TRIES_IN_ALL = 8, 64
"""Kinds of jobs of one tenant, or of all, and of one type for which a plan looks in vain for what could shrink, before
it looks no more."""
AT_ONCE = 16
"""Jobs of one type for which runs shrink at the same time: as many programs and more store checkpoints then. The others
come when these have started."""
SPARE = 4
"""Of many gangs those are looked at first that hold the most: so many times what is missing."""


class Shrinking:
    """The gangs that shrink in one plan. Ask in the order in which gangs are offered slots."""

    def __init__(self, orders: Orders, sizes: Sizes) -> None:
        self._orders, self._draft, self._sizes = orders, orders.draft, sizes
        self._able: dict[str, list[Running]] = {}
        self._leaving: dict[str, list[Running]] = {}
        self._in_vain: defaultdict[tuple[str, str], set[Hashable]] = defaultdict(set)
        self._tries: Counter[str] = Counter()
        self._hopeless: set[Hashable] = set()
        self._served: Counter[str] = Counter()
        self._borrowed: dict[str, int] | None = None

    def make_room(self, gang: Gang, finding: Finding) -> int:
        """Choose what shrinks for a gang that cannot start. Returns how many runs leave or shrink for it, those ordered
        to before included; 0 if that would not let it start, or if it will without: then nothing is ordered."""
        pool = finding.supply.pool
        if not finding.check.queues or pool is None or not self._sizes.of(pool.slot_type):
            return 0
        kind = (gang.tenant, gang.user, gang.need, gang.learners.min, gang.topology, finding.check.code)
        given, vain = self._orders.given(gang, pool.slot_type), self._in_vain[gang.tenant, pool.slot_type]
        if not given and (
            kind in self._hopeless
            or kind in vain
            or len(vain) >= TRIES
            or self._tries[pool.slot_type] >= TRIES_IN_ALL
            or self._served[pool.slot_type] >= AT_ONCE
        ):
            return 0
        able = self._able_for(gang, finding, pool)
        if not given and (not able or gang.asked > self._reach(pool, able)):
            self._hopeless.add(kind)
            return 0
        rooms = self._orders.rooms(pool)
        owns = not finding.supply.account.borrows(max(0, rooms.slots[gang.tenant]) + gang.asked)
        made = RoomMade(gang, finding.supply, rooms, self._draft.ledger, owns=owns, around_reservations=True)
        for run, order in given:
            made.carried_out(run, order)
        if given and made.suffices():
            rooms.place_all(made)
            return self._give(gang, made, {})
        for run in self._leaving_anyway(pool):
            made.carried_out(run, run.order or Stop(run.job, ""))
        if made.suffices():
            rooms.keep(made)
            self._leaving[pool.slot_type] = []
            return 0
        sizes = self._sizes_for(gang, finding, pool, able, made)
        if sizes is None or not rooms.place_all(made):
            vain.add(kind)
            self._tries[pool.slot_type] += 1
            return 0
        self._leaving[pool.slot_type] = []
        return self._give(gang, made, sizes)

    def _give(self, gang: Gang, made: RoomMade, sizes: dict[str, int]) -> int:
        runs = self._orders.free_to_go[made.slot_type]
        orders: list[tuple[Running, Order]] = [
            (runs[job], Resize(job, learners, runs[job].generation, gang.job))
            for job, learners in sizes.items()
        ]
        if not self._orders.limits_allow(gang, made.slot_type, freed=made.freed_of_user()):
            return 0
        self._served[made.slot_type] += 1
        return self._orders.give(gang, made, orders)

    def _able_for(self, gang: Gang, finding: Finding, pool: Pool) -> list[Running]:
        """The runs that may shrink for it."""
        known = self._able.get(pool.slot_type)
        if known is None:
            known = self._able[pool.slot_type] = self._sizes.can_shrink(pool)
        free_to_go = self._orders.free_to_go[pool.slot_type]
        able = [run for run in known if run.job in free_to_go]
        code = finding.check.code
        if finding.scope is Scope.CLUSTER:
            return able
        if code is WaitReason.USER_GPUS:
            return [run for run in able if run.tenant == gang.tenant and run.gang.user == gang.user]
        if code is WaitReason.COHORT_GPUS and not finding.supply.account.borrows(gang.asked):
            cohort, account = finding.supply.account.cohort, self._draft.ledger.account
            return [
                run
                for run in able
                if run.tenant == gang.tenant
                or (self._borrows(run) and account(run.tenant, run.slot_type).cohort is cohort)
            ]
        if code in (WaitReason.QUOTA_GPUS, WaitReason.COHORT_GPUS):
            return [run for run in able if run.tenant == gang.tenant]
        return []

    def _reach(self, pool: Pool, able: Iterable[Running]) -> int:
        """Slots that are free once what leaves has left and these have their fewest learners."""
        leaving = sum(run.slots * len(run.nodes) for run in self._leaving_anyway(pool))
        return pool.free.total + leaving + sum(_spare(run) for run in able)

    def _borrows(self, run: Running) -> bool:
        if self._borrowed is None:
            self._borrowed = borrowed(self._draft.snapshot)
        return run.job in self._borrowed

    def _leaving_anyway(self, pool: Pool) -> list[Running]:
        """Runs that are on their way out, or shrink, for no other job, and that no earlier gang counted on."""
        found = self._leaving.get(pool.slot_type)
        if found is None:
            found = self._leaving[pool.slot_type] = [
                run
                for run in self._orders.of_type[pool.slot_type]
                if (run.stopping or run.order is not None)
                and (run.order is None or run.order.for_job is None)
                and run.job not in self._draft.kept_for
            ]
        return found

    def _sizes_for(
        self, gang: Gang, finding: Finding, pool: Pool, able: Sequence[Running], made: RoomMade
    ) -> dict[str, int] | None:
        """The sizes, in learners, of those that shrink, as ``made`` has them then; None: none would let it start."""
        held = sum(_spare(run) for run in able)
        missing = max(1, made.missing())
        if missing > held:
            return None
        some = self._largest(able, SPARE * missing)
        for runs in (some, able) if len(some) < len(able) else (able,):
            if self._least(gang, pool, runs, made, missing):
                self._prune(runs, made)
                return made.sizes()
        return None

    def _largest(self, able: Sequence[Running], slots: int) -> list[Running]:
        """Those whose learners are worth the least, so many that they can give up these slots."""
        weight = self._sizes.weight
        found = []
        for run in sorted(
            able, key=lambda run: (weight(run.gang, run.slot_type) / (len(run.nodes) * run.slots), run.job)
        ):
            found.append(run)
            slots -= _spare(run)
            if slots <= 0:
                break
        return found

    def _least(self, gang: Gang, pool: Pool, runs: Sequence[Running], made: RoomMade, missing: int) -> bool:
        """Shrink these runs by as few slots as let the gang start, at least so many; False: it cannot."""
        held = sum(_spare(run) for run in runs)
        if missing > held:
            return False
        if self._shrunk(pool, runs, made, missing):
            return True
        if not self._shrunk(pool, runs, made, held):
            return False
        low, high = missing, held  # low does not suffice, high does
        while high - low > gang.slots:
            middle = (low + high) // 2
            if self._shrunk(pool, runs, made, middle):
                high = middle
            else:
                low = middle
        return self._shrunk(pool, runs, made, high)

    def _shrunk(self, pool: Pool, runs: Sequence[Running], made: RoomMade, slots: int) -> bool:
        """Have so many slots given up where that costs the least; whether the gang can start then."""
        candidates = [
            self._sizes.candidate(pool, run, len(run.nodes), len(run.nodes) - slots // run.slots)
            for run in runs
        ]
        taken = allocate(candidates, sum(run.slots * len(run.nodes) for run in runs) - slots)
        for run in runs:
            made.resized(run, taken[run.job].slots // run.slots)
        return made.suffices()

    def _prune(self, runs: Sequence[Running], made: RoomMade) -> None:
        """Leave those alone that need not shrink, the largest losses first."""
        sizes = made.sizes()
        for run in sorted(
            (run for run in runs if run.job in sizes),
            key=lambda run: (sizes[run.job] - len(run.nodes), run.job),
        ):
            if (len(run.nodes) - sizes[run.job]) * run.slots > -made.missing():
                continue
            made.resized(run, len(run.nodes))
            if not made.suffices():
                made.resized(run, sizes[run.job])


def _spare(run: Running) -> int:
    """Slots that it can give up."""
    return (len(run.nodes) - run.gang.learners.min) * run.slots
