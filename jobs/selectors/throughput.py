"""How fast jobs make their steps and how long they will still run: one source for forecasts, pages and REST."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from statistics import median_low

from django.db import connection
from django.db.models import Q
from django.db.models.fields.json import KeyTextTransform

from gpu_scheduler.forecast import Basis, RunTime
from gpu_scheduler.model import Snapshot
from jobs.models import Attempt, Job
from jobs.selectors.attempts import counted_after, steps_fell
from jobs.states import BY_ORDER, Intent, State


@dataclass(frozen=True, slots=True)
class Throughput:
    """Remaining seconds, and steps per second."""

    left_s: float
    steps_per_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """What a job has done so far.

    ran_s: running seconds of its closed attempts. first_step: where its first attempt began; not 0 for a clone from a
    checkpoint. since, began_step: start and first step of the attempt that runs now, if any. A step is None if unknown.
    """

    step: int | None
    total: int | None
    reported_at: datetime | None
    ran_s: float
    first_step: int | None
    since: datetime | None
    began_step: int | None


def throughput(run: Run, now: datetime) -> Throughput | None:
    """Over all attempts: right after a resume the newest one has made few steps, and started slowly.

    None without a step, a total or any running time, or if it is unknown where the job or its attempt began: also where
    its steps fell back, as those of a program that counts within each epoch do.
    """
    if run.step is None or not run.total or run.first_step is None or run.began_step is None:
        return None
    at, reported_at = run.step, None
    if run.since is not None:
        # Reports from before this attempt do not count: it continues at its first step.
        has_reported = (
            run.reported_at is not None and run.reported_at > run.since and run.step > run.began_step
        )
        at, reported_at = (run.step, run.reported_at) if has_reported else (run.began_step, run.since)
    before = (run.began_step if run.since is not None else at) - run.first_step
    steps, seconds = (before, run.ran_s) if before > 0 < run.ran_s else (0, 0.0)
    if run.since is not None and reported_at is not None:
        steps, seconds = steps + at - run.began_step, seconds + (reported_at - run.since).total_seconds()
    if steps <= 0 or seconds <= 0:
        return None
    silent_s = max(0.0, (now - reported_at).total_seconds()) if reported_at else 0.0
    return Throughput(max(0.0, (run.total - at) * seconds / steps - silent_s), steps / seconds)


PAST_JOBS = 100
"""The newest completed jobs of a tenant that count as its history."""
FEWEST, FEWEST_SAME = 3, 2
"""Fewer past jobs that ran for as long give no estimate; of the very same program fewer are enough."""


def run_times(seen: Snapshot) -> dict[str, RunTime]:
    """The run time of every job in the snapshot, by the best source: its own progress, past runs of the same program,
    past jobs like it.

    A time limit says how long a job may run, not how long it does: it only cuts what the other sources say. A job
    without an entry has no known end. Three queries.
    """
    limits = {gang.job: gang.runs_at_most_s for gang in seen.waiting}
    for run in seen.running:
        limits[run.job] = None if run.ends_by is None else max(0.0, (run.ends_by - seen.now).total_seconds())
    rows = Job.objects.filter(pk__in=list(limits)).values_list(
        "pk", "tenant_id", "framework", "state", "stop_reason", "intent", "grace_s", "running_s",
        "progress__step", "progress__total", "progress__reported_at", "code_id",
        KeyTextTransform("command", "spec"),
    )  # fmt: skip
    facts = [_Facts(*row) for row in rows]
    live: dict[str, tuple[datetime | None, int | None]] = {}
    origins: dict[str, int | None] = {}
    no_origin = Q(n=1, job__in=list(limits)) & (Q(resume_from__isnull=False) | steps_fell())
    begun = Attempt.objects.filter(Q(held=True) | no_origin).annotate(began=counted_after())
    for job, n, held, processing_at, step in begun.values_list(
        "job_id", "n", "held", "processing_at", "began"
    ):
        if held:
            live[job] = (processing_at, step)
        if n == 1:
            origins[job] = step
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
    stop_reason: str
    intent: str
    grace_s: int
    ran_s: float
    step: int | None
    total: int | None
    reported_at: datetime | None
    code: int | None
    command: str | None


def _known(
    fact: _Facts,
    limit_s: float | None,
    live: dict[str, tuple[datetime | None, int | None]],
    origin: int | None,
    past: _Past,
    now: datetime,
) -> RunTime | None:
    since, began_step = live.get(fact.job, (None, 0))
    leaves = (
        fact.state == State.STOPPING and fact.stop_reason not in BY_ORDER
    )  # after an order it runs on later
    if fact.job in live and (leaves or fact.intent != Intent.RUN):
        return RunTime((float(fact.grace_s),))
    if found := throughput(
        Run(fact.step, fact.total, fact.reported_at, fact.ran_s, origin, since, began_step), now
    ):
        return RunTime(_within(limit_s, (found.left_s,)), Basis.PROGRESS)
    ran_s = fact.ran_s + ((now - since).total_seconds() if since else 0.0)
    left = past.left(fact, ran_s)
    return RunTime(_within(limit_s, left), Basis.HISTORY) if left else None


def _within(limit_s: float | None, seconds: tuple[float, ...]) -> tuple[float, ...]:
    return seconds if limit_s is None else tuple(min(limit_s, each) for each in seconds)


PAST = """SELECT t.id, p.framework, p.code_id, p.spec->>'command', p.running_s
FROM unnest(%s::bigint[]) AS t(id), LATERAL (
  SELECT framework, code_id, spec, running_s FROM jobs_job WHERE tenant_id = t.id AND state = 'COMPLETED'
  AND deleted_at IS NULL ORDER BY id DESC LIMIT %s) AS p WHERE p.running_s > 0
