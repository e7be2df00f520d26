"""What one slot type has left for gangs that run and are to have more learners, on nodes and in every limit."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator

from gpu_scheduler.checks import Check, Scope
from gpu_scheduler.draft import Draft, Supply
from gpu_scheduler.elastic.utility import sizes, speed
from gpu_scheduler.ledger import Ledger
from gpu_scheduler.model import Gang, GrowthReason, Resize, Running, WaitReason
from gpu_scheduler.placement import Pool
from gpu_scheduler.policies.base import policy_of
from gpu_scheduler.rooms import Rooms, learners_in, minus, plus


class Ahead:
    """Once these runs have given up learners, and what other orders add and what was taken have their places.

    A gang that grows keeps the learners that it has where they are; it is asked the same checks as one that starts.
    """

    def __init__(self, draft: Draft, pool: Pool, shrunk: Iterable[tuple[Running, int]] = ()) -> None:
        self._pool = pool
        self._ledger = draft.ledger.of_type(pool.slot_type)
        self._limits = Limits(draft, self._ledger, pool.slot_type)
        self._nodes = self._without(shrunk)
        self._unfilled = deque(sorted(self._nodes.of))
        for run in sorted(draft.snapshot.running, key=lambda run: run.job):
            order = run.order
            grows = isinstance(order, Resize) and order.learners > len(run.nodes)
            if run.slot_type == pool.slot_type and isinstance(order, Resize) and grows:
                self.take(run, min(order.learners, len(run.nodes) + self._fitting(run)))

    def most(self, run: Running, learners: int) -> int:
        """Of so many learners, or fewer, the most with which it could start again; fewer than it has: with none."""
        now = len(run.nodes)
        most = min(learners, now + self._fitting(run))
        self._count(run, now, -1)
        while most >= now and not self._allowed(run, most):
            most -= 1
        self._count(run, now, 1)
        return most

    def off(self, run: Running) -> Gang | None:
        """The run with the number of learners, up to those that it has, with which it is the fastest if it leaves all
        nodes that are not among these; counted there. None: its fewest do not fit, or are not allowed."""
        gang, now, need = run.gang, len(run.nodes), self._pool.need(run.gang)
        of = dict(self._nodes.of)
        for name in run.nodes:
            if name in of:
                of[name] = plus(of[name], need)
        offer = Rooms(of)
        self._count(run, now, -1)
        most = min(now, self._pool.capacity(offer, gang, need))
        while most >= gang.learners.min and not self._allowed(run, most):
            most -= 1
        if most < gang.learners.min:
            self._count(run, now, 1)
            return None
        options = [
            gang.resized(learners=n) for n in sizes(gang.learners.min, most, self._pool.per_node(gang))
        ]
        places = {option.learners.min: self._pool.choose(option, offer.copy()) for option in options}
        best = max(
            options, key=lambda option: speed(gang, option.learners.min, len(places[option.learners.min]))
        )
        for name, learners in places[best.learners.min]:
            offer.lower(name, minus(offer.of[name], need, learners))
        self._nodes = offer
        self._count(run, best.learners.min, 1)
        return best

    def barred(self, run: Running) -> GrowthReason | None:
        """Why it could not start again with its fewest learners: a suspension or a lowered limit stops nothing that
        runs, so no resize may. None: it could."""
        if not all(name in self._nodes.of for name in run.nodes):
            return GrowthReason.NODE_CLOSED
        least = min(run.gang.learners.min, len(run.nodes))
        return None if self.limits_allow(run, least) else GrowthReason.CANNOT_RETURN

    def limits_allow(self, run: Running, learners: int) -> bool:
        """Whether it could start again with so many learners, wherever there is a place."""
        self._count(run, len(run.nodes), -1)
        allowed = self._allowed(run, learners)
        self._count(run, len(run.nodes), 1)
        return allowed

    def take(self, run: Running, learners: int) -> None:
        """Count the learners that it is to have in addition."""
        now, need = len(run.nodes), self._pool.need(run.gang)
        self._count(run, now, -1)
        self._count(run, learners, 1)
        missing = learners - now
        for name in self._places(run, missing):
            more = min(missing, learners_in(self._nodes.of[name], need))
            self._nodes.lower(name, minus(self._nodes.of[name], need, more))
            missing -= more
            if not missing:
                return

    def _places(self, run: Running, learners: int) -> Iterator[str]:
        """The nodes on which these are counted: its own first. Those that were filled before come last."""
        names = self._pool.names_beside(run, self._nodes, learners)
        if names is not None:
            yield from (name for name in names if name in self._nodes.of)
            return
        yield from (name for name in dict.fromkeys(run.nodes) if name in self._nodes.of)
        for _ in range(len(self._unfilled)):
            yield self._unfilled[0]
            self._unfilled.rotate(-1)

    def _fitting(self, run: Running) -> int:
        return self._pool.fitting_beside(run, self._nodes)

    def _allowed(self, run: Running, learners: int) -> bool:
        return self._limits.allow(run.gang.resized(learners=learners))

    def _count(self, run: Running, learners: int, sign: int) -> None:
        count = self._ledger.take if sign > 0 else self._ledger.release
        count(run.gang, run.slot_type, learners * run.slots)

    def _without(self, shrunk: Iterable[tuple[Running, int]]) -> Rooms:
        """The unreserved nodes, with what these runs give up. They keep learners where most of theirs are."""
        of = None
        for run, learners in shrunk:
            of = of or dict(self._pool.unreserved.of)
            need, kept = self._pool.need(run.gang), learners
            for name, there in Counter(run.nodes).most_common():
                stay = min(there, kept)
                kept -= stay
                for _ in range(there - stay if name in of else 0):
                    of[name] = plus(of[name], need)
            self._count(run, len(run.nodes), -1)
            self._count(run, learners, 1)
        return self._pool.unreserved.copy() if of is None else Rooms(of)


class Limits:
    """The checks of a start on one type that look at quotas and other limits, or at what is reserved of these, not at
    nodes; with what this ledger counts."""

    def __init__(self, draft: Draft, ledger: Ledger, slot_type: str) -> None:
        self._ledger, self._slot_type, self._now = ledger, slot_type, draft.snapshot.now
        checks = policy_of(draft.snapshot).checks_for(slot_type)
        self._checks = [
            each for each in checks if each.scope is Scope.TENANT or each.code is WaitReason.FAIR_SHARE
        ]
        self._of: dict[str, tuple[Supply, list[Check]]] = {}  # by tenant: asked for thousands of sizes

    def allow(self, gang: Gang) -> bool:
        """Whether the gang passes them now."""
        supply, checks = self._of.get(gang.tenant) or self._of_tenant(gang.tenant)
        return all(check.test(gang, supply) is None for check in checks)

    def _of_tenant(self, tenant: str) -> tuple[Supply, list[Check]]:
        ledger, slot_type = self._ledger, self._slot_type
        account, users = ledger.account(tenant, slot_type), ledger.users(tenant, slot_type)
        supply = Supply(slot_type, None, account, ledger.jobs(tenant), users, ledger.projects, self._now)
        found = self._of[tenant] = supply, [check for check in self._checks if check.applies(supply)]
        return found
