"""The platform's own past, run again under other limits or another policy: who would have waited less, and who more.

What ran is known: when it was submitted or resumed, what it asked for, and how long it held its slots. The simulator
runs that with production's plan(). Nodes and limits are those of now: what they were then is not taken into account.
Jobs that never started are left out: it is not known how long they would have run. An elastic job keeps the size with
which it started, for as long as it held any.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import fmean, median

from gpu_scheduler.model import Gang, Range, Snapshot
from gpu_scheduler.policies.base import Policy
from gpu_scheduler.simulation import Outcome, Scenario, SimulatedJob, simulate
from jobs.models import Job, JobEvent
from jobs.selectors.demand import Use, uses_between
from jobs.selectors.nodes import scheduler_nodes
from jobs.selectors.platform_stops import stops_between
from jobs.selectors.snapshot import gangs_of, quota_uses, scheduling_policy, tenant_states
from jobs.selectors.what_if import Limits, with_limits
from jobs.states import State
from tenants.models import QuotaChange

MOST = 40_000
"""Attempts that are replayed at once."""
FIRST = timedelta(seconds=1)
"""So long before the time everything is placed that ran when it began."""
SAME_S = 60.0
"""A replayed start that is no further than this from the real one is the same."""


@dataclass(frozen=True, slots=True)
class Stay:
    """What its owner asked of a job once: to run after its submission, or after a halt. started_at: when it first held
    slots; held_s: for how long in all."""

    gang: Gang
    asked_at: datetime
    started_at: datetime
    held_s: float


@dataclass(frozen=True, slots=True)
class TenantWaits:
    """One tenant's stays that began in the time: mean seconds until their start, and until their end; as it was, as the
    replay of the same gives it, and under the changes. never: how many would never have started."""

    tenant: str
    stays: int
    wait_s: float
    replayed_wait_s: float
    changed_wait_s: float
    replayed_total_s: float
    changed_total_s: float
    never: int


@dataclass(frozen=True, slots=True)
class Replay:
    """same_starts: the part of the starts that the unchanged replay has within SAME_S of the real ones; None if nothing
    started in reality. off_s: the median difference of those that it has; None without one. never_started: jobs of the
    time that are left out. limit_changes and stops of the platform: what happened in the time that a replay does not
    know."""

    since: datetime
    until: datetime
    stays: int
    same_starts: float | None
    off_s: float | None
    tenants: tuple[TenantWaits, ...]
    never_started: int
    limit_changes: int
    stops: int


def replay(since: datetime, until: datetime, limits: Limits, policy: Policy | None = None) -> Replay:
    """Run the time again, once as it is set now and once with these limits and this policy. Changes nothing.

    Raises TooMuch if there were more than MOST attempts.
    """
    stays = _stays(since, until)
    measured = [stay for stay in stays if stay.asked_at >= since]
    changed = unchanged = simulate(_scenario(stays, since, {}, scheduling_policy()))
    if limits or policy is not None:
        changed = simulate(_scenario(stays, since, limits, policy or scheduling_policy()))
    off = [
        abs((at - stay.started_at).total_seconds())
        for stay in measured
        if (at := unchanged.first_started.get(stay.gang.job)) is not None
    ]
    by_tenant: defaultdict[str, list[Stay]] = defaultdict(list)
    for stay in measured:
        by_tenant[stay.gang.tenant].append(stay)
    return Replay(
        since,
        until,
        len(measured),
        sum(each <= SAME_S for each in off) / len(measured) if measured else None,
        median(off) if off else None,
        tuple(_waits(tenant, own, unchanged, changed) for tenant, own in sorted(by_tenant.items())),
        Job.objects.filter(created_at__gt=since, created_at__lte=until, attempts=None).count(),
        QuotaChange.objects.filter(at__gt=since, at__lte=until).count(),
        len(stops_between(since, until)),
    )


def _waits(tenant: str, stays: Sequence[Stay], unchanged: Outcome, changed: Outcome) -> TenantWaits:
    both = [
        stay for stay in stays if stay.gang.job in unchanged.completed and stay.gang.job in changed.completed
    ]

    def mean(at: Mapping[str, datetime]) -> float:
        seconds = [(at[stay.gang.job] - stay.gang.queued_at).total_seconds() for stay in both]
        return fmean(seconds) if seconds else 0.0

    return TenantWaits(
        tenant,
        len(stays),
        fmean((stay.started_at - stay.asked_at).total_seconds() for stay in stays),
        mean(unchanged.first_started),
        mean(changed.first_started),
        mean(unchanged.completed),
        mean(changed.completed),
        sum(stay.gang.job not in changed.completed for stay in stays),
    )


def _scenario(stays: Iterable[Stay], since: datetime, limits: Limits, policy: Policy) -> Scenario:
    seen = Snapshot(
        since,
        tuple(scheduler_nodes()),
        (),
        (),
        tuple(replace(quota, used=0) for quota in quota_uses()),
        policy,
        tuple(replace(state, jobs_used=0) for state in tenant_states()),
    )
    seen = with_limits(seen, limits)
    jobs = tuple(SimulatedJob(stay.gang, stay.held_s) for stay in stays)
    return Scenario(seen.nodes, jobs, seen.quotas, policy, seen.tenants, round_s=0)


def _stays(since: datetime, until: datetime) -> list[Stay]:
    """The stays that held slots in this time."""
    uses: defaultdict[str, list[Use]] = defaultdict(list)
    for use in uses_between(since, until, most=MOST):
        uses[use.job].append(use)
    gangs, asked_at = gangs_of(list(uses)), _asked_at(list(uses))
    return [
        stay
        for job, own in uses.items()
        if job in gangs
        for stay in _of_job(gangs[job], own, asked_at[job], since, until)
    ]


def _asked_at(jobs: list[str]) -> Mapping[str, list[datetime]]:
    """By job, when its owner asked for it to run: submitted it, or resumed it after a halt."""
    found: defaultdict[str, list[datetime]] = defaultdict(list)
    for job, at in Job.objects.filter(pk__in=jobs).values_list("pk", "created_at"):
        found[job].append(at)
    resumed = JobEvent.objects.filter(job__in=jobs, to_state=State.QUEUED, from_state=State.HALTED)
    for job, at in resumed.order_by("job", "n").values_list("job", "at"):
        found[job].append(at)
    return found


def _of_job(
    gang: Gang, uses: Iterable[Use], asked_at: Sequence[datetime], since: datetime, until: datetime
) -> Iterator[Stay]:
    """One stay for each time that the owner asked for the job. What ran before this time is there just before it."""
    parts: defaultdict[datetime, list[Use]] = defaultdict(list)
    for use in uses:
        parts[max((at for at in asked_at if at <= use.since), default=asked_at[0])].append(use)
    for number, (asked, own) in enumerate(sorted(parts.items())):
        first = own[0]
        held_s = sum((min(use.until, until) - max(use.since, since)).total_seconds() for use in own)
        arrives = max(asked, since)
        if first.since < since:
            arrives, held_s = since - FIRST, held_s + FIRST.total_seconds()
        if held_s > 0:
            ran = replace(
                gang,
                job=f"{gang.job}/{number}",
                learners=Range.fixed(len(first.nodes)),
                queued_at=arrives,
                elastic=None,
                target=None,
            )
            yield Stay(ran, asked, first.since, held_s)
