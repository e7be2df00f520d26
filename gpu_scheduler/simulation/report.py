"""Figures of an outcome: how long jobs took, how full the cluster was, and who got what they are entitled to.

Times are in seconds, sizes in slots. A wait that is over within WAIT_S counts as none: plans are made in rounds.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from gpu_scheduler.model import Gang
from gpu_scheduler.simulation.scenario import Outcome, RunEnd, RunRecord, Scenario

WAIT_S = 60.0
GRACE_S = 300.0
"""Seconds for which a tenant can be below its guarantee before that counts as a violation."""


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of one outcome; docs/benchmarks.md says what each means."""

    jobs: int
    unfinished: int
    average_s: float
    median_s: float
    p99_s: float
    average_wait_s: float
    p99_wait_s: float
    makespan_s: float
    utilization: float
    utilization_while_waiting: float
    jain: float
    guarantee_violation_h: float
    stops: int
    revocations: int
    node_failures: int
    lost_slot_h: float


def completion_times(outcome: Outcome, scenario: Scenario) -> dict[str, float]:
    """By job, the seconds from its arrival to its end; without those that never ended."""
    return {
        job.gang.job: (outcome.completed[job.gang.job] - job.gang.queued_at).total_seconds()
        for job in scenario.jobs
        if job.gang.job in outcome.completed
    }


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that this share (0…1) of the values does not exceed; NaN without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def jain(values: Iterable[float]) -> float:
    """Jain's index: 1 if all are equal, 1/n if one has everything; NaN without values (Jain et al., 1984)."""
    found = list(values)
    squares = len(found) * sum(value * value for value in found)
    return sum(found) ** 2 / squares if squares else math.nan


def report(outcome: Outcome, scenario: Scenario, nominal: Mapping[str, float]) -> Report:
    """nominal: tenant -> the slots that it is entitled to at any time."""
    times = list(completion_times(outcome, scenario).values())
    arrivals = {job.gang.job: job.gang.queued_at for job in scenario.jobs}
    waits = [(at - arrivals[job]).total_seconds() for job, at in outcome.first_started.items()]
    makespan_s = (outcome.end - outcome.begin).total_seconds()
    total = sum(node.slots for node in scenario.nodes)
    shares = shares_received(outcome, scenario, nominal)
    held = sum(run.slots * (run.ended - run.began).total_seconds() for run in outcome.runs)
    return Report(
        jobs=len(scenario.jobs),
        unfinished=len(outcome.unfinished),
        average_s=_mean(times),
        median_s=percentile(times, 0.5),
        p99_s=percentile(times, 0.99),
        average_wait_s=_mean(waits),
        p99_wait_s=percentile(waits, 0.99),
        makespan_s=makespan_s,
        utilization=held / (total * makespan_s) if makespan_s else math.nan,
        utilization_while_waiting=_utilization_while_waiting(outcome, scenario, total),
        jain=jain(shares.values()),
        guarantee_violation_h=sum(violations_s(outcome, scenario, nominal).values()) / 3600,
        stops=sum(run.end is RunEnd.STOPPED for run in outcome.runs),
        revocations=sum(run.end is RunEnd.REVOKED for run in outcome.runs),
        node_failures=sum(run.end is RunEnd.NODE_FAILED for run in outcome.runs),
        lost_slot_h=lost_slot_s(outcome, scenario) / 3600,
    )


def lost_slot_s(outcome: Outcome, scenario: Scenario) -> float:
    """Slot-seconds held without progress that was kept: work lost, saves, and all starts but each job's first."""
    start_s = {job.gang.job: job.costs.start_s for job in scenario.jobs}
    lost = 0.0
    for run in outcome.runs:
        seconds = (run.ended - run.began).total_seconds() - run.useful_s
        if run.began == outcome.first_started[run.gang.job]:
            seconds -= min(seconds, start_s[run.gang.job])
        lost += run.slots * seconds
    return lost


def finish_time_ratios(shared: Mapping[str, float], alone: Mapping[str, float]) -> dict[str, float]:
    """By job, its completion time on the shared cluster by that on its tenant's own part of it (finish-time fairness;
    Mahajan et al., NSDI 2020): above 1, sharing made it later. Jobs that did not end in both are left out."""
    return {job: seconds / alone[job] for job, seconds in shared.items() if alone.get(job)}


