"""A policy that stops and resizes, to drive orders through plan, world, forecast and lifecycle. Not for production."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gpu_scheduler.checks import Finding, Scope
from gpu_scheduler.draft import Draft
from gpu_scheduler.model import Gang, Resize, Running, Stop
from gpu_scheduler.policies.fair_share import FairShare, FairShareRound


@dataclass(frozen=True, slots=True)
class Preempting(FairShare):
    """FairShare, but a gang that waits for nodes takes slots from runs of lower priority: an elastic one shrinks to its
    fewest learners, any other stops."""

    name: ClassVar[str] = "preempting"

    def begin(self, draft: Draft) -> PreemptingRound:
        return PreemptingRound(self, draft)


class PreemptingRound(FairShareRound):
    """Lowest priority first, then the newest run."""

    def orders(self, waits: Iterable[tuple[Gang, Finding]]) -> tuple[Sequence[Stop], Sequence[Resize]]:
        runs = sorted(
            self._draft.snapshot.running, key=lambda run: (run.gang.priority, run.gang.queued_at, run.job)
        )
        untouched = {run.job: run for run in runs if run.order is None and not run.stopping}
        stops: list[Stop] = []
        resizes: list[Resize] = []
        for gang, finding in waits:
            if finding.scope is not Scope.CLUSTER:
                continue
            assert finding.supply.pool is not None
            missing = gang.asked - finding.supply.pool.free.total - _promised(gang, runs)
            for run in list(untouched.values()):
                if missing <= 0 or run.slot_type != finding.supply.slot_type or run.priority >= gang.priority:
                    continue
                del untouched[run.job]
                fewest = run.gang.learners.min
                if fewest < len(run.nodes):
                    resizes.append(Resize(run.job, fewest, run.generation))
                    missing -= (len(run.nodes) - fewest) * run.slots
                else:
                    stops.append(Stop(run.job, "preempted", gang.job, run.generation))
                    missing -= len(run.nodes) * run.slots
        return stops, resizes


def _promised(gang: Gang, runs: Sequence[Running]) -> int:
    """Slots that will be free once the orders given for this gang are carried out."""
    stopping = [run for run in runs if isinstance(run.order, Stop) and run.order.for_job == gang.job]
    return sum(len(run.nodes) * run.slots for run in stopping)
