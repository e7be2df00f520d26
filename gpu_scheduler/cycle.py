"""plan(snapshot) -> Plan: which jobs start where, which stop, and why every other one waits. Pure and deterministic.

The snapshot's policy says in which order gangs are offered slots, which checks they must pass, what is reserved, and
which running jobs are stopped or resized. docs/scheduling.md states what this promises.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from gpu_scheduler import budgets, opportunistic, rests
from gpu_scheduler.checks import Check, Finding, Scope, Supply, listed
from gpu_scheduler.clearing import Clearing
from gpu_scheduler.draft import Draft
from gpu_scheduler.model import CPU_TYPE, Explanation, Gang, Plan, Running, Snapshot, Start
from gpu_scheduler.policies.base import PolicyState, policy_of


def plan(snapshot: Snapshot, *, explained: bool = True) -> Plan:
    """Decide for every waiting job: a Start, or an Explanation. Starts are in the order to apply them.

    explained False leaves the explanations out and decides the same. O(n log n) in waiting jobs plus, for each
    start, the number of distinct free sizes among the nodes.
    """
    snapshot, exhausted = budgets.enforced(snapshot)
    decided = _plan(snapshot, explained=explained)
    return replace(decided, stops=(*exhausted, *decided.stops)) if exhausted else decided


def _plan(snapshot: Snapshot, *, explained: bool) -> Plan:
    if not opportunistic.has_any(snapshot):
        return _Cycle(snapshot).run(explained=explained)
    cycle = _Cycle(opportunistic.without(snapshot))
    decided = cycle.run(explained=explained)
    cleared = Clearing(snapshot, cycle.draft).clear(decided.starts)
    gangs = {gang.job: gang for gang in snapshot.waiting}
    if cleared.waiting:
        decided = replace(decided, policy_state=cycle.delayed(gangs, [start for start, _ in cleared.waiting]))
    runs = [
        Running(gangs[start.job], start.placement.slot_type, start.placement.nodes, snapshot.now)
        for start in (*cleared.starts, *(start for start, _ in cleared.waiting))
    ]
    away = rests.resting(snapshot)
    third = _Cycle(opportunistic.left_for_opportunistic(snapshot, runs, decided.resizes, cycle.draft, away))
    rest = third.run(explained=explained)
    if explained and away:
        waits = [third.hindered(gangs[job]) or rests.explained(gangs[job], away[job]) for job in away]
        rest = replace(rest, waits=(*rest.waits, *waits))
    return opportunistic.merged(decided, cleared, rest, gangs, explained=explained)


Kind = int | tuple[int, str, str]
"""The number of a gang's shape, and its user and project where these have limits: gangs of one kind wait for the same
reason, only the queue position and a reservation are their own."""


class _Cycle:
    """One plan while it is made."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._policy = policy_of(snapshot)
        self.draft = self._draft = Draft(snapshot)
        self._round = self._policy.begin(self._draft)
        self._tests: dict[tuple[str, str], _Tests] = {}  # by tenant and slot type
        ledger = self._draft.ledger
        self._has_owners = bool(ledger.limits_users or ledger.projects.tenants)

    def run(self, *, explained: bool) -> Plan:
        starts: list[Start] = []
        waits: list[Gang] = []
        findings: list[Finding] = []
        kinds: list[Kind] = []  # of waits
        known: dict[Hashable, int] = {}  # a number for each shape: hashing one again and again takes longer
        failed, shape_of, has_owners, wait = (
            self._draft.failed,
            self._shape(),
            self._has_owners,
            self._round.wait,
        )
        kept_for = self._draft.ledger.with_reservation
        for gang in self._round.queue():
            shape = known.setdefault(shape_of(gang), len(known))
            kind: Kind = (shape, *self._owner(gang)) if has_owners else shape
            finding = failed.get(kind)
            if finding is None:
                # What is reserved for a gang is a reason to pass for it alone.
                outcome = self._evaluate(gang, None if gang.job in kept_for else shape)
                if isinstance(outcome, str):
                    starts.append(self._draft.start(self._sized(gang, outcome), outcome))
                    continue
                finding = failed[kind] = outcome
            waits.append(gang)
            findings.append(finding)
            kinds.append(kind)
            wait(gang, finding)
        stops, resizes = self._round.orders(zip(waits, findings, strict=True))
        explanations = self._explained(waits, kinds) if explained else ()
        state = self._round.state()
        reserved = sorted(gang.job for gang in waits if gang.job in kept_for) if kept_for else ()
        growths = tuple(self._round.growths()) if explained else ()
        return Plan(
            tuple(starts), tuple(stops), tuple(resizes), explanations, state, tuple(reserved), growths
        )

    def _shape(self) -> Callable[[Gang], Hashable]:
        """What the outcome of all checks depends on but for those of users and projects."""
        types = [*self._draft.pools, *self._draft.gpu_types, CPU_TYPE]
        read = {
            field
            for slot_type in types
            for check in self._policy.checks_for(slot_type)
            for field in check.reads
        }
        return attrgetter(*SHAPE, *sorted(read))

    def _owner(self, gang: Gang) -> tuple[str, str]:
        """What that of the others depends on in addition."""
        ledger = self._draft.ledger
        user = gang.user if gang.tenant in ledger.limits_users else ""
        return user, gang.project if gang.tenant in ledger.projects.tenants else ""

    def delayed(self, gangs: Mapping[str, Gang], starts: Iterable[Start]) -> PolicyState:
        """The policy's state if these starts of the plan have to wait for runs to leave."""
        return self._round.state_delayed((gangs[start.job], start.placement.slot_type) for start in starts)

    def hindered(self, gang: Gang) -> Explanation | None:
        """Why it could not start if it were offered slots now, where time alone does not change that; else None."""
        finding = self._evaluate(gang)
        if isinstance(finding, str) or finding.check.queues:
            return None
        checks = _Listed(finding, gang, self._policy.checks_for(finding.supply.slot_type))
        return Explanation(gang.job, finding.check.code, finding.sentence, finding.numbers, checks)

    def _evaluate(self, gang: Gang, shape: int | None = None) -> str | Finding:
        """The slot type on which the gang can start now, or the check that it fails.

        A gang that takes any type gets one on which it need not borrow, if there is one, and of these the one with the
        largest free part; if it has to wait, the type on which it passes the most checks is the one to explain.
        """
        if gang.slot_type is not None:
            return self._first_failure(gang, gang.slot_type, shape) or gang.slot_type
        furthest: tuple[int, int] = (-1, 0)
        explained, unobstructed = None, []
        for slot_type in self._draft.gpu_types:
            finding = self._first_failure(gang, slot_type, shape)
            if finding is None:
                unobstructed.append(slot_type)
            else:
                passed = self._policy.checks_for(slot_type).index(finding.check)
                if (rank := (passed, finding.check.nearness(finding))) > furthest:
                    furthest, explained = rank, finding
        if unobstructed:
            return min(unobstructed, key=lambda slot_type: self._preference(gang, slot_type))
        assert explained is not None
        return explained

    def _first_failure(self, gang: Gang, slot_type: str, shape: int | None = None) -> Finding | None:
        """The first check that the gang fails on this type. shape: what others of it fail is not tested again; None:
        it is, as the gang is of another size, or something is reserved for it."""
        key = gang.tenant, slot_type
        tests = self._tests.get(key)
        if tests is None:
            tests = self._tests[key] = _Tests(self._draft.supply(*key), self._policy.checks_for(slot_type))
        if shape is None or not tests.of_owner:
            for test in tests.all:
                if (finding := test(gang, tests.supply)) is not None:
                    return finding
            return None
        failed = self._draft.failed_by_all
        of_all = failed.get((shape, slot_type))
        if of_all is None:
            of_all = failed[shape, slot_type] = tests.first(tests.of_all, gang)
        own = tests.first(tests.of_owner, gang)
        return own[1] if own[0] < of_all[0] else of_all[1]

    def _sized(self, gang: Gang, slot_type: str) -> Gang:
        """A gang that can start with its fewest learners, with as many as the policy wants, as far as they pass all
        checks: what fits with some learners fits with fewer."""
        fit, most = gang.learners.min, min(self._round.size(gang), gang.learners.max)
        if most <= fit:
            return gang
        tried = most
        while fit < most:
            if self._first_failure(gang.resized(learners=tried), slot_type) is None:
                fit = tried
            else:
                most = tried - 1
            tried = (fit + most + 1) // 2
        return gang.resized(learners=fit)

    def _preference(self, gang: Gang, slot_type: str) -> tuple[bool, float, str]:
        account = self._draft.ledger.account(gang.tenant, slot_type)
        return account.borrows(gang.asked), -self._unreserved_fraction(slot_type), slot_type

    def _unreserved_fraction(self, slot_type: str) -> float:
        pool = self._draft.pools[slot_type]
        return pool.unreserved.total / pool.total if pool.total else 0.0

    def _explained(self, waits: list[Gang], kinds: list[Kind]) -> tuple[Explanation, ...]:
        """Explain all waits by the state after the last start: free slots and quota only got fewer."""
        by_kind: dict[Kind | str, tuple[Finding, str, _Listed]] = {}  # by job where it has a reservation
        held_back: defaultdict[tuple[str, str], int] = defaultdict(int)  # by their own tenant's limits
        for_nodes: defaultdict[str, int] = defaultdict(int)
        notes, remarks = self._round.notes(), self._round.remarks()
        explanations = []
        failed, reserving = self._draft.failed, self._draft.ledger.with_reservation
        for gang, kind in zip(waits, kinds, strict=True):
            job = gang.job
            # What is reserved for the job itself is no obstacle to it.
            own = job in reserving
            shared = by_kind.get(job if own else kind)
            if shared is None:
                shape = kind if isinstance(kind, int) else kind[0]
                found = self._evaluate(gang) if own else failed.get(kind) or self._evaluate(gang, shape)
                assert isinstance(found, Finding)
                checks = self._policy.checks_for(found.supply.slot_type)
                shared = found, found.sentence, _Listed(found, gang, checks)
                by_kind[job if own else kind] = shared
            finding, sentence, checks_of = shared
            numbers = finding.numbers.copy()
            check = finding.check
            if check.queues:
                # A job that its own tenant's limits hold back is not ahead of other tenants.
                slot_type, scope = finding.supply.slot_type, finding.scope
                queue = (gang.tenant, slot_type)
                ahead = for_nodes[slot_type]
                numbers["nodes_ahead"] = ahead
                numbers["position"] = ahead + held_back[queue] + 1
                numbers["scope"] = scope
                if scope is Scope.CLUSTER:
                    for_nodes[slot_type] = ahead + 1
                else:
                    held_back[queue] += 1
            if job in notes:
                numbers |= notes[job]
            if job in remarks:
                sentence = f"{sentence} {remarks[job]}"
            explanations.append(Explanation(job, check.code, sentence, numbers, checks_of))
        return tuple(explanations)


