"""What the scheduler would do now: with other limits, with one more job, or if a halted job were resumed."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gpu_scheduler.checks import NOT_QUEUED
from gpu_scheduler.cycle import plan
from gpu_scheduler.forecast import (
    FORECAST_JOBS,
    REQUEST_WORK,
    StartForecast,
    WhyNone,
    forecast,
)
from gpu_scheduler.model import (
    CPU_TYPE,
    Explanation,
    Gang,
    PlacementStrategy,
    Priority,
    Profile,
    Project,
    QuotaUse,
    Resources,
    Snapshot,
)
from gpu_scheduler.world import apply
from jobs.models import Job
from jobs.selectors.nodes import scheduler_nodes
from jobs.selectors.queue import forecast_view, why_unforeseen
from jobs.selectors.snapshot import database_now, gang_of_job, snapshot
from jobs.selectors.throughput import run_times
from jobs.spec import Spec
from jobs.spec.definition import DEFAULT_PROJECT
from tenants.models import Tenant

SHOWN = 200
"""Jobs per list."""


@dataclass(frozen=True, slots=True)
class Affected:
    """One waiting job. slots over all learners; reason: why it waits; empty if it starts."""

    job: str
    name: str
    tenant: str
    slots: int
    slot_type: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one plan decides. starting_ids is complete, the lists have at most SHOWN jobs. stopping: running jobs that
    are stopped by order."""

    starting: tuple[Affected, ...]
    waiting: tuple[Affected, ...]
    starting_ids: frozenset[str]
    stopping: tuple[Affected, ...] = ()


Limits = Mapping[tuple[str, str], int | Mapping[str, Any]]
"""By (tenant, slot type), other limits than the current ones: a number of slots, or the fields of QuotaUse that are
others. With the type "": those of TenantState, and the cohort."""


def would_start(limits: Limits, projects: tuple[Project, ...] | None = None) -> Outcome:
    """Plan now with these limits, and these projects instead of all that there are. Changes nothing."""
    seen = with_limits(current(), limits)
    return outcome(seen if projects is None else replace(seen, projects=projects))


def current() -> Snapshot:
    """What a plan would be made of now."""
    return snapshot(nodes=scheduler_nodes(), now=database_now())


def outcome(seen: Snapshot) -> Outcome:
    """Plan with this snapshot. Changes nothing."""
    decided = plan(seen)
    gangs = {gang.job: gang for gang in (*seen.waiting, *(run.gang for run in seen.running))}
    starts, stops = [start.job for start in decided.starts], [stop.job for stop in decided.stops]
    waits = {wait.job: wait.message for wait in decided.waits}
    shown = [*starts[:SHOWN], *list(waits)[:SHOWN], *stops[:SHOWN]]
    names = dict(Job.objects.filter(pk__in=shown).values_list("pk", "name"))

    def affected(job: str) -> Affected:
        gang = gangs[job]
        slots = gang.slots * gang.learners.min
        return Affected(job, names.get(job, ""), gang.tenant, slots, gang.slot_type, waits.get(job, ""))

    return Outcome(
        tuple(affected(job) for job in starts[:SHOWN]),
        tuple(affected(job) for job in list(waits)[:SHOWN]),
        frozenset(starts),
        tuple(affected(job) for job in stops[:SHOWN]),
    )


def with_limits(seen: Snapshot, limits: Limits) -> Snapshot:
    """The snapshot with these limits in place of its own."""
    left = {key: {"limit": value} if isinstance(value, int) else value for key, value in limits.items()}
    of_tenants = {
        tenant: dict(left.pop((tenant, slot_type))) for tenant, slot_type in list(left) if not slot_type
    }
    moved = {tenant: terms.pop("cohort") for tenant, terms in of_tenants.items() if "cohort" in terms}
    cohorts = {quota.tenant: quota.cohort for quota in seen.quotas} | moved
    quotas = [
        replace(quota, cohort=cohorts[quota.tenant], **left.pop((quota.tenant, quota.slot_type), {}))
        for quota in seen.quotas
    ]
    quotas += [
        replace(QuotaUse(tenant, slot_type, 0, 0, cohorts.get(tenant, "")), **changes)
        for (tenant, slot_type), changes in left.items()
    ]
    tenants = tuple(replace(state, **of_tenants.get(state.tenant, {})) for state in seen.tenants)
    return replace(seen, quotas=tuple(quotas), tenants=tenants)


@dataclass(frozen=True, slots=True)
class Preview:
    """What would happen to a job submitted now. nodes: one per learner if it starts; else code and message say why.

    quota: the tenant's quota of the type it would run on; for a job that accepts any GPU and waits, the one with most
    room.
    """

    starts: bool
    slot_type: str | None
    nodes: tuple[str, ...]
    code: str
    message: str
    numbers: Mapping[str, Any]
    estimate: Mapping[str, Any]
    quota: QuotaUse


def preview(tenant: Tenant, spec: Spec, user: str) -> Preview:
    """Plan now and forecast with one more job of this user in the queue. Changes nothing."""
    now = database_now()
    return _with_one_more(gang_of_spec(tenant, spec, now, user), now)


