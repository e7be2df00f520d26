"""Tiresias as a policy, to compare with: jobs that have used few slot-hours stop those that have used many.

Discretized two-dimensional least attained service (Gu et al., NSDI 2019) with two queues: a job begins in the first and
moves to the second when its slots times its run time reach a threshold. Inside a queue the order is first come, first
served. Only nodes are shared out this way, quotas are not looked at: that keeps it out of production.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar

from gpu_scheduler.checks import Finding, Scope
from gpu_scheduler.draft import Draft
from gpu_scheduler.model import Gang, Resize, Running, Snapshot, Stop
from gpu_scheduler.policies.base import Policy, PolicyState, Round, Window


@dataclass(frozen=True, slots=True)
class Served:
    """The slot-seconds that a job had used at a time. demoted_at: when it moved to the second queue, None: not yet."""

    slot_s: float
    at: datetime
    demoted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Tiresias(Policy):
    """threshold_s: slot-seconds after which a job is in the second queue. PolicyState: job -> Served, if it ran."""

    name: ClassVar[str] = "tiresias"
    threshold_s: float = 16 * 3600

    def begin(self, draft: Draft) -> TiresiasRound:
        return TiresiasRound(self, draft)

    def next_event_at(self, snapshot: Snapshot) -> datetime | None:
        """When the next run reaches the threshold."""
        changes = []
        for run in snapshot.running:
            left_s = self.threshold_s - served(run, snapshot.policy_state, snapshot.now).slot_s
            changes.append(snapshot.now + timedelta(seconds=left_s / (len(run.nodes) * run.slots)))
        return min((at for at in changes if at > snapshot.now), default=None)

    def window(self, state: PolicyState) -> Window:
        return Window()


def served(run: Running, state: Mapping[str, Served], now: datetime) -> Served:
    """What a run's job has used until now: what was counted before, and since then or since it started."""
    known = state.get(run.job) or Served(0.0, run.started_at)
    seconds = (now - max(known.at, run.started_at)).total_seconds()
    return replace(known, slot_s=known.slot_s + seconds * len(run.nodes) * run.slots, at=now)


class TiresiasRound(Round):
    """One plan by Tiresias.

    chosen: which jobs should run, of those that wait and those that run: in order, as far as the slots of their type
    go. Runs that are not chosen stop for waiting jobs that are, but only as many as these need.
    """

    def __init__(self, policy: Tiresias, draft: Draft) -> None:
        self._draft = draft
        self._runs = [run for run in draft.snapshot.running if not run.stopping and run.order is None]
        now, waiting = draft.snapshot.now, {gang.job for gang in draft.waiting}
        self._served = {job: known for job, known in draft.state.items() if job in waiting}
        for run in draft.snapshot.running:
            known = served(run, draft.state, now)
            if known.slot_s >= policy.threshold_s and known.demoted_at is None:
                known = replace(known, demoted_at=now)
            self._served[run.job] = known
        self._chosen: set[str] = set()
        left = Counter({slot_type: pool.total for slot_type, pool in draft.pools.items()})
        for gang in sorted([*draft.waiting, *(run.gang for run in self._runs)], key=self._rank):
            if gang.slot_type is not None and gang.asked <= left[gang.slot_type]:
                left[gang.slot_type] -= gang.asked
                self._chosen.add(gang.job)

    def queue(self) -> Iterator[Gang]:
        """Chosen gangs first."""
        yield from sorted(
            self._draft.waiting, key=lambda gang: (gang.job not in self._chosen, self._rank(gang))
        )

    def wait(self, gang: Gang, finding: Finding) -> None:
        """Those that are not chosen leave to a chosen one what it needs."""
        if gang.job in self._chosen and finding.check.queues:
            on_nodes = finding.scope is Scope.CLUSTER
            self._draft.reserve(gang, finding.supply.slot_type, gang.asked, on_nodes=on_nodes)

    def orders(self, waits: Iterable[tuple[Gang, Finding]]) -> tuple[Sequence[Stop], Sequence[Resize]]:
        """Stop runs that are not chosen, the last in order first, until there is enough for each chosen gang."""
        running = self._draft.snapshot.running
        free = Counter({slot_type: pool.free.total for slot_type, pool in self._draft.pools.items()})
        for run in running:
            if run.stopping or run.order is not None:
                free[run.slot_type] += len(run.nodes) * run.slots
        victims = [run for run in self._runs if run.job not in self._chosen]
        victims.sort(key=lambda run: self._rank(run.gang))
        stops: list[Stop] = []
        for gang, finding in waits:
            if gang.job not in self._chosen or finding.scope is not Scope.CLUSTER:
                continue
            slot_type = finding.supply.slot_type
            for run in reversed([run for run in victims if run.slot_type == slot_type]):
                if free[slot_type] >= gang.asked:
                    break
                victims.remove(run)
                stops.append(Stop(run.job, "preempted", gang.job, run.generation))
                free[slot_type] += len(run.nodes) * run.slots
            free[slot_type] -= gang.asked
        return stops, ()

    def state(self) -> PolicyState:
        return self._served

    def _rank(self, gang: Gang) -> tuple[int, datetime, datetime, str]:
        """The first queue by arrival, then the second by when a job moved there."""
        known = self._served.get(gang.job)
        if known is None or known.demoted_at is None:
            return (0, gang.queued_at, gang.queued_at, gang.job)
        return (1, known.demoted_at, gang.queued_at, gang.job)
