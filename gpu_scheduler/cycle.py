"""plan(snapshot) -> Plan: which jobs start where, and why every other one waits. Pure and deterministic.

Jobs are offered slots in the order of ``ordering``. Later jobs overtake one that cannot start (backfill) until its
starvation timeout is over; then slots are reserved for it: of its tenant's quota at once, and on the nodes of its type
if it is first in the queue there. docs/scheduling.md states what this promises.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gpu_scheduler.checks import CHECKS, Candidate, Finding, Holder, listed
from gpu_scheduler.model import CPU_TYPE, Explanation, Gang, Node, Placement, Plan, Running, Snapshot, Start
from gpu_scheduler.ordering import Patience, in_order
from gpu_scheduler.placement import Pool
from gpu_scheduler.quota import Ledger


def plan(snapshot: Snapshot, *, explained: bool = True) -> Plan:
    """Decide for every waiting job: a Start, or an Explanation. Starts are in the order to apply them.

    explained False leaves the explanations out and decides the same. O(n log n) in waiting jobs plus, for each
    start, the number of distinct free sizes among the nodes.
    """
    return _Cycle(snapshot).run(explained=explained)


class _Cycle:
    """One plan while it is made."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._ledger = Ledger(snapshot.shares, snapshot.tenants)
        self._patience = Patience(snapshot)
        self._pools = _pools(snapshot)
        self._gpu_types = [slot_type for slot_type in self._pools if slot_type != CPU_TYPE] or [""]
        self._tests = [check.test for check in CHECKS]
        self._failed: dict[tuple[Any, ...], Finding] = {}  # by shape, until slots or reservations change
        self._starts: list[Start] = []
        self._waits: list[Gang] = []
        self._heads: set[tuple[str, str]] = set()
        self._head_since: dict[str, datetime] = {}

    def run(self, *, explained: bool) -> Plan:
        for gang in in_order(self._snapshot, self._ledger, self._patience):
            shape = self._shape(gang)
            outcome = self._failed.get(shape) or self._evaluate(gang)
            if isinstance(outcome, str):
                self._starts.append(self._start(gang, outcome))
            else:
                self._failed[shape] = outcome
                self._waits.append(gang)
                self._queue(gang, outcome)
        waits = self._explained() if explained else ()
        return Plan(tuple(self._starts), waits=waits, policy_state=self._head_since)

    def _evaluate(self, gang: Gang) -> str | Finding:
        """The slot type on which the gang can start now, or the check that it fails.

        A gang that takes any type gets the one with the largest free part; if it has to wait, the type on which it
        passes the most checks is the one to explain.
        """
        if gang.slot_type is not None:
            _, finding = self._first_failure(gang, gang.slot_type)
            return gang.slot_type if finding is None else finding
        furthest, explained, open_types = -1, None, []
        for slot_type in self._gpu_types:
            passed, finding = self._first_failure(gang, slot_type)
            if finding is None:
                open_types.append(slot_type)
            elif passed > furthest:
                furthest, explained = passed, finding
        if open_types:
            return min(open_types, key=lambda slot_type: (-self._part_open(slot_type), slot_type))
        assert explained is not None
        return explained

    def _first_failure(self, gang: Gang, slot_type: str) -> tuple[int, Finding | None]:
        """How many checks the gang passes on this type, and the first one that it fails."""
        candidate = Candidate(
            gang,
            slot_type,
            gang.learners.min * gang.slots,
            self._pools.get(slot_type),
            self._ledger.account(gang.tenant, slot_type),
            self._ledger.jobs(gang.tenant),
            self._snapshot.now,
        )
        for passed, test in enumerate(self._tests):
            finding = test(candidate)
            if finding is not None:
                return passed, finding
        return len(self._tests), None

    def _start(self, gang: Gang, slot_type: str) -> Start:
        nodes = self._pools[slot_type].place(gang)
        self._ledger.take(gang.tenant, slot_type, gang.learners.min * gang.slots)
        self._failed.clear()
        return Start(gang.job, Placement(slot_type, nodes))

    def _part_open(self, slot_type: str) -> float:
        pool = self._pools[slot_type]
        return pool.open.total / pool.total if pool.total else 0.0

    def _queue(self, gang: Gang, finding: Finding) -> None:
        """Note since when a queue head waits, and reserve slots for it once its starvation timeout is over."""
        if not finding.check.queues:
            return
        slot_type = finding.on.slot_type
        since = self._patience.since(gang)
        queue = (gang.tenant, slot_type)
        if since is not None or queue not in self._heads:
            self._head_since[gang.job] = since or self._snapshot.now
        self._heads.add(queue)
        if not self._patience.is_over(gang):
            return
        self._ledger.reserve(gang.tenant, slot_type, finding.on.asked, job=gang.job)
        if finding.holder is Holder.CLUSTER:
            self._pools[slot_type].reserve_for(gang)
        self._failed.clear()

    def _explained(self) -> tuple[Explanation, ...]:
        """Explain all waits by the state after the last start: free slots and quota only got fewer."""
        told: dict[tuple[Any, ...], tuple[Finding, str, dict[str, Any]]] = {}
        ahead: defaultdict[tuple[str, str], int] = defaultdict(int)
        explanations = []
        for gang in self._waits:
            shape = self._shape(gang)
            shared = told.get(shape)
            if shared is None:
                failed = self._failed.get(shape) or self._evaluate(gang)
                assert isinstance(failed, Finding)
                sentence = failed.check.sentence(failed)
                shared = (failed, sentence, failed.numbers | {"checks": listed(failed, sentence, CHECKS)})
                told[shape] = shared
            finding, text, common = shared
            numbers = dict(common)
            if finding.check.queues:
                # A job of another type is ahead only where the tenant's jobs are counted; one that its own tenant's
                # limits hold back is ahead of nobody else.
                limited = finding.on.jobs.limit is not None
                own = (gang.tenant, "" if limited else finding.on.slot_type)
                whole = ("", finding.on.slot_type)
                numbers["position"], numbers["cluster_position"] = ahead[own] + 1, ahead[whole] + 1
                ahead[own] += 1
                ahead[whole] += finding.holder is Holder.CLUSTER
            if gang.job in self._head_since:
                numbers["queue_head_since"] = _timestamp(self._head_since[gang.job])
            explanations.append(Explanation(gang.job, finding.check.code, text, numbers))
        return tuple(explanations)

    def _shape(self, gang: Gang) -> tuple[Any, ...]:
        """What a gang's finding, sentence and checks depend on; only the queue position is a job's own."""
        return (
            gang.tenant,
            gang.slot_type,
            gang.learners.min,
            gang.slots,
            gang.runs_at_most_s,
            gang.job in self._ledger.with_reservation,
        )


def _pools(snapshot: Snapshot) -> Mapping[str, Pool]:
    by_type: defaultdict[str, list[Node]] = defaultdict(list)
    for node in snapshot.nodes:
        by_type[node.slot_type].append(node)
    held: defaultdict[str, list[Running]] = defaultdict(list)
    for run in snapshot.running:
        held[run.slot_type].append(run)
    return {
        slot_type: Pool(slot_type, by_type[slot_type], held[slot_type], snapshot.now)
        for slot_type in sorted(by_type)
    }


def _timestamp(at: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, as every time that leaves the platform."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
