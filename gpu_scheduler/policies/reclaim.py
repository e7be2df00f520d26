"""Which runs leave so that a lender's gang finds its nodes, where the last runs of borrowers lie on the wrong ones.

Which runs of a tenant are on borrowed slots is a matter of count, so any of them may leave, as long as those that stay
use its limit. Where that is not enough, runs move: they leave, too, and start again on what is free elsewhere. So a
gang that needs a whole node gets it although small runs that limits cover lie on every node.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from gpu_scheduler.model import Domain, Gang, Priority, Resize, Running, Stop
from gpu_scheduler.policies.ahead import Ahead
from gpu_scheduler.policies.orders import Orders
from gpu_scheduler.policies.room import RoomMade

STAYS = Priority.URGENT
"""The class from which on a run that its tenant's limit covers stays: it would stop another one to come back."""
MOVES_AFTER_S = 300.0
"""For how long a run that its tenant's limit covers has run since it was placed, in seconds, before it may be moved: it
was deployed, restored what it had saved and got on meanwhile. The lease alone would let it be moved before that, again
and again: what was moved last has the least to lose."""
NODES_LOOKED_AT, PER_LEARNER = 64, 4
"""How many nodes are looked at for one gang, and how many more for each of its learners: those that lack the least."""
Key = tuple[str, str]
"""Tenant and slot type."""


class Beyond:
    """What tenants of cohorts hold beyond their limits once all that was ordered to leave has left, in slots.

    borrowed: by job, the slots that it borrows if its tenant's last runs are the ones that do.
    """

    _kept: Counter[Key] | None = None

    def __init__(self, orders: Orders, borrowed: Mapping[str, int]) -> None:
        self._orders, self.borrowed = orders, borrowed
        self._ahead: dict[str, Ahead] = {}
        self._can_return: dict[str, bool] = {}

    def slots(self, key: Key) -> int:
        """Less than nothing: it holds less than its limit."""
        if self._kept is None:
            self._kept = self._count()
        return self._kept[key] - self._orders.given_up[key]

    def of(self, tenants: Iterable[str], slot_type: str) -> int:
        """What these hold beyond their limits."""
        return sum(max(0, self.slots((tenant, slot_type))) for tenant in tenants)

    def may_go(self, run: Running, besides: int) -> bool:
        """Whether its tenant keeps its limit without it, and without others with so many slots."""
        covered = run.job not in self.borrowed
        return besides + _held(run) <= self.slots(_key(run)) and not (covered and run.priority >= STAYS)

    def may_move(self, run: Running, gang: Gang) -> bool:
        """Whether it may be asked to start again elsewhere for this gang."""
        is_covered = run.job not in self.borrowed
        if is_covered and (run.priority >= STAYS or not self._orders.past(run, MOVES_AFTER_S)):
            return False
        return run.priority <= gang.priority and self._could_return(run)

    def borrows_again(self, key: Key, besides: int) -> bool:
        """Whether this tenant reaches over its limit once what moves is back, without others with so many slots: the
        last to come back would then have to borrow."""
        return self.slots(key) + self._orders.moving[key] > besides

    def _could_return(self, run: Running) -> bool:
        """Whether every limit lets it start again: its tenant may be suspended, or a limit lowered below what runs."""
        found = self._can_return.get(run.job)
        if found is None:
            ahead = self._ahead.get(run.slot_type)
            if ahead is None:
                pool = self._orders.draft.pools[run.slot_type]
                ahead = self._ahead[run.slot_type] = Ahead(self._orders.draft, pool)
            found = self._can_return[run.job] = ahead.limits_allow(run, len(run.nodes))
        return found

    def _count(self) -> Counter[Key]:
        snapshot = self._orders.draft.snapshot
        found: Counter[Key] = Counter(
            {(quota.tenant, quota.slot_type): -quota.limit for quota in snapshot.quotas if quota.cohort}
        )
        for run in snapshot.running:
            if not (run.stopping or isinstance(run.order, Stop)) and _key(run) in found:
                shrunk = run.order.learners if isinstance(run.order, Resize) else len(run.nodes)
                found[_key(run)] += run.slots * min(shrunk, len(run.nodes))
        return found


class Effort:
    """How much may still be tried out, in learners: a run over many nodes takes longer than a small one. whole: what
    this is a part of; it is charged, but does not end this one."""

    def __init__(self, learners: int, whole: Effort | None = None) -> None:
        self._left, self._whole = learners, whole

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    def spend(self, learners: int) -> None:
        """So many are counted as gone, or as staying after all."""
        self._left -= learners
        if self._whole is not None:
            self._whole.spend(learners)


