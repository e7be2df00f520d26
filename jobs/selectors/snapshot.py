"""The rows as the scheduler's pure function sees them: one frozen Snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from django.conf import settings
from django.db import connection, models, transaction
from django.db.models import Case, Exists, F, OrderBy, OuterRef, Q, QuerySet, Subquery, When
from django.db.models.functions import Now, RowNumber

from gpu_scheduler import rests
from gpu_scheduler.checks import NOT_QUEUED
from gpu_scheduler.model import (
    Gang,
    Node,
    PlacementStrategy,
    Project,
    ProjectShare,
    QuotaUse,
    Range,
    Resize,
    Running,
    Snapshot,
    Stop,
    TenantState,
    Topology,
    slot_type_of,
)
from gpu_scheduler.policies.base import Policy, PolicyState, Window
from gpu_scheduler.policies.selection import policy_from
from jobs.models import Attempt, Checkpoint, Job, Learner, SchedulerState
from jobs.selectors.budgets import may_run_out, with_use
from jobs.selectors.past_use import with_the_past
from jobs.selectors.requests import elastic_range, per_learner, profile, requested
from jobs.states import TAKES_ORDERS, Intent, State, StopReason
from tenants.models import Project as ProjectRow
from tenants.models import Quota, Tenant


def gang_columns(job: str = "") -> list[Any]:
    """What the scheduler wants to know of a job, in the order of gang_of_row's arguments; job: a prefix that leads to
    it from an attempt, which was itself started as an opportunistic one or not.

    Plain values: ten thousand instances cost more than plan(), and so does JSON that Django decodes.
    """
    names = (
        "pk", "tenant__slug", "learners", "slots", "gpus", "gpu_type", "placement", "priority_rank", "queued_at",
        "time_limit_s", "running_s", "owner__username", "attempt", "intent_gen", "measured", "topology",
        "project",
    )  # fmt: skip
    return [*(f"{job}{name}" for name in names), "opportunistic", requested(job)]


def database_now() -> datetime:
    """The time by the database's clock, also inside a transaction: decisions use no other."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        found: datetime = cursor.fetchone()[0]
        return found


def snapshot(
    *,
    nodes: Sequence[Node],
    now: datetime,
    at_most: int | None = None,
    with_job: str = "",
    broken: dict[str, Exception] | None = None,
    read: Callable[[dict[str, Exception]], tuple[Gang, ...]] | None = None,
) -> Snapshot:
    """Everything that waits and runs, with quotas and use, as of `now` (the database's clock).

    at_most: evaluate only this many waiting jobs, those that the policy puts first, and with_job.
    broken: gets the waiting jobs whose rows cannot be read, with the error; they are left out.
    read: reads all that wait, for one that keeps what it has read before (kept_rows).
    """
    unread = {} if broken is None else broken
    with _one_moment():
        policy = scheduling_policy()
        state = policy_state(policy)
        running = tuple(_running(now))
        if at_most is not None:
            waiting = tuple(_readable(_first(policy.window(state), at_most, with_job), unread))
        elif read is not None:
            waiting = read(unread)
        else:
            rows = waiting_rows().order_by("queued_at", "pk").values_list(*gang_columns())
            waiting = tuple(_readable(rows, unread))
        return Snapshot(
            now=now,
            nodes=tuple(nodes),
            waiting=waiting,
            running=running,
            quotas=with_the_past(quota_uses(), now, policy.half_life_s()),
            policy=policy,
            tenants=with_use(tenant_states(), now),
            policy_state=state,
            promised=_promised(running, now, timedelta(seconds=policy.promise_s)),
            projects=projects(),
            yielded=_yielded((*waiting, *(run.gang for run in running)), now),
        )


@contextmanager
def _one_moment() -> Iterator[None]:
    """Let all reads see the rows as the first of them does. A job that ends between two of them would else hold its
    slots and not its quota, and all jobs of its tenant would wait for another reason until the next plan.

    Within a caller's transaction, that decides what they see.
    """
    if connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield


def tenant_states() -> tuple[TenantState, ...]:
    """All tenants' own limits, and what they use of them, but for GPU-hours (budgets.with_use)."""
    return tuple(
        TenantState(
            tenant.slug,
            tenant.state == Tenant.State.SUSPENDED,
            tenant.jobs_limit,
            tenant.jobs_used,
            tenant.user_jobs_limit,
            tenant.max_time_s,
            tenant.budget_gpu_hours,
            tenant.budget_is_hard,
        )
        for tenant in Tenant.objects.order_by("pk")
    )


QUOTA_COLUMNS = (
    "tenant__slug", "gpu_type", "limit", "used", "tenant__cohort", "borrowing_limit", "lending_limit", "weight",
    "user_limit", "gang_limit",
)  # fmt: skip
"""QuotaUse's fields, in order, but for used_recently."""


def quota_uses(**narrowed: Any) -> tuple[QuotaUse, ...]:
    """All quotas, or those of some tenants."""
    rows = Quota.objects.filter(**narrowed).order_by("pk").values_list(*QUOTA_COLUMNS)
    return tuple(QuotaUse(*row) for row in rows)