def preview_resume(job: Job) -> Preview:
    """The same for a halted job if it were resumed now: it would be queued last among its equals."""
    now = database_now()
    return _with_one_more(replace(gang_of_job(job.pk), job=NEW, queued_at=now), now)


def _with_one_more(gang: Gang, now: datetime) -> Preview:
    seen = snapshot(nodes=scheduler_nodes(), now=now)
    seen = replace(seen, waiting=(*seen.waiting, gang))
    decided = plan(seen)
    others = tuple(start for start in decided.starts if start.job != NEW)
    after = apply(seen, replace(decided, starts=others))  # the explanation counts their use, too
    for start in decided.starts:
        if start.job == NEW:
            where = ", ".join(sorted(set(start.placement.nodes)))
            message = f"Can start now on {where}."
            estimate = forecast_view(StartForecast(now, now), now)
            kind = start.placement.slot_type
            quota = _quota(after, gang.tenant, kind)
            return Preview(True, kind, start.placement.nodes, "", message, {}, estimate, quota)
    wait = next(wait for wait in decided.waits if wait.job == NEW)
    near = nearest(seen, [start.job for start in decided.starts], decided.waits)
    foreseen = forecast(near, run_times(near), of=[NEW], work=REQUEST_WORK).get(NEW, TOO_FAR)
    if (why := why_unforeseen(wait.code)) is not None:
        foreseen = StartForecast(why_none=why)
    estimate, quota = forecast_view(foreseen, now, wait.numbers), _quota(after, gang.tenant, gang.slot_type)
    return Preview(False, gang.slot_type, (), wait.code.value, wait.message, wait.details, estimate, quota)


def _quota(seen: Snapshot, tenant: str, slot_type: str | None) -> QuotaUse:
    """The tenant's quota of a type; None: of the GPU type with the most room. No quota counts as a limit of 0."""
    own = [quota for quota in seen.quotas if quota.tenant == tenant]
    if slot_type is None:
        kinds = {node.slot_type for node in seen.nodes} - {CPU_TYPE}
        found = [quota for quota in own if quota.slot_type in kinds]
        return max(found, key=lambda quota: quota.limit - quota.used, default=QuotaUse(tenant, "GPU", 0, 0))
    return next((quota for quota in own if quota.slot_type == slot_type), QuotaUse(tenant, slot_type, 0, 0))


def gang_of_spec(tenant: Tenant, spec: Spec, now: datetime, user: str) -> Gang:
    """The gang of a job that does not exist, queued now."""
    return Gang(
        job=NEW,
        tenant=tenant.slug,
        learners=spec.resources.learners,
        resources=Resources(spec.resources.gpus, float(spec.resources.cpus), spec.resources.memory_mib),
        slot_type=spec.slot_type,
        strategy=PlacementStrategy(spec.placement),
        priority=Priority[spec.priority.upper()],
        queued_at=now,
        runs_at_most_s=spec.time_limit_s,
        user=user,
        topology=spec.topology,
        project=spec.project if spec.project is not None else default_project(tenant),
        elastic=None if spec.resources.learners.is_fixed else Profile(spec.resources.batch),
        opportunistic=spec.opportunistic,
    )


def default_project(tenant: Tenant) -> str:
    """Of a job that names none."""
    return DEFAULT_PROJECT if tenant.projects.filter(slug=DEFAULT_PROJECT).exists() else ""


def nearest(seen: Snapshot, starts: Iterable[str], waits: Iterable[Explanation]) -> Snapshot:
    """The snapshot with the first FORECAST_JOBS of its waiting jobs, in the scheduler's order."""
    ahead = [*starts, *(wait.job for wait in waits if wait.code not in NOT_QUEUED)]
    first = set(ahead[:FORECAST_JOBS])
    return replace(seen, waiting=tuple(gang for gang in seen.waiting if gang.job in first))


NEW = "zzzzzzzzzzzz"
"""Sorts after every real id: the job that does not exist is last among its equals."""
TOO_FAR = StartForecast(why_none=WhyNone.TOO_FAR)


FRESH_S = 5.0
"""Seconds for which a plan is reused: it covers the whole queue, and the page says "a moment ago"."""
CACHED = 200

_cache_lock, _planning = threading.Lock(), threading.Lock()
"""Two locks: a fresh plan can be read while another one is made."""
_planned: OrderedDict[tuple[str, int], tuple[float, Preview]] = OrderedDict()
"""By job and number of its newest event: any transition, request or edit invalidates the plan."""


def cached_resume_preview(job: Job) -> Preview:
    """preview_resume, at most once in FRESH_S seconds per job. One plan at a time per process: each is CPU-bound."""
    key = (job.pk, job.event_seq)
    found = _fresh(key)
    if found is None:
        with _planning:
            found = _fresh(key)  # made while waiting for the lock
            if found is None:
                found = preview_resume(job)
                _keep(key, found)
    return found


def _fresh(key: tuple[str, int]) -> Preview | None:
    with _cache_lock:
        made_at, found = _planned.get(key, (0.0, None))
    return None if found is None or time.monotonic() - made_at > FRESH_S else found


def _keep(key: tuple[str, int], found: Preview) -> None:
    with _cache_lock:
        _planned[key] = time.monotonic(), found
        _planned.move_to_end(key)
        while len(_planned) > CACHED:
            _planned.popitem(last=False)