"""


class _Past:
    """Run times of completed jobs of the same tenant: of the same program (code and command), else of the same command
    and framework, as a template or an edited program has it, else of the same framework, else of any."""

    def __init__(self, tenants: Iterable[int]) -> None:
        self._by: defaultdict[tuple[object, ...], list[float]] = defaultdict(list)
        with connection.cursor() as cursor:
            cursor.execute(PAST, [sorted(set(tenants)), PAST_JOBS])
            for tenant, framework, code, command, seconds in cursor.fetchall():
                for key, _ in _likeness(tenant, framework, code, command):
                    self._by[key].append(seconds)
        for group in self._by.values():
            group.sort()

    def left(self, fact: _Facts, ran_s: float) -> tuple[float, ...]:
        """Remaining seconds of the past jobs most like this one that ran longer than ran_s."""
        for key, fewest in _likeness(fact.tenant_id, fact.framework, fact.code, fact.command):
            group = self._by.get(key, [])
            longer = group[bisect_right(group, ran_s) :]
            if (
                len(longer) >= fewest
            ):  # one that outlasted all the others says nothing of how long this one will
                return tuple(seconds - ran_s for seconds in longer)
        return ()


def _likeness(
    tenant: int, framework: str, code: int | None, command: str | None
) -> tuple[tuple[tuple[object, ...], int], ...]:
    """The groups of past jobs that a job belongs to, the most alike first, and how many make an estimate."""
    return (
        ((tenant, framework, command, code), FEWEST_SAME),
        ((tenant, framework, command), FEWEST),
        ((tenant, framework), FEWEST),
        ((tenant,), FEWEST),
    )


NEWEST = 50
"""The newest reports of one metric per learner that count: step times are about now, not about the whole run."""
SLOW = 1.3
"""A learner is flagged if its step time exceeds this multiple of the gang's median."""

STEP_TIMES = """
SELECT l.rank, extract(epoch FROM max(p.at) - min(p.at)) / (max(p.step) - min(p.step))
FROM jobs_learner l
CROSS JOIN LATERAL (
    SELECT coalesce(
        (SELECT m.name FROM jobs_metricpoint m
         WHERE m.job_id = l.job_id AND m.attempt = l.attempt AND m.rank = l.rank AND m.name = %(name)s LIMIT 1),
        (SELECT m.name FROM jobs_metricpoint m
         WHERE m.job_id = l.job_id AND m.attempt = l.attempt AND m.rank = l.rank ORDER BY m.name LIMIT 1)
    ) AS name
) first
CROSS JOIN LATERAL (
    SELECT m.step, m.at FROM jobs_metricpoint m
    WHERE m.job_id = l.job_id AND m.attempt = l.attempt AND m.rank = l.rank AND m.name = first.name
    ORDER BY m.step DESC LIMIT %(newest)s
) p
WHERE l.job_id = %(job)s AND l.attempt = %(attempt)s
GROUP BY l.rank
HAVING max(p.step) > min(p.step) AND max(p.at) > min(p.at)
"""


def step_times(job: str, attempt: int, name: str) -> dict[int, float]:
    """Seconds per step by rank, for learners that reported at least two steps.

    name: the metric to use where a learner has it, else its first one. Times of different learners are never compared,
    because each has its own clock. One query.
    """
    with connection.cursor() as cursor:
        cursor.execute(STEP_TIMES, {"job": job, "attempt": attempt, "name": name, "newest": NEWEST})
        return {rank: float(seconds) for rank, seconds in cursor.fetchall()}


def times_median(seconds: dict[int, float]) -> dict[int, float]:
    """Step time as a multiple of the gang's median, for learners slow enough to be flagged."""
    if len(seconds) < 2:
        return {}
    usual = median_low(seconds.values())
    return {rank: own / usual for rank, own in seconds.items() if own > usual * SLOW}