def projects(**narrowed: Any) -> tuple[Project, ...]:
    """All projects, or those of some tenants, with what they have of each slot type."""
    rows = (
        ProjectRow.objects.filter(**narrowed)
        .order_by("pk")
        .values_list(
            "tenant__slug", "slug", "weight", "shares__gpu_type", "shares__guarantee", "shares__limit"
        )
    )
    found: dict[tuple[str, str, int], list[ProjectShare]] = {}
    for tenant, name, weight, slot_type, guarantee, limit in rows:
        shares = found.setdefault((tenant, name, weight), [])
        if slot_type is not None:
            shares.append(ProjectShare(slot_type, guarantee, limit))
    return tuple(Project(*key, tuple(shares)) for key, shares in found.items())


def _readable(rows: Iterable[Sequence[Any]], broken: dict[str, Exception]) -> Iterator[Gang]:
    """The gangs of these rows; one bad row costs its own job its turn, not everybody's."""
    for row in rows:
        try:
            yield gang_of_row(*row)
        except (ArithmeticError, TypeError, ValueError) as error:
            broken[row[0]] = error


def needs_plan() -> bool:
    """A job waits, or something can change without one: by the policy, or as a budget is used up. One query if a job
    waits, else up to three."""
    if waiting_rows().exists():
        return True
    policy = scheduling_policy()
    return policy.plans_without_queue(policy_state(policy)) or may_run_out()


def scheduling_policy() -> Policy:
    """The installation's policy."""
    return _policy(settings.LUTHIER_SCHEDULER_POLICY)


_policy = cache(policy_from)


def policy_state(policy: Policy) -> PolicyState:
    """What the policy asked to have carried over from the last plan."""
    stored = SchedulerState.objects.filter(policy=settings.LUTHIER_SCHEDULER_POLICY)
    return policy.load(stored.values_list("state", flat=True).first() or {})


def _promised(running: Iterable[Running], now: datetime, promise: timedelta) -> dict[str, datetime | None]:
    """Jobs for which others were stopped or resized by order, or that were resized themselves, and until when these
    slots are offered to them first: counted from when the last of the others has left, None before that."""
    leaving = {run.order.for_job for run in running if run.order is not None and run.order.for_job}
    freed = Attempt.objects.exclude(freed_for="").filter(
        Q(closed_at__gt=now - promise) | Q(freed_for__in=leaving)
    )
    promised: dict[str, datetime | None] = {}
    latest = freed.order_by("closed_at").values_list("job", "freed_for", "outcome", "closed_at")
    for job, freed_for, outcome, closed_at in latest:
        if closed_at is None:
            continue
        if outcome != StopReason.RESCALED:
            promised.pop(job, None)  # it started since, and must not come back before the one it left for
        # A job whose owner halted it while it was being resized is promised nothing.
        for each in {freed_for, job} if outcome == StopReason.RESCALED else {freed_for} - {job}:
            promised[each] = None if each in leaving else closed_at + promise
    return promised


def _yielded(live: Iterable[Gang], now: datetime) -> dict[str, tuple[datetime, ...]]:
    """When the opportunistic ones of these jobs were stopped to leave their slots to others, as far as it counts. A
    forecast has those leave again that run now, so it needs their times, too."""
    opportunistic = {gang.job for gang in live if gang.opportunistic}
    if not opportunistic:
        return {}
    left = Attempt.objects.exclude(freed_for="").filter(
        opportunistic=True, outcome=StopReason.PREEMPTED, closed_at__gt=now - rests.COUNTS_FOR
    )
    found: dict[str, tuple[datetime, ...]] = {}
    for job, began, closed_at in left.order_by("closed_at").values_list("job", "processing_at", "closed_at"):
        if job in opportunistic and closed_at is not None and rests.counts(began, closed_at):
            found[job] = (*found.get(job, ()), closed_at)
    return found


def gang_of_job(job_id: str) -> Gang:
    """The gang of any job, waiting or not."""
    return gang_of_row(*Job.objects.values_list(*gang_columns()).get(pk=job_id))


def gangs_of(jobs: Sequence[str]) -> dict[str, Gang]:
    """The gangs of these jobs, waiting or not, each with its whole time limit."""
    rows = Job.objects.filter(pk__in=jobs).values_list(*gang_columns(), "time_limit_s")
    return {row[0]: replace(gang_of_row(*row[:-1]), runs_at_most_s=row[-1]) for row in rows}


def gang_of_row(
    job: str,
    tenant: str,
    learners: int,
    slots: int,
    gpus: int,
    gpu_type: str,
    strategy: str,
    rank: int,
    queued_at: datetime,
    limit_s: int | None,
    ran_s: float,
    user: str,
    attempt: int,
    generation: int,
    measured: str | None,
    topology: str,
    project: str,
    opportunistic: bool,
    resources: str | None,
) -> Gang:
    """learners: how many it has, had, or is to have. A job that never ran starts with as many as the policy says."""
    slot_type = slot_type_of(gpus, gpu_type)
    size = elastic_range(resources)
    return Gang(
        job,
        tenant,
        size or Range.fixed(learners),
        per_learner(slot_type, slots, resources),
        slot_type,
        PlacementStrategy(strategy),
        rank,
        queued_at,
        None if limit_s is None else max(0.0, limit_s - ran_s),
        user,
        Topology.read(topology) if topology else None,
        None if size is None else profile(resources, measured),
        learners if size is not None and attempt else None,
        project,
        generation,
        opportunistic,
    )


