"""plan(snapshot) -> Plan: which jobs start where, which stop, and why every other one waits. Pure and deterministic.

The snapshot's policy says in which order gangs are offered slots, which checks they must pass, what is reserved, and
which running jobs are stopped or resized. docs/scheduling.md states what this promises.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from gpu_scheduler import budgets, idle
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
    if not idle.has_any(snapshot):
        return _Cycle(snapshot).run(explained=explained)
    cycle = _Cycle(idle.without(snapshot))
    decided = cycle.run(explained=explained)
    cleared = Clearing(snapshot, cycle.draft).clear(decided.starts)
    gangs = {gang.job: gang for gang in snapshot.waiting}
    if cleared.waiting:
        decided = replace(decided, policy_state=cycle.delayed(gangs, [start for start, _ in cleared.waiting]))
    runs = [
        Running(gangs[start.job], start.placement.slot_type, start.placement.nodes, snapshot.now)
        for start in (*cleared.starts, *(start for start, _ in cleared.waiting))
    ]
    rest = _Cycle(idle.left_for_idle(snapshot, runs, decided.resizes, cycle.draft)).run(explained=explained)
    return idle.merged(decided, cleared, rest, gangs, explained=explained)


class _Cycle:
    """One plan while it is made."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._policy = policy_of(snapshot)
        self.draft = self._draft = Draft(snapshot)
        self._round = self._policy.begin(self._draft)
        self._supplies = self._draft.supplies  # read once or more for each gang
        types = [*self._draft.pools, *self._draft.gpu_types, CPU_TYPE]
        read = {
            field
            for slot_type in types
            for check in self._policy.checks_for(slot_type)
            for field in check.reads
        }
        shape: Callable[[Gang], Hashable] = attrgetter(*SHAPE, *sorted(read))
        self._shape = self._shape_of_any = shape
        limited, divided = self._draft.ledger.limits_users, self._draft.ledger.projects.tenants
        if limited or divided:
            self._shape = lambda gang: (
                shape(gang),
                gang.user if gang.tenant in limited else "",
                gang.project if gang.tenant in divided else "",
            )
        self._tests: dict[tuple[str, str], list[Callable[[Gang, Supply], Finding | None]]] = {}

    def run(self, *, explained: bool) -> Plan:
        starts: list[Start] = []
        waits: list[Gang] = []
        findings: list[Finding] = []
        shapes: list[int] = []  # of waits
        failed, shape_of, wait = self._draft.failed, self._shape, self._round.wait
        known: dict[Hashable, int] = {}  # a number for each shape: hashing one again and again takes longer
        for gang in self._round.queue():
            shape = known.setdefault(shape_of(gang), len(known))
            finding = failed.get(shape)
            if finding is None:
                outcome = self._evaluate(gang)
                if isinstance(outcome, str):
                    starts.append(self._draft.start(self._sized(gang, outcome), outcome))
                    continue
                finding = failed[shape] = outcome
            waits.append(gang)
            findings.append(finding)
            shapes.append(shape)
            wait(gang, finding)
        stops, resizes = self._round.orders(zip(waits, findings, strict=True))
        explanations = self._explained(waits, shapes) if explained else ()
        state, kept_for = self._round.state(), self._draft.ledger.with_reservation
        reserved = sorted(gang.job for gang in waits if gang.job in kept_for) if kept_for else ()
        return Plan(tuple(starts), tuple(stops), tuple(resizes), explanations, state, tuple(reserved))

    def delayed(self, gangs: Mapping[str, Gang], starts: Iterable[Start]) -> PolicyState:
        """The policy's state if these starts of the plan have to wait for runs to leave."""
        return self._round.state_delayed((gangs[start.job], start.placement.slot_type) for start in starts)

    def _evaluate(self, gang: Gang) -> str | Finding:
        """The slot type on which the gang can start now, or the check that it fails.

        A gang that takes any type gets one on which it need not borrow, if there is one, and of these the one with the
        largest free part; if it has to wait, the type on which it passes the most checks is the one to explain.
        """
        if gang.slot_type is not None:
            return self._first_failure(gang, gang.slot_type) or gang.slot_type
        furthest: tuple[int, int] = (-1, 0)
        explained, unobstructed = None, []
        for slot_type in self._draft.gpu_types:
            finding = self._first_failure(gang, slot_type)
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

    def _first_failure(self, gang: Gang, slot_type: str) -> Finding | None:
        """The first check that the gang fails on this type."""
        key = (gang.tenant, slot_type)
        supply = self._supplies.get(key) or self._draft.supply(*key)
        tests = self._tests.get(key)
        if tests is None:
            checks = self._policy.checks_for(slot_type)
            tests = self._tests[key] = [check.test for check in checks if check.applies(supply)]
        for test in tests:
            finding = test(gang, supply)
            if finding is not None:
                return finding
        return None

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

    def _explained(self, waits: list[Gang], shapes: list[int]) -> tuple[Explanation, ...]:
        """Explain all waits by the state after the last start: free slots and quota only got fewer."""
        by_shape: dict[int | str, tuple[Finding, str, _Listed]] = {}  # by job where it has a reservation
        said: dict[Hashable, tuple[Finding, str]] = {}
        held_back: defaultdict[tuple[str, str], int] = defaultdict(int)  # by their own tenant's limits
        for_nodes: defaultdict[str, int] = defaultdict(int)
        notes, remarks = self._round.notes(), self._round.remarks()
        explanations = []
        failed, reserving = self._draft.failed, self._draft.ledger.with_reservation
        for gang, shape in zip(waits, shapes, strict=True):
            # What is reserved for the job itself is no obstacle to it.
            own = gang.job in reserving
            key = gang.job if own else shape
            shared = by_shape.get(key)
            if shared is None:
                known = None if own else failed.get(shape)
                shared = by_shape[key] = self._explain(gang, known, {} if own else said)
            finding, sentence, checks = shared
            numbers = dict(finding.numbers)
            if finding.check.queues:
                # A job that its own tenant's limits hold back is not ahead of other tenants.
                slot_type = finding.supply.slot_type
                queue = (gang.tenant, slot_type)
                numbers["nodes_ahead"] = for_nodes[slot_type]
                numbers["position"] = for_nodes[slot_type] + held_back[queue] + 1
                numbers["scope"] = finding.scope
                if finding.scope is Scope.CLUSTER:
                    for_nodes[slot_type] += 1
                else:
                    held_back[queue] += 1
            if gang.job in notes:
                numbers |= notes[gang.job]
            if gang.job in remarks:
                sentence = f"{sentence} {remarks[gang.job]}"
            explanations.append(Explanation(gang.job, finding.check.code, sentence, numbers, checks))
        return tuple(explanations)

    def _explain(
        self, gang: Gang, known: Finding | None, said: dict[Hashable, tuple[Finding, str]]
    ) -> tuple[Finding, str, _Listed]:
        """said: what was found for others; it is read and added to. Where users or projects have limits, most of what
        is said of a shape is the same for all of them."""
        finding = known or self._evaluate(gang)
        assert isinstance(finding, Finding)
        check, slot_type = finding.check, finding.supply.slot_type
        if check.of_owner or self._shape is self._shape_of_any:
            sentence = check.sentence(finding)
        else:
            key = check, slot_type, finding.scope, self._shape_of_any(gang)
            same = said.get(key)
            if same is None:
                same = said[key] = finding, check.sentence(finding)
            else:
                finding.share_numbers(same[0])
            sentence = same[1]
        return finding, sentence, _Listed(finding, sentence, self._policy.checks_for(slot_type))


class _Listed:
    """Explanation.checks, made once for all jobs that share it."""

    __slots__ = ("_made", "_of")

    def __init__(self, finding: Finding, sentence: str, checks: tuple[Check, ...]) -> None:
        self._of = finding, sentence, checks
        self._made: list[dict[str, Any]] | None = None

    def __call__(self) -> list[dict[str, Any]]:
        if self._made is None:
            self._made = listed(*self._of)
        return self._made


SHAPE = ("tenant", "slot_type", "need", "asked", "learners.max", "runs_at_most_s")
"""What a gang's finding, sentence and checks depend on, besides what its checks read; only the queue position and a
reservation are its own. learners.min follows from need and asked, and hashing the whole Range is slow."""
