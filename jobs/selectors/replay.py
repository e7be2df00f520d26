"""The platform's own past, run again under other limits or another policy: who would have waited less, and who more.

What ran is known: when it was submitted or resumed, what it asked for, and how long it held its slots. The simulator
runs that with production's plan(), up to the end of the time. Nodes, limits and projects are those of now: what they
were then is not taken into account. Jobs that never started are left out: it is not known how long they would have run.
Nor is it of those that still ran at the end: wherever the replay starts them, they run on to the end of it and have not
ended. An elastic job keeps the size with which it started, for as long as it held any.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from statistics import fmean, median

from django.db.models import Q

from gpu_scheduler.model import CPU_TYPE, Gang, Plan, Project, Range, Snapshot, TenantState
from gpu_scheduler.policies.base import Policy
from gpu_scheduler.simulation import Outcome, Scenario, SimulatedJob, simulate
from gpu_scheduler.simulation.engine import unexplained
from jobs.models import Job, JobEvent
from jobs.selectors.budgets import month_of, used_gpu_s
from jobs.selectors.demand import Use, uses_between
from jobs.selectors.nodes import scheduler_nodes
from jobs.selectors.platform_stops import stops_between
from jobs.selectors.snapshot import gangs_of, projects, quota_uses, scheduling_policy, tenant_states
from jobs.selectors.what_if import Limits, with_limits
from jobs.states import FINAL, State
from tenants.models import ProjectChange, QuotaChange, Tenant

MOST = 40_000
"""Attempts that are replayed at once."""
WORK = 20_000_000
"""Units of work for the plans of one simulation, two minutes or so; beyond that they are made less often."""
FIRST = timedelta(seconds=1)
"""So long before the time everything is placed that ran when it began."""
SAME_S = 60.0
"""A replayed start that is no further than this from the real one is the same."""


Watch = Callable[[float], None]
"""Called with the part (0…1) of a replay that is done."""


@dataclass(frozen=True, slots=True)
class Stay:
    """What its owner asked of a job once: to run after its submission, or after a halt. The gang's queued_at is when.

    arrives_at: when it joins the replay. started_at: when it first held slots; held_s: for how long in all, in the
    replayed time. cut: it still ran at its end, or was to run again, so it is not known how long it runs.
    """

    gang: Gang
    arrives_at: datetime
    started_at: datetime
    held_s: float
    cut: bool

    @property
    def asked_at(self) -> datetime:
        return self.gang.queued_at


@dataclass(frozen=True, slots=True)
class TenantWaits:
    """One tenant's stays that were asked for in the time. All means are in seconds and of the same stays, None without
    any.

    compared: those that both replays start before the end; the waits until their start, as they were, as the unchanged
    replay gives them, and under the changes. ended: those of them that end in both, and the seconds from their request
    to their end. not_started, replayed_not_started: those that the changed and the unchanged replay do not start before
    the end. still_running: those that still ran at the end in reality.
    """

    tenant: str
    stays: int
    compared: int
    wait_s: float | None
    replayed_wait_s: float | None
    changed_wait_s: float | None
    ended: int
    replayed_total_s: float | None
    changed_total_s: float | None
    not_started: int
    replayed_not_started: int
    still_running: int


@dataclass(frozen=True, slots=True)
class Replay:
    """same_starts: the part of the starts that the unchanged replay has within SAME_S of the real ones; None if nothing
    started in reality. off_s: the median difference of those that it has; None without one. still_running: how many of
    the stays still ran at the end. never_started: jobs of the time that are left out. limit_changes and stops of the
    platform: what happened in the time that a replay does not know. budgets: how many tenants have a hard one now, each
    followed from what the tenant had used of the month when the time began. plans_late_s: the longest that a plan was
    put off because there were too many to make.
    """

    since: datetime
    until: datetime
    stays: int
    same_starts: float | None
    off_s: float | None
    tenants: tuple[TenantWaits, ...]
    still_running: int
    never_started: int
    limit_changes: int
    stops: int
    budgets: int
    plans_late_s: float


def replay(
    since: datetime,
    until: datetime,
    limits: Limits,
    policy: Policy | None = None,
    watch: Watch = lambda done: None,
    divided: tuple[Project, ...] | None = None,
) -> Replay:
    """Run the time again, once as it is set now and once with these limits, this policy and, in place of all that there
    are, these projects (divided). Changes nothing.

    Raises TooMuch if there were more than MOST attempts.
    """
    stays = _stays(since, until)
    measured = [stay for stay in stays if stay.asked_at >= since]
    now = projects()
    tried: list[tuple[Limits, Policy, tuple[Project, ...]]] = [({}, scheduling_policy(), now)]
    if limits or policy is not None or divided is not None:
        tried.append((limits, policy or scheduling_policy(), now if divided is None else divided))
    outcomes = [
        simulate(
            _scenario(stays, since, until, *change),
            _watched(since, until, watch, number / len(tried), len(tried)),
        )
        for number, change in enumerate(tried)
    ]
    watch(1.0)
    unchanged, changed = outcomes[0], outcomes[-1]
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
        sum(stay.cut for stay in measured),
        Job.objects.filter(created_at__gt=since, created_at__lte=until, attempts=None).count(),
        sum(
            changes.objects.filter(at__gt=since, at__lte=until).count()
            for changes in (QuotaChange, ProjectChange)
        ),
        len(stops_between(since, until)),
        Tenant.objects.filter(budget_gpu_hours__isnull=False, budget_is_hard=True).count(),
        max(outcome.plans_late_s for outcome in outcomes),
    )


def _watched(
    since: datetime, until: datetime, watch: Watch, before: float, replays: int
) -> Callable[[Snapshot], Plan]:
    """plan(), which says first how much of all replays is done; before: the part that was done when this one began."""

    def planner(seen: Snapshot) -> Plan:
        watch(before + max(0.0, (seen.now - since) / (until - since)) / replays)
        return unexplained(seen)

    return planner


def _waits(tenant: str, stays: Sequence[Stay], unchanged: Outcome, changed: Outcome) -> TenantWaits:
    both = [
        stay
        for stay in stays
        if stay.gang.job in unchanged.first_started and stay.gang.job in changed.first_started
    ]
    ended = [
        stay for stay in both if stay.gang.job in unchanged.completed and stay.gang.job in changed.completed
    ]

    def mean(at: Mapping[str, datetime], of: Sequence[Stay]) -> float | None:
        seconds = [(at[stay.gang.job] - stay.asked_at).total_seconds() for stay in of]
        return fmean(seconds) if seconds else None

    return TenantWaits(
        tenant,
        len(stays),
        len(both),
        mean({stay.gang.job: stay.started_at for stay in both}, both),
        mean(unchanged.first_started, both),
        mean(changed.first_started, both),
        len(ended),
        mean(unchanged.completed, ended),
        mean(changed.completed, ended),
        sum(stay.gang.job not in changed.first_started for stay in stays),
        sum(stay.gang.job not in unchanged.first_started for stay in stays),
        sum(stay.cut for stay in stays),
    )


def _scenario(
    stays: Iterable[Stay],
    since: datetime,
    until: datetime,
    limits: Limits,
    policy: Policy,
    divided: tuple[Project, ...],
) -> Scenario:
    begin = since - FIRST
    seen = Snapshot(
        since,
        tuple(scheduler_nodes()),
        (),
        (),
        tuple(replace(quota, used=0) for quota in quota_uses()),
        policy,
        _with_budgets(begin),
    )
    seen = with_limits(seen, limits)
    to_the_end_s = (until - since + 2 * FIRST).total_seconds()
    jobs = tuple(
        SimulatedJob(stay.gang, to_the_end_s if stay.cut else stay.held_s, arrives_at=stay.arrives_at)
        for stay in stays
    )
    return Scenario(
        seen.nodes,
        jobs,
        seen.quotas,
        policy,
        seen.tenants,
        round_s=0,
        begin=begin,
        until=until,
        work=WORK,
        projects=divided,
    )


def _with_budgets(begin: datetime) -> tuple[TenantState, ...]:
    """The tenants' limits, with what each of those with a hard GPU-hour budget had used of the month at this time."""
    states = tuple(replace(state, jobs_used=0) for state in tenant_states())
    limited = [
        state.tenant for state in states if state.budget_gpu_hours is not None and state.budget_is_hard
    ]
    if not limited:
        return states
    first, ends = month_of(begin)
    day = begin.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    used_s = used_gpu_s(limited, first, day)
    for use in uses_between(day, begin, tenants=limited, most=MOST):
        if use.slot_type != CPU_TYPE and not use.opportunistic:
            ran = min(use.until, begin) - max(use.since, day)
            used_s[use.tenant] += use.slots * len(use.nodes) * ran.total_seconds()
    return tuple(
        replace(state, used_gpu_s=used_s[state.tenant], month_ends=ends) if state.tenant in limited else state
        for state in states
    )