COLUMNS = {
    "job": "pk",
    "tenant": "tenant_id",
    "user": "owner_id",
    "project": "project",
    "priority": "priority_rank",
    "queued_at": "queued_at",
}
"""Gang's fields, by which a policy's window can sort."""


def _first(window: Window, at_most: int, with_job: str) -> list[Sequence[Any]]:
    """The first rows of a policy's window, and with_job. Opportunistic jobs are planned last, so they come last."""
    turn = models.Window(
        RowNumber(),
        partition_by=[F("opportunistic"), *(F(COLUMNS[name]) for name in window.queue)],
        order_by=[_column(name) for name in window.order],
    )
    order = [F("opportunistic").asc(), *map(_column, window.levels), turn, *map(_column, window.order)]
    if window.first:
        order.insert(0, Case(When(pk__in=window.first, then=0), default=1).asc())
    first: list[Sequence[Any]] = list(queued_rows().order_by(*order).values_list(*gang_columns())[:at_most])
    if with_job and all(row[0] != with_job for row in first):
        first += waiting_rows().filter(pk=with_job).values_list(*gang_columns())
    return first


def _column(name: str) -> OrderBy:
    column = F(COLUMNS[name.removeprefix("-")])
    return column.desc() if name.startswith("-") else column.asc()


def queued_rows() -> QuerySet[Job]:
    """The waiting jobs that keep a queue position; the others are ahead of no job."""
    return waiting_rows().exclude(reason_code__in=[code.value for code in NOT_QUEUED])


def waiting_rows() -> QuerySet[Job]:
    """Jobs that can start now: requested to run, not backing off after early ends."""
    ready = Q(start_after=None) | Q(start_after__lte=Now())
    return Job.objects.filter(ready, state=State.QUEUED, intent=Intent.RUN, deleted_at=None)


def _running(now: datetime) -> list[Running]:
    saved = Checkpoint.objects.filter(job=OuterRef("job"), state=Checkpoint.State.COMMITTED)
    held = Attempt.objects.filter(held=True).order_by("pk")
    rows = held.values_list(
        "slot_type",
        "nodes",
        "opened_at",
        "processing_at",
        Subquery(saved.order_by("-committed_at").values("committed_at")[:1]),
        "job__last_halt__parts__saved",
        Exists(Learner.objects.filter(job=OuterRef("job"), attempt=OuterRef("n"), checks_halt=True)),
        "job__state",
        "job__stop_at",
        "job__intent",
        "job__intent_gen",
        *(f"job__order_{name}" for name in ("reason", "for_job", "learners", "gen", "plan__leaves")),
        *gang_columns("job__"),
    )
    return [_run(now, *row) for row in rows]


def _run(
    now: datetime,
    slot_type: str,
    nodes: Sequence[str],
    opened_at: datetime,
    processing_at: datetime | None,
    saved_at: datetime | None,
    save_s: float | None,
    checks_halt: bool,
    state: str,
    stop_at: datetime | None,
    intent: str,
    generation: int,
    order_reason: str,
    for_job: str,
    order_learners: int | None,
    order_gen: int,
    leaves: Sequence[str] | None,
    *of_gang: Any,
) -> Running:
    try:
        gang = gang_of_row(*of_gang)
    except (ArithmeticError, TypeError, ValueError):
        gang = gang_of_row(
            *[*of_gang[:-5], None, "", *of_gang[-3:-1], None]
        )  # its slots are held, whatever its spec says
    order: Stop | Resize | None = None
    if order_reason and order_learners is None:
        order = Stop(gang.job, order_reason, for_job or None, order_gen)
    elif order_learners is not None and intent == Intent.RUN and order_gen == generation:
        # Any request of the owner voids a resize.
        order = Resize(gang.job, order_learners, order_gen, for_job or None, tuple(leaves or ()))
    since, limit_s = processing_at or opened_at, gang.runs_at_most_s
    return Running(
        gang,
        slot_type,
        tuple(nodes),
        started_at=opened_at,
        ends_by=None if limit_s is None else since + timedelta(seconds=limit_s),
        last_checkpoint_at=saved_at,
        checkpoint_cost_s=save_s,  # measured at the last halt
        saves_when_asked=checks_halt,
        restart_cost_s=None
        if processing_at is None
        else max(0.0, (processing_at - opened_at).total_seconds()),
        stopping=state not in TAKES_ORDERS or intent != Intent.RUN,
        requeues=intent == Intent.RUN,
        order=order,
        generation=generation,
        stopping_since=stop_at if state == State.STOPPING else None,
        computes_after=now if gang.opportunistic and processing_at is None else None,  # no other's matters
    )