class Leaving:
    """The runs that leave for one gang, those that ``freely`` names whatever their tenant keeps.

    A tenant keeps its limit, or gives up nothing but its last runs: of one that reaches over the limit more may go.
    With moves, what would take more than that from it leaves, too, and starts again elsewhere.
    """

    def __init__(
        self, made: RoomMade, beyond: Beyond, freely: Collection[str], effort: Effort, *, moves: bool
    ) -> None:
        self._made, self._beyond, self._freely, self._moves = made, beyond, freely, moves
        self.effort = effort
        self._slots: Counter[Key] = Counter()
        self._others: Counter[Key] = Counter()
        """By tenant and type, how many of them are not its last runs."""
        self._moved: Counter[Key] = Counter()
        self.jobs: set[str] = set()

    def may(self, run: Running) -> bool:
        """Whether it may leave, too."""
        return self.may_for_good(run) or (self._moves and self._beyond.may_move(run, self._made.gang))

    @property
    def suffices(self) -> bool:
        """Whether the gang can start, and those that move come back as runs that their tenant's limit covers."""
        if any(
            moved and self._beyond.borrows_again(key, self._slots[key]) for key, moved in self._moved.items()
        ):
            return False
        return self._made.suffices()

    def may_for_good(self, run: Running) -> bool:
        """Whether its tenant can do without it."""
        key, is_last = _key(run), run.job in self._beyond.borrowed
        if run.job in self._freely and (not is_last or not self._others[key]):
            return True
        return self._beyond.may_go(run, self._slots[key])

    def add(self, run: Running) -> None:
        """It leaves."""
        self.effort.spend(len(run.nodes))
        if self.may_for_good(run):
            self._made.without(run)
            self._count(run, 1)
        else:
            self._made.moved(run)
            self._moved[_key(run)] += 1
        self.jobs.add(run.job)

    def remove(self, run: Running) -> None:
        """It stays after all."""
        self.effort.spend(len(run.nodes))
        if self._made.starts_again(run):
            self._moved[_key(run)] -= 1
        else:
            self._count(run, -1)
        self._made.with_again(run)
        self.jobs.remove(run.job)

    def _count(self, run: Running, sign: int) -> None:
        key = _key(run)
        self._slots[key] += sign * _held(run)
        self._others[key] += sign * (run.job not in self._beyond.borrowed)


class _Step(NamedTuple):
    """Runs of one node that leave so that more learners fit there. Sorted, the one that costs the least is first.

    rank: the highest class among them. loss: for each learner that fits more, in slot-seconds.
    """

    rank: int
    loss: float
    node: str
    runs: tuple[Running, ...]


class Clearing:
    """Clears nodes for one gang. order: the runs that may leave, those first that go first on one node."""

    def __init__(
        self, order: Iterable[Running], made: RoomMade, leaving: Leaving, loss: Callable[[Running], float]
    ) -> None:
        self._made, self._leaving, self._loss = made, leaving, loss
        on: defaultdict[str, list[Running]] = defaultdict(list)
        for run in order:
            for name in dict.fromkeys(run.nodes):
                if made.learners_on(name) is not None:
                    on[name].append(run)
        lacking = {name: self._lacking(name, runs) for name, runs in on.items()}
        near = ((slots, name) for name, slots in lacking.items() if slots is not None)
        most = NODES_LOOKED_AT + PER_LEARNER * made.gang.learners.min
        self._on = {name: on[name] for _, name in heapq.nsmallest(most, near)}

    def _lacking(self, name: str, runs: Iterable[Running]) -> int | None:
        """How many slots the node lacks for one learner more, 0 where it is CPUs or memory that lack; None: these runs
        do not hold enough."""
        if not self._made.more_fit_without(name, runs):
            return None
        fit = self._made.learners_on(name) or 0
        return max(0, (fit + 1) * self._made.gang.slots - self._made.slots_on(name))

    def clear(self) -> list[Running]:
        """Have runs leave until the gang's learners fit: in the domain where that costs the least, node by node.
        Returns them; where they cannot fit, none leaves."""
        if self._fits():
            return []
        domains: defaultdict[Domain, list[str]] = defaultdict(list)
        for name in sorted(self._on):
            domains[self._made.domain_of(name)].append(name)
        best: tuple[int, float, Domain] | None = None
        chosen: Sequence[Running] = ()
        for domain, names in domains.items():
            runs = self._clear(names)
            if self._fits():
                cost = (max(run.priority for run in runs), sum(map(self._loss, runs)), domain)
                if best is None or cost < best:
                    best, chosen = cost, runs
            self._undo(runs)
        for run in chosen:
            self._leaving.add(run)
        return list(chosen)

    def _clear(self, names: Iterable[str]) -> list[Running]:
        """On these nodes, the cheapest step first, until the gang fits or no step is left."""
        found: list[Running] = []
        effort = self._leaving.effort
        steps = [step for name in names if not effort.is_over and (step := self._step(name)) is not None]
        heapq.heapify(steps)
        while steps and not self._fits() and not effort.is_over:
            step = heapq.heappop(steps)
            again = self._step(step.node)  # others may have left meanwhile, or may no longer
            if again is None:
                continue
            if steps and again > steps[0]:
                heapq.heappush(steps, again)
                continue
            for run in again.runs:
                self._leaving.add(run)
                found.append(run)
            if (following := self._step(step.node)) is not None:
                heapq.heappush(steps, following)
        return found

    def _step(self, name: str) -> _Step | None:
        """The first runs of the node that make room for a learner more, those only that are needed for it."""
        before, runs = self._made.learners_on(name) or 0, []
        for run in self._on[name]:
            if run.job in self._leaving.jobs or not self._leaving.may(run):
                continue
            self._leaving.add(run)
            runs.append(run)
            if self._more(name, before):
                break
        more = self._more(name, before)
        for run in reversed(runs[:-1]) if more else ():
            self._undo([run])
            if self._more(name, before):
                runs.remove(run)
            else:
                self._leaving.add(run)
        gained = (self._made.learners_on(name) or 0) - before
        self._undo(runs)
        if not more:
            return None
        loss = sum(map(self._loss, runs)) / gained
        return _Step(max(run.priority for run in runs), loss, name, tuple(runs))

    def _fits(self) -> bool:
        return self._made.holds_gang

    def _more(self, name: str, before: int) -> bool:
        return (self._made.learners_on(name) or 0) > before

    def _undo(self, runs: Iterable[Running]) -> None:
        for run in runs:
            self._leaving.remove(run)


def _key(run: Running) -> Key:
    return run.tenant, run.slot_type


def _held(run: Running) -> int:
    return run.slots * len(run.nodes)
