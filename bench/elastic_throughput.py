"""The policy of "Effective Elastic Scaling of Deep Learning Workloads" (Saxena et al., MASCOTS 2020), to compare with.

Jobs are admitted first come, first served as long as each one can have the fewest GPUs on which it runs. At each
interval the GPUs are divided among those that were admitted so that the sum of their throughputs, each in multiples of
its own on one GPU, is the greatest: by the dynamic program. It looks at no quota, and a patent (US 11,586,475) claims
this flow: that keeps it out of production.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import ClassVar

from gpu_scheduler.checks import Finding
from gpu_scheduler.draft import Draft
from gpu_scheduler.elastic.allocation import Candidate, Option, allocate_exactly
from gpu_scheduler.model import Gang, Range, Resize, Resources, Snapshot, Stop
from gpu_scheduler.policies.base import Policy, PolicyState, Round, Window


@dataclass(frozen=True)
class ElasticThroughput(Policy):
    """speeds: by job, its throughput on 1, 2, … GPUs in multiples of that on one; 0 where it does not run. every_s:
    between two divisions. A learner has one GPU.

    PolicyState: at: when GPUs were last divided; sizes: by job, how many it got.
    """

    name: ClassVar[str] = "elastic_throughput"
    speeds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    every_s: float = 600

    def begin(self, draft: Draft) -> ElasticThroughputRound:
        return ElasticThroughputRound(self, draft)

    def next_event_at(self, snapshot: Snapshot) -> datetime | None:
        at = snapshot.policy_state.get("at")
        if at is None or not (snapshot.waiting or snapshot.running):
            return None
        return max(at + timedelta(seconds=self.every_s), snapshot.now + timedelta(seconds=1))

    def plans_without_queue(self, state: PolicyState) -> bool:
        return bool(state)

    def window(self, state: PolicyState) -> Window:
        return Window()


class ElasticThroughputRound(Round):
    """One plan: a division where it is due, and the starts that the last one decided."""

    def __init__(self, policy: ElasticThroughput, draft: Draft) -> None:
        self._policy, self._draft = policy, draft
        now, state = draft.snapshot.now, draft.state
        known = {gang.job for gang in draft.waiting} | {run.job for run in draft.snapshot.running}
        self._at = state.get("at")
        self._sizes = {job: size for job, size in state.get("sizes", {}).items() if job in known}
        due_at = now if self._at is None or not self._sizes else self._at + timedelta(seconds=policy.every_s)
        self._due = now >= due_at
        if self._due:
            self._at, self._sizes = now, self._divided()

    def _divided(self) -> dict[str, int]:
        slots = sum(pool.total for pool in self._draft.pools.values())
        gangs = [run.gang for run in self._draft.snapshot.running]
        gangs += [gang for gang in self._draft.waiting if gang.job in self._sizes]
        new = [gang for gang in self._draft.waiting if gang.job not in self._sizes]
        for gang in sorted(new, key=lambda gang: (gang.queued_at, gang.job)):
            if sum(each.learners.min for each in (*gangs, gang)) <= slots:
                gangs.append(gang)
        taken = allocate_exactly([self._candidate(gang) for gang in gangs], slots)
        return {job: option.slots for job, option in taken.items()}

    def _candidate(self, gang: Gang) -> Candidate:
        speeds = enumerate(self._policy.speeds[gang.job], start=1)
        options = (Option(gpus, speed) for gpus, speed in speeds if gpus >= gang.learners.min and speed)
        return Candidate(gang.job, tuple(options))

    def queue(self) -> Iterator[Gang]:
        """Those whose whole size is free; the others wait for theirs, or for the next division."""
        held = []
        for gang in sorted(self._draft.waiting, key=lambda gang: (gang.queued_at, gang.job)):
            free = sum(pool.free.total for pool in self._draft.pools.values())
            if 0 < self._sizes.get(gang.job, 0) <= free:
                yield gang
            else:
                held.append(gang)
        for slot_type, pool in self._draft.pools.items() if held else ():
            every = replace(held[0], job="", learners=Range.fixed(1), resources=Resources(1))
            free_on = Counter({name: room[0] for name, room in pool.free.of.items()})
            self._draft.reserve_nodes(every, slot_type, free_on)
        yield from held

    def wait(self, gang: Gang, finding: Finding) -> None:
        """Nothing is reserved: the division is."""

    def size(self, gang: Gang) -> int:
        return self._sizes[gang.job]

    def orders(self, waits: Iterable[tuple[Gang, Finding]]) -> tuple[Sequence[Stop], Sequence[Resize]]:
        if not self._due:
            return (), ()
        return (), [
            Resize(run.job, self._sizes[run.job], run.generation)
            for run in self._draft.snapshot.running
            if not run.stopping and run.order is None and self._sizes[run.job] != len(run.nodes)
        ]

    def state(self) -> PolicyState:
        return {"at": self._at, "sizes": self._sizes} if self._sizes else {}
