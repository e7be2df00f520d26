"""plan(snapshot) -> Plan: which jobs start where, and why every other one waits. Pure and deterministic.

Jobs are offered slots in the order of ``ordering``; one that cannot start is overtaken by later ones (backfill)
until its patience is over, then slots are kept for it: of its tenant's quota at once, and on the nodes of its
type if it is the first in line there. docs/scheduling.md states what this promises.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gpu_scheduler import explain
from gpu_scheduler.explain import FIX_NEEDED, PROGRESS, Verdict
from gpu_scheduler.model import (
    CPU_TYPE,
    Explanation,
    Gang,
    Node,
    Placement,
    Plan,
    Running,
    Snapshot,
    Start,
    WaitReason,
)
from gpu_scheduler.ordering import Patience, in_order
from gpu_scheduler.placement import Pool
from gpu_scheduler.quota import Ledger

WAITING_FOR_CAPACITY = frozenset({WaitReason.INSUFFICIENT_CAPACITY, WaitReason.GANG_FRAGMENTED})
NOT_IN_LINE = FIX_NEEDED | {WaitReason.TENANT_SUSPENDED}
"""Reasons that waiting does not mend: such a job is no head and nothing is kept for it."""


def plan(snapshot: Snapshot, *, explained: bool = True) -> Plan:
    """Decide for every waiting job: a Start, or an Explanation. Starts are in the order to apply them.

    explained False leaves the explanations out and decides the same. O(n log n) in waiting jobs plus, for each
    start, the number of distinct free sizes among the nodes.
    """
    return _Cycle(snapshot).run(explained=explained)


class _Cycle:
    """One plan in the making."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._ledger = Ledger(snapshot.shares, snapshot.tenants)
        self._patience = Patience(snapshot)
        self._pools = _pools(snapshot)
        self._starts: list[Start] = []
        self._waits: list[Gang] = []
        self._heads: set[tuple[str, str]] = set()
        self._head_since: dict[str, datetime] = {}

    def run(self, *, explained: bool) -> Plan:
        for gang in in_order(self._snapshot, self._ledger, self._patience):
            verdict = self._judge(gang)
            if isinstance(verdict, str):
                self._starts.append(self._start(gang, verdict))
            else:
                self._waits.append(gang)
                self._stand_in_line(verdict)
        waits = self._explained() if explained else ()
        return Plan(tuple(self._starts), waits=waits, policy_state=self._head_since)

    def _judge(self, gang: Gang) -> str | Verdict:
        """The slot type on which the gang can start now, or what stands in its way.

        A gang that takes any type gets the one that has the largest part free; if it has to wait, the type on
        which it came furthest through the checks is the one to tell about.
        """
        furthest: Verdict | None = None
        open_types = []
        for slot_type in self._types(gang):
            verdict = self._hindrance(gang, slot_type)
            if verdict is None:
                open_types.append(slot_type)
            elif furthest is None or PROGRESS[verdict.code] > PROGRESS[furthest.code]:
                furthest = verdict
        if open_types:
            return min(open_types, key=lambda slot_type: (-self._part_open(slot_type), slot_type))
        assert furthest is not None
        return furthest

    def _types(self, gang: Gang) -> list[str]:
        """The types to look at; "" stands for a GPU type where there is none."""
        if gang.slot_type is not None:
            return [gang.slot_type]
        return [slot_type for slot_type in self._pools if slot_type != CPU_TYPE] or [""]

    def _hindrance(self, gang: Gang, slot_type: str) -> Verdict | None:
        """The first check that the gang fails on this type, in the order of ``explain.CHECKS``."""
        pool = self._pools.get(slot_type)
        if pool is None or not pool.could_hold(gang):
            return Verdict(gang, slot_type, WaitReason.NO_MATCHING_POOL)
        asked = gang.learners.min * gang.slots
        account = self._ledger.account(gang.tenant, slot_type)
        if asked > account.limit:
            return Verdict(gang, slot_type, WaitReason.EXCEEDS_MAX_QUOTA)
        jobs = self._ledger.jobs(gang.tenant)
        if jobs.suspended:
            return Verdict(gang, slot_type, WaitReason.TENANT_SUSPENDED)
        if account.used + asked > account.limit:
            return Verdict(gang, slot_type, WaitReason.QUOTA_GPUS)
        if jobs.limit is not None and jobs.used + 1 > jobs.limit:
            return Verdict(gang, slot_type, WaitReason.QUOTA_JOBS)
        kept_slots, kept_jobs = self._ledger.kept_from(gang.tenant, slot_type, gang.job)
        if account.used + kept_slots + asked > account.limit or (
            jobs.limit is not None and jobs.used + kept_jobs + 1 > jobs.limit
        ):
            return Verdict(gang, slot_type, WaitReason.FAIR_SHARE, own_head=True)
        if pool.fits(gang, self._snapshot.now):
            return None
        if pool.free.capacity(gang.slots) >= gang.learners.min:
            return Verdict(gang, slot_type, WaitReason.FAIR_SHARE)
        if pool.free.total < asked:
            return Verdict(gang, slot_type, WaitReason.INSUFFICIENT_CAPACITY)
        return Verdict(gang, slot_type, WaitReason.GANG_FRAGMENTED)

    def _start(self, gang: Gang, slot_type: str) -> Start:
        nodes = self._pools[slot_type].place(gang)
        self._ledger.take(gang.tenant, slot_type, gang.learners.min * gang.slots)
        return Start(gang.job, Placement(slot_type, nodes))

    def _part_open(self, slot_type: str) -> float:
        pool = self._pools[slot_type]
        return pool.open.total / pool.total if pool.total else 0.0

    def _stand_in_line(self, verdict: Verdict) -> None:
        """Note since when a head waits, and keep slots for it once its patience is over."""
        gang = verdict.gang
        if verdict.code in NOT_IN_LINE:
            return
        since = self._patience.since(gang)
        queue = (gang.tenant, verdict.slot_type)
        if since is not None or queue not in self._heads:
            self._head_since[gang.job] = since or self._snapshot.now
        self._heads.add(queue)
        if not self._patience.is_over(gang):
            return
        self._ledger.keep(gang.tenant, verdict.slot_type, verdict.asked, job=gang.job)
        if verdict.code in WAITING_FOR_CAPACITY:
            self._pools[verdict.slot_type].keep_for(gang)

    def _explained(self) -> tuple[Explanation, ...]:
        """Explain all waits as things stand after the last start: free slots and quota only got fewer."""
        known: dict[tuple[Any, ...], tuple[Verdict, str, dict[str, Any]]] = {}
        in_line: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        explanations = []
        for gang in self._waits:
            shape = self._shape(gang)
            if shape not in known:
                verdict = self._judge(gang)
                assert isinstance(verdict, Verdict)
                numbers = explain.facts(verdict, self._pools.get(verdict.slot_type), self._ledger)
                numbers["checks"] = explain.checks(verdict, numbers)
                known[shape] = (verdict, explain.message(verdict, numbers), numbers)
            verdict, text, shared = known[shape]
            numbers = dict(shared)
            if verdict.code not in NOT_IN_LINE:
                # A job of another type is ahead only where the tenant's jobs are counted; one that its own tenant's
                # limits hold back is in nobody else's way.
                limited = self._ledger.jobs(gang.tenant).limit is not None
                own = ("tenant", gang.tenant, "" if limited else verdict.slot_type)
                whole = ("cluster", "", verdict.slot_type)
                numbers["position"], numbers["cluster_position"] = in_line[own] + 1, in_line[whole] + 1
                in_line[own] += 1
                in_line[whole] += verdict.for_nodes
            if gang.job in self._head_since:
                numbers["queue_head_since"] = _moment(self._head_since[gang.job])
            explanations.append(Explanation(gang.job, verdict.code, text, numbers))
        return tuple(explanations)

    def _shape(self, gang: Gang) -> tuple[Any, ...]:
        """Jobs alike in this share verdict, text and checks; only the place in line is a job's own."""
        keeper = any(
            self._ledger.account(gang.tenant, slot_type).kept_by == gang.job
            for slot_type in self._types(gang)
        )
        return (gang.tenant, gang.slot_type, gang.learners, gang.slots, gang.runs_at_most_s, keeper)


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


def _moment(at: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, as every time that leaves the platform."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
