"""Preemption: which running jobs are stopped so that a waiting one can start, with the least work lost.

Two rules stop jobs. An urgent job stops those of lower classes (preempted). A job that its tenant's own limit covers
takes back what its tenant lends: it stops those that run on borrowed slots, whatever their class (reclaimed), and where
these lie on the wrong nodes others of the borrower, or has runs start again elsewhere (moved; ``policies.reclaim``). A
job that would itself borrow stops jobs of its own tenant only. So stops come to an end: each raises what tenants hold
within their limits, or the class of what runs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from datetime import datetime, timedelta

from gpu_scheduler.checks import Finding, Scope, Supply
from gpu_scheduler.draft import PREEMPTS
from gpu_scheduler.losses import lost_work_s
from gpu_scheduler.model import Gang, Room, Running, Snapshot, Stop, WaitReason
from gpu_scheduler.placement import Pool
from gpu_scheduler.policies.orders import Order, Orders
from gpu_scheduler.policies.reclaim import Beyond, Clearing, Effort, Leaving
from gpu_scheduler.policies.room import MOVED, RoomMade
from gpu_scheduler.rooms import plus

Asker = tuple[str, str]
"""A tenant, and the slot type on which its jobs would start."""
PREEMPTED, RECLAIMED = "preempted", "reclaimed"
"""Reasons of the stops."""
STILL_FREE = 0.75
"""The part of the sorted runs that can still be ordered, below which they are filtered again."""
CLEARINGS = 8
"""Gangs of one type for which a plan clears nodes; the others come when these have started."""
WORK = 60_000
"""How many learners one plan tries to do without, or to have again, for all jobs that wait. A unit takes about 10 µs. A
plan is whole without that: what it did not get to search for is for the next ones (``Preemption.left_out``)."""
EFFORT, LEAST_EFFORT = 40_000, 2_000
"""How many learners one plan tries to do without, or to have again, while it looks in vain for nodes of one type to
clear. Tenants that wait share it, each with at least so many: what one asks for in vain takes nothing from others."""
MOST_EFFORT = 10_000
"""The part of one tenant."""
LOOKED_AT = 8
"""Runs or nodes that are looked at in the time in which one learner is tried."""
FEW = 64
"""Runs that are tried for a job before it is asked whether all of them together could be enough."""
TRIES = 4
"""Sizes of jobs of one tenant, type and class for which a plan looks in vain for what to reclaim, before it looks no
more."""


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


def _covered_first(run: Running) -> tuple[bool, int, datetime, datetime, str]:
    """Starts that share a commit are at one moment: of these, those first that queued first."""
    leaves = run.stopping or isinstance(run.order, Stop)
    return leaves, -run.priority, run.started_at, run.gang.queued_at, run.job


class Candidates:
    """Runs that may be stopped for jobs alike: runs, those of ``among`` in its order."""

    def __init__(self, among: list[Running], runs: list[Running]) -> None:
        self.among, self.runs = among, runs
        self._room: dict[str, Room] | None = None

    def room(self, pool: Pool) -> Mapping[str, Room]:
        """What they hold, by node. Counted once: what is stopped for others meanwhile is still in it."""
        if self._room is None:
            self._room = {}
            for run in self.runs:
                for name in run.nodes:
                    self._room[name] = plus(self._room.get(name, (0, 0, 0)), pool.need(run.gang))
        return self._room


class Preemption:
    """The victims in one plan. Ask in the order in which gangs are offered slots: what one was given is gone for the
    next.

    first: the left_out of the last plan. left_out: tenants and types for whose jobs this plan did not get to search.
    They come first in the next plan, in which no others search: so all have their turn, however many ask in vain.
    others_wait: this is such a plan, and there are others.
    """

    def __init__(self, orders: Orders, lease_s: float, first: Collection[Asker] = ()) -> None:
        self.left_out: set[Asker] = set()
        self.others_wait = False
        self._first, self._work = first, Effort(WORK)
        self._orders, self._now, self._ledger = orders, orders.now, orders.draft.ledger
        self._leased_until = orders.now - timedelta(seconds=lease_s)
        self._borrowed = borrowed(orders.draft.snapshot)
        self._borrowers = frozenset(
            run.tenant for run in orders.draft.snapshot.running if run.job in self._borrowed
        )
        self._beyond = Beyond(orders, self._borrowed)
        self._in_vain: defaultdict[tuple[str, str, int], set[Hashable]] = defaultdict(set)
        self._cleared_for: Counter[str] = Counter()
        self._efforts: dict[tuple[str, str], Effort] = {}
        draft = orders.draft
        tenants = (
            len({gang.tenant for gang in draft.waiting if draft.may_start(gang)}) if self._borrowed else 1
        )
        self._effort = min(MOST_EFFORT, max(LEAST_EFFORT, EFFORT // max(1, tenants)))
        self._cheapest: dict[str, tuple[int, list[Running]]] = {}  # by type, of so many that could be ordered
        self._candidates_of: dict[Hashable, Candidates] = {}

    def make_room(self, gang: Gang, finding: Finding) -> int:
        """Choose what to stop for a gang that cannot start. Returns how many runs leave for it, those ordered to
        before included; 0 if no stop would let it start: then none is ordered. O(n log n) in its type's runs."""
        supply = finding.supply
        if not finding.check.queues or supply.pool is None:
            return 0
        if finding.check.code is WaitReason.FAIR_SHARE and finding.scope is Scope.TENANT:
            return 0  # reserved for a job of its own tenant, whatever leaves
        urgent = gang.priority >= PREEMPTS
        if not urgent and not self._may_reclaim(gang, finding):
            return 0
        slot_type = supply.slot_type
        if not self._orders.limits_allow(gang, slot_type):
            return 0
        leaving = self._orders.given(gang, slot_type)
        if not (leaving or self._has_turn(gang, slot_type)):
            return 0
        rooms = self._orders.rooms(supply.pool)
        owns = not supply.account.borrows(max(0, rooms.slots[gang.tenant]) + gang.asked)
        anyones = urgent and owns and supply.account.cohort is None
        may_clear = owns and supply.account.cohort is not None and bool(self._borrowed)
        rank = gang.priority if may_clear else urgent  # runs move for those of their class or above
        shape = (rank, "" if anyones else gang.tenant, gang.need, gang.learners.min, gang.topology)
        if not (urgent or owns) or shape in rooms.too_small_for:
            return 0
        found = self._candidates(gang, supply, owns=owns)
        if not (found.runs or leaving or rooms.changed or may_clear):
            return 0
        made = RoomMade(gang, supply, rooms, self._ledger, owns=owns, around_reservations=not urgent)
        self._work.spend(len(supply.pool.free.of) // LOOKED_AT)
        for run, order in leaving:
            made.carried_out(run, order)
        if leaving and not made.suffices():
            made.none_moves()  # others have the places that there were for them
        found = self._own_first(gang, finding, found)
        victims = self._first_enough(found, made, supply.pool)
        clears = may_clear and not made.suffices()
        if clears:
            victims = self._clear_nodes(gang, supply, found.runs, made, victims)
        if not made.suffices() or (made.moves_runs and not rooms.place_all(made)):
            self._in_vain[_asker(gang, slot_type)].add(_size(gang))
            if not made.holds_gang:
                rooms.too_small_for.add(shape)
            return 0
        if clears:
            self._cleared_for[slot_type] += 1
            self._efforts.pop((gang.tenant, slot_type), None)  # it was not in vain
        stops: list[tuple[Running, Order]] = []
        for run in victims:
            reason = MOVED if made.starts_again(run) else self._reason(run, gang, supply, owns)
            stops.append((run, Stop(run.job, reason, gang.job, run.generation)))
        return self._orders.give(gang, made, stops)

    def _has_turn(self, gang: Gang, slot_type: str) -> bool:
        """Whether this plan searches for it. Urgent jobs wait neither for the turns of others nor for work."""
        asker = gang.tenant, slot_type
        if gang.priority >= PREEMPTS:
            return True
        if self._work.is_over:
            self.left_out.add(asker)
            return False
        self.others_wait |= bool(self._first) and asker not in self._first
        return not self._first or asker in self._first

    def _first_enough(self, candidates: Candidates, made: RoomMade, pool: Pool) -> list[Running]:
        """Of these, in their order, as many as let the gang start, without those that need not leave for that; if all
        of them do not suffice, as many as were tried."""
        victims: list[Running] = []
        free_to_go = self._orders.free_to_go[made.slot_type]
        for run in candidates.runs:
            if run.job not in free_to_go:
                continue
            if made.suffices():
                break
            if len(victims) == FEW and not made.could_hold(candidates.room(pool), victims):
                break
            made.without(run)
            self._work.spend(len(run.nodes))
            victims.append(run)
        if not made.suffices():
            return victims
        self._work.spend(sum(len(run.nodes) for run in victims))
        return _needed(victims, made, len(victims) - 1)

    def _clear_nodes(
        self,
        gang: Gang,
        supply: Supply,
        candidates: Sequence[Running],
        made: RoomMade,
        victims: list[Running],
    ) -> list[Running]:
        """Choose again what leaves, where these victims do not suffice: of borrowers any runs, while they keep
        their limits, then also runs that start again elsewhere."""
        cohort, slot_type = supply.account.cohort, supply.slot_type
        if cohort is None or self._cleared_for[slot_type] >= CLEARINGS:
            return victims
        mates = self._ledger.mates(cohort, slot_type)
        for run in victims:
            made.with_again(run)
        if made.missing() > self._beyond.of(mates, slot_type) and not candidates:
            return []
        freely = {run.job for run in candidates}
        order = [
            run
            for run in self._by_cost(slot_type)
            if run.job in self._orders.free_to_go[slot_type] and (run.job in freely or run.tenant in mates)
        ]
        effort = self._efforts.get((gang.tenant, slot_type))
        if effort is None:
            effort = self._efforts[gang.tenant, slot_type] = Effort(self._effort, self._work)
        if effort.is_over:
            return []
        effort.spend(len(order) // LOOKED_AT)
        for moves in (False, True):
            leaving = Leaving(made, self._beyond, freely, effort, moves=moves)
            victims = self._cleared(order, made, leaving)
            if leaving.suffices:
                return victims
            for run in victims:
                made.with_again(run)
        return []

    def _cleared(self, order: Sequence[Running], made: RoomMade, leaving: Leaving) -> list[Running]:
        """What leaves on the nodes where the least is lost, then for good what else limits need: those of the gang, and
        those of tenants whose runs move."""
        victims = Clearing(order, made, leaving, lambda run: lost_work_s(run, self._now)).clear()
        for run in order if made.holds_gang else ():
            if leaving.suffices or leaving.effort.is_over:
                break
            if run.job not in leaving.jobs and leaving.may_for_good(run):
                leaving.add(run)
                victims.append(run)
        victims.sort(key=self._cost)
        for run in reversed(victims) if leaving.suffices else ():
            leaving.remove(run)
            if leaving.suffices:
                victims.remove(run)
            else:
                leaving.add(run)
        return victims

    def _may_reclaim(self, gang: Gang, finding: Finding) -> bool:
        """Whether it makes sense to look for borrowers: its tenant's limit covers the job, and what it lacks is what
        others could have borrowed. Quick, because it is asked for every job that waits."""
        account = finding.supply.account
        if account.cohort is None or account.borrows(gang.asked):
            return False
        if finding.scope is Scope.TENANT and finding.check.code is not WaitReason.COHORT_GPUS:
            return False
        if gang.job in self._orders.given_for:
            return True
        vain = self._in_vain[_asker(gang, finding.supply.slot_type)]
        return bool(self._borrowed) and len(vain) < TRIES and _size(gang) not in vain

    def _reason(self, run: Running, gang: Gang, supply: Supply, owns: bool) -> str:
        of_lower_class = gang.priority >= PREEMPTS and run.priority < gang.priority
        if run.job in self._borrowed and run.tenant in self._takes_back_from(gang, supply, owns):
            return RECLAIMED
        return PREEMPTED if of_lower_class or run.tenant == gang.tenant else RECLAIMED

    def _takes_back_from(self, gang: Gang, supply: Supply, owns: bool) -> Collection[str]:
        """The tenants whose runs on borrowed slots leave for the gang: the others of its cohort, if its limit covers
        it."""
        cohort = supply.account.cohort
        if not owns or cohort is None or not self._borrowed:
            return ()
        return self._ledger.mates(cohort, supply.slot_type) - {gang.tenant}

    def _candidates(self, gang: Gang, supply: Supply, *, owns: bool) -> Candidates:
        """Those that may be stopped for the gang, the first to go first, and some that this plan stops already. owns:
        its tenant's limit covers it. Chosen once for all that may have the same ones stopped."""
        urgent, slot_type = gang.priority >= PREEMPTS, supply.slot_type
        cheapest = self._by_cost(slot_type)
        of_any_tenant = owns and not self._borrowed
        key = slot_type, gang.priority if urgent else None, "" if of_any_tenant else gang.tenant, owns
        known = self._candidates_of.get(key)
        if known is not None and known.among is cheapest:
            return known
        self._work.spend(len(cheapest) // LOOKED_AT)
        # Lenders wait for the same borrowers, so most of them have the same candidates.
        borrowers = self._borrowers.intersection(self._takes_back_from(gang, supply, owns))
        tenant, priority = gang.tenant, gang.priority
        alike = slot_type, priority if urgent else None, "" if owns else tenant, borrowers
        shared = self._candidates_of.get(alike)
        if shared is not None and shared.among is cheapest:
            self._candidates_of[key] = shared
            return shared
        runs = [
            run
            for run in cheapest
            if (urgent and run.gang.priority < priority and (owns or run.gang.tenant == tenant))
            or (run.gang.tenant in borrowers and run.gang.job in self._borrowed)
        ]
        found = self._candidates_of[key] = self._candidates_of[alike] = Candidates(cheapest, runs)
        return found

    def _by_cost(self, slot_type: str) -> list[Running]:
        """The runs whose lease is over: those on borrowed slots first; the lowest class; the least work lost; the
        newest. Sorted once; what is ordered in this plan can be ordered no more, and is left out when it is a part of
        them."""
        free_to_go, known = self._orders.free_to_go[slot_type], self._cheapest.get(slot_type)
        if known is not None and len(free_to_go) > known[0] * STILL_FREE:
            return known[1]
        if known is None:
            found = [run for run in free_to_go.values() if run.started_at <= self._leased_until]
            found.sort(key=self._cost)
        else:
            found = [run for run in known[1] if run.job in free_to_go]
        self._cheapest[slot_type] = len(free_to_go), found
        return found

    def _cost(self, run: Running) -> tuple[bool, int, float, float, str]:
        owned, newest_first = run.job not in self._borrowed, -run.started_at.timestamp()
        return owned, run.priority, lost_work_s(run, self._now), newest_first, run.job

    def _own_first(self, gang: Gang, finding: Finding, found: Candidates) -> Candidates:
        """The tenant's own before all others where its limits are the obstacle."""
        code = finding.check.code
        if finding.scope is not Scope.TENANT or code is WaitReason.COHORT_GPUS:
            return found
        return Candidates(found.among, sorted(found.runs, key=lambda run: run.tenant != gang.tenant))


def _needed(victims: list[Running], made: RoomMade, asked: int) -> list[Running]:
    """Without those that need not leave after all, of the first so many; the dearest first."""
    stay = set()
    for run in reversed(victims[:asked]):
        made.with_again(run)
        if made.suffices():
            stay.add(run.job)
        else:
            made.without(run)
    return [run for run in victims if run.job not in stay]


def _asker(gang: Gang, slot_type: str) -> tuple[str, str, int]:
    """Those for whom the same runs may leave: runs move for gangs of their class or above."""
    return gang.tenant, slot_type, gang.priority


def _size(gang: Gang) -> Hashable:
    return gang.slots, gang.learners.min, gang.topology
