"""How long jobs run on, by the best source: their own progress, their time limit, their tenant's past jobs."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db import connection
from django.db.models import Q

from gpu_scheduler.forecast import Basis, RunTime
from gpu_scheduler.model import Snapshot
from jobs.models import Attempt, Job
from jobs.selectors.pace import Run, pace
from jobs.states import Intent, State

PAST_JOBS = 100
"""Completed jobs of a tenant that are looked at, the newest."""
FEWEST = 3
"""With fewer past jobs there is no saying."""


def run_times(seen: Snapshot) -> dict[str, RunTime]:
    """What is known of every job in the snapshot; a job without an entry has no known end. Three queries."""
    limits = {gang.job: gang.runs_at_most_s for gang in seen.waiting}
    for run in seen.running:
        limits[run.job] = None if run.ends_by is None else max(0.0, (run.ends_by - seen.now).total_seconds())
    rows = Job.objects.filter(pk__in=list(limits)).values_list(
        "pk", "tenant_id", "framework", "state", "intent", "grace_s", "running_s",
        "progress__step", "progress__total", "progress__reported_at",
    )  # fmt: skip
    facts = [_Facts(*row) for row in rows]
    live: dict[str, tuple[datetime | None, int]] = {}
    origins: dict[str, int] = {}
    cloned = Q(n=1, resume_from__isnull=False, job__in=list(limits))
    for job, n, held, processing_at, step in Attempt.objects.filter(Q(held=True) | cloned).values_list(
        "job_id", "n", "held", "processing_at", "resume_from__step"
    ):
        if held:
            live[job] = (processing_at, step or 0)
        if n == 1:
            origins[job] = step or 0
    past = _Past(fact.tenant_id for fact in facts)
    known = {
        fact.job: _known(fact, limits[fact.job], live, origins.get(fact.job, 0), past, seen.now)
        for fact in facts
    }
    return {job: run for job, run in known.items() if run is not None}


@dataclass(frozen=True, slots=True)
class _Facts:
    job: str
    tenant_id: int
    framework: str
    state: str
    intent: str
    grace_s: int
    ran_s: float
    step: int | None
    total: int | None
    reported_at: datetime | None


def _known(
    fact: _Facts,
    limit_s: float | None,
    live: dict[str, tuple[datetime | None, int]],
    origin: int,
    past: _Past,
    now: datetime,
) -> RunTime | None:
    since, began_step = live.get(fact.job, (None, 0))
    if fact.job in live and (fact.state == State.STOPPING or fact.intent != Intent.RUN):
        return RunTime((float(fact.grace_s),), Basis.TIME_LIMIT)
    if found := pace(
        Run(fact.step, fact.total, fact.reported_at, fact.ran_s, origin, since, began_step), now
    ):
        left_s = found.left_s if limit_s is None else min(found.left_s, limit_s)
        return RunTime((left_s,), Basis.PROGRESS)
    if limit_s is not None:
        return RunTime((limit_s,), Basis.TIME_LIMIT)
    ran_s = fact.ran_s + ((now - since).total_seconds() if since else 0.0)
    left = past.left(fact.tenant_id, fact.framework, ran_s)
    return RunTime(left, Basis.HISTORY) if left else None


class _Past:
    """Run times of completed jobs, per tenant and framework: a tenant's own jobs say most of what it runs next."""

    def __init__(self, tenants: Iterable[int]) -> None:
        self._by: defaultdict[tuple[int, str], list[float]] = defaultdict(list)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT t.id, p.framework, p.running_s FROM unnest(%s::bigint[]) AS t(id), LATERAL ("
                " SELECT framework, running_s FROM jobs_job WHERE tenant_id = t.id AND state = 'COMPLETED'"
                "  AND deleted_at IS NULL ORDER BY id DESC LIMIT %s) AS p WHERE p.running_s > 0",
                [sorted(set(tenants)), PAST_JOBS],
            )
            for tenant_id, framework, seconds in cursor.fetchall():
                self._by[tenant_id, framework].append(seconds)
                self._by[tenant_id, ""].append(seconds)
        for group in self._by.values():
            group.sort()

    def left(self, tenant_id: int, framework: str, ran_s: float) -> tuple[float, ...]:
        """What was left of past jobs that ran longer than this one has, of the same framework if there are enough."""
        for key in ((tenant_id, framework), (tenant_id, "")):
            group = self._by.get(key, [])
            longer = group[bisect_right(group, ran_s) :]
            if len(group) >= FEWEST and longer:
                return tuple(seconds - ran_s for seconds in longer)
        return ()