@dataclass(slots=True)
class _Tenant:
    """A tenant at one time: slots in use, and the sizes that wait."""

    used: int
    waiting: Counter[int]

    def waits(self) -> bool:
        return bool(self.waiting)


def shares_received(outcome: Outcome, scenario: Scenario, nominal: Mapping[str, float]) -> dict[str, float]:
    """By tenant, how much it received of the slot-seconds that it was entitled to and asked for (0…1): at any time, its
    nominal slots, or what it ran and waited for if that was less. What it used beyond its nominal slots does not count,
    and neither do opportunistic jobs, which are entitled to nothing.
    """
    received: defaultdict[str, float] = defaultdict(float)
    entitled: defaultdict[str, float] = defaultdict(float)
    for seconds, tenants in _times(outcome, scenario, entitled=True):
        for name, tenant in tenants.items():
            asked = tenant.used + sum(size * number for size, number in tenant.waiting.items())
            received[name] += min(nominal[name], tenant.used) * seconds
            entitled[name] += min(nominal[name], asked) * seconds
    return {name: received[name] / entitled[name] for name in entitled if entitled[name]}


def violations_s(outcome: Outcome, scenario: Scenario, nominal: Mapping[str, float]) -> dict[str, float]:
    """By tenant, the seconds beyond GRACE_S at a time for which one of its jobs waited that its guarantee covers."""
    found: defaultdict[str, float] = defaultdict(float)
    below: defaultdict[str, float] = defaultdict(float)
    for seconds, tenants in _times(outcome, scenario, entitled=True):
        for name, tenant in tenants.items():
            if tenant.waits() and tenant.used + min(tenant.waiting) <= nominal[name]:
                before = max(0.0, below[name] - GRACE_S)
                below[name] += seconds
                found[name] += max(0.0, below[name] - GRACE_S) - before
            else:
                below[name] = 0.0
    return dict(found)


def _utilization_while_waiting(outcome: Outcome, scenario: Scenario, total: int) -> float:
    used = possible = 0.0
    for seconds, tenants in _times(outcome, scenario):
        if any(tenant.waits() for tenant in tenants.values()):
            used += sum(tenant.used for tenant in tenants.values()) * seconds
            possible += total * seconds
    return used / possible if possible else math.nan


def _times(
    outcome: Outcome, scenario: Scenario, *, entitled: bool = False
) -> Iterator[tuple[float, Mapping[str, _Tenant]]]:
    """Each span in which nothing changes: its seconds, and every tenant as it is in it; entitled: without its
    opportunistic jobs."""
    changes: list[
        tuple[datetime, str, int, int]
    ] = []  # when, tenant, slots more in use, size that waits (-: no more)
    runs: defaultdict[str, list[RunRecord]] = defaultdict(list)
    for run in outcome.runs:
        if entitled and run.gang.opportunistic:
            continue
        changes.append((run.began, run.gang.tenant, run.slots, 0))
        changes.append((run.ended, run.gang.tenant, -run.slots, 0))
        runs[run.gang.job].append(run)
    for job in scenario.jobs:
        if not (entitled and job.gang.opportunistic):
            changes += _waits(job.gang, runs[job.gang.job], outcome)
    changes.sort(key=lambda change: change[0])
    tenants: dict[str, _Tenant] = defaultdict(lambda: _Tenant(0, Counter()))
    before = outcome.begin
    for at, name, slots, size in changes:
        if at > before:
            yield (at - before).total_seconds(), tenants
            before = at
        tenant = tenants[name]
        tenant.used += slots
        if size > 0:
            tenant.waiting[size] += 1
        elif size < 0:
            tenant.waiting[-size] -= 1
            if not tenant.waiting[-size]:
                del tenant.waiting[-size]


def _waits(gang: Gang, runs: list[RunRecord], outcome: Outcome) -> Iterator[tuple[datetime, str, int, int]]:
    """When a job began to wait, and when it was over."""
    ready = gang.queued_at
    starts = [run.began for run in runs]
    ends: list[datetime | None] = [
        None if run.end in (RunEnd.COMPLETED, RunEnd.CUT) else run.ended for run in runs
    ]
    for began, ended in zip([*starts, outcome.end], [*ends, None], strict=True):
        if (began - ready).total_seconds() > WAIT_S:
            yield ready, gang.tenant, 0, gang.asked
            yield began, gang.tenant, 0, -gang.asked
        if ended is None:
            return
        ready = ended


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