def _stays(since: datetime, until: datetime) -> list[Stay]:
    """The stays that held slots in this time."""
    uses: defaultdict[str, list[Use]] = defaultdict(list)
    for use in uses_between(since, until, most=MOST):
        uses[use.job].append(use)
    gangs, asked_at, over = gangs_of(list(uses)), _asked_at(list(uses)), _over_at(list(uses), until)
    return [
        stay
        for job, own in uses.items()
        if job in gangs
        for stay in _of_job(gangs[job], own, asked_at[job], over=job in over, since=since, until=until)
    ]


def _asked_at(jobs: list[str]) -> Mapping[str, list[datetime]]:
    """By job, when its owner asked for it to run, the first time first: submitted it, or resumed it after a halt."""
    found: defaultdict[str, list[datetime]] = defaultdict(list)
    for job, at in Job.objects.filter(pk__in=jobs).values_list("pk", "created_at"):
        found[job].append(at)
    resumed = JobEvent.objects.filter(job__in=jobs, to_state=State.QUEUED, from_state=State.HALTED)
    for job, at in resumed.order_by("job", "n").values_list("job", "at"):
        found[job].append(at)
    return found


def _over_at(jobs: list[str], until: datetime) -> frozenset[str]:
    """The jobs that had ended, or were halted, by then. What was not runs on, or is to run again."""
    over = Q(state=State.HALTED) | Q(state__in=FINAL, finished_at__lte=until)
    return frozenset(Job.objects.filter(over, pk__in=jobs).values_list("pk", flat=True))


def _of_job(
    gang: Gang,
    uses: Iterable[Use],
    asked_at: Sequence[datetime],
    *,
    over: bool,
    since: datetime,
    until: datetime,
) -> Iterator[Stay]:
    """One stay for each time that the owner asked for the job. What ran before this time is there just before it; what
    waited keeps its turn."""
    parts: defaultdict[datetime, list[Use]] = defaultdict(list)
    for use in uses:
        parts[asked_at[max(0, bisect_right(asked_at, use.since) - 1)]].append(use)
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
                queued_at=asked,
                elastic=None,
                target=None,
            )
            cut = (asked == asked_at[-1] and not over) or any(use.until > until for use in own)
            yield Stay(ran, arrives, first.since, held_s, cut)