Test = Callable[[Gang, Supply], Finding | None]
Outcome = tuple[int, Finding | None]
"""The place in the order of the first check that fails, and what it found; PASSES if none does."""
PASSES: Outcome = sys.maxsize, None


class _Tests:
    """What the gangs of one tenant have to pass on one slot type. of_owner: the checks that compare what a gang's user
    or project has; of_all: the others, whose outcome gangs of one shape share."""

    __slots__ = ("all", "of_all", "of_owner", "supply")

    def __init__(self, supply: Supply, checks: tuple[Check, ...]) -> None:
        self.supply = supply
        applying = [(n, check) for n, check in enumerate(checks) if check.applies(supply)]
        self.all = [check.test for _, check in applying]
        self.of_all = [(n, check.test) for n, check in applying if not check.of_owner]
        self.of_owner = [(n, check.test) for n, check in applying if check.of_owner]

    def first(self, tests: Sequence[tuple[int, Test]], gang: Gang) -> Outcome:
        """The first of these that the gang fails."""
        supply = self.supply
        for n, test in tests:
            finding = test(gang, supply)
            if finding is not None:
                return n, finding
        return PASSES


class _Listed:
    """Explanation.checks, made once for all jobs that share it."""

    __slots__ = ("_made", "_of")

    def __init__(self, finding: Finding, gang: Gang, checks: tuple[Check, ...]) -> None:
        self._of = finding, gang, checks
        self._made: list[dict[str, Any]] | None = None

    def __call__(self) -> list[dict[str, Any]]:
        if self._made is None:
            self._made = listed(*self._of)
        return self._made


SHAPE = ("tenant", "slot_type", "need", "asked", "learners.max", "runs_at_most_s")
"""What a gang's finding, sentence and checks depend on, besides what its checks read. learners.min follows from need
and asked, and hashing the whole Range is slow."""
