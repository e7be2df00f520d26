"""The rows as the scheduler's pure function sees them: one frozen Snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.models import F, Q, QuerySet, Window
from django.db.models.functions import Now, RowNumber

from gpu_scheduler.cycle import NOT_IN_LINE
from gpu_scheduler.model import CPU_TYPE, Gang, Node, Placing, Running, Share, Snapshot, TenantState
from jobs.models import Attempt, Job
from jobs.states import Intent, State
from tenants.models import Quota, Tenant


def snapshot(
    *, nodes: Sequence[Node], now: datetime, at_most: int | None = None, with_job: str = ""
) -> Snapshot:
    """Everything that waits and runs, with quotas and use, as of `now` (the database's clock).

    at_most: of the waiting jobs only so many, those first in line, and with_job; for a look that must be quick.
    """
    waiting = _waiting() if at_most is None else _first_in_line(at_most, with_job)
    return Snapshot(
        now=now,
        nodes=tuple(nodes),
        waiting=tuple(gang_of(job) for job in waiting),
        running=tuple(_running()),
        shares=tuple(
            Share(*row)
            for row in Quota.objects.values_list("tenant__slug", "gpu_type", "limit", "used").order_by("pk")
        ),
        tenants=tuple(
            TenantState(
                tenant.slug, tenant.state == Tenant.State.SUSPENDED, tenant.jobs_limit, tenant.jobs_used
            )
            for tenant in Tenant.objects.order_by("pk")
        ),
        head_since={job.pk: job.head_since for job in waiting if job.head_since is not None},
    )


def gang_of(job: Job) -> Gang:
    """A waiting job as the scheduler sees it."""
    left_s = None if job.time_limit_s is None else max(0.0, job.time_limit_s - job.running_s)
    return Gang(
        job=job.pk,
        tenant=job.tenant.slug,
        learners=job.learners,
        slots=job.slots,
        slot_type=(job.gpu_type or None) if job.gpus else CPU_TYPE,
        placing=Placing(job.placement),
        priority=job.priority_rank,
        queued_at=job.queued_at,
        runs_at_most_s=left_s,
    )


def _first_in_line(at_most: int, with_job: str) -> list[Job]:
    """The waiting jobs that the scheduler would come to first: heads, then by class, in it the tenants in turns."""
    turn = Window(
        RowNumber(),
        partition_by=[F("tenant_id"), F("priority_rank")],
        order_by=[F("queued_at"), F("pk")],
    )
    order = (F("head_since").asc(nulls_last=True), "-priority_rank", turn, "queued_at", "pk")
    first = list(in_line().order_by(*order)[:at_most])
    if with_job and all(job.pk != with_job for job in first):
        first += _waiting_rows().filter(pk=with_job)
    return first


def in_line() -> QuerySet[Job]:
    """The waiting jobs without those that waiting does not mend; they are in nobody's way."""
    return _waiting_rows().exclude(reason_code__in=[code.value for code in NOT_IN_LINE])


def _waiting() -> list[Job]:
    return list(_waiting_rows().order_by("queued_at", "pk"))


def _waiting_rows() -> QuerySet[Job]:
    """Jobs that may start now: wished to run, not backing off after a lost node."""
    ready = Q(start_after=None) | Q(start_after__lte=Now())
    rows = Job.objects.filter(ready, state=State.QUEUED, intent=Intent.RUN, deleted_at=None)
    fields = (
        "learners",
        "slots",
        "gpus",
        "gpu_type",
        "placement",
        "priority_rank",
        "queued_at",
        "time_limit_s",
    )
    more = (
        "running_s",
        "head_since",
        "reason_code",
        "reason_message",
        "reason_numbers",
        "tenant__slug",
        "attempt",
    )
    return rows.select_related("tenant").only(*fields, *more)


def _running() -> list[Running]:
    held = Attempt.objects.filter(held=True).annotate(
        limit_s=F("job__time_limit_s"), ran_s=F("job__running_s")
    )
    rows = held.order_by("pk").values_list(
        "job_id",
        "tenant__slug",
        "slots",
        "slot_type",
        "nodes",
        "opened_at",
        "processing_at",
        "limit_s",
        "ran_s",
    )
    found = []
    for job, tenant, slots, slot_type, nodes, opened_at, processing_at, limit_s, ran_s in rows:
        since = processing_at or opened_at
        ends_by = None if limit_s is None else since + timedelta(seconds=max(0.0, limit_s - ran_s))
        found.append(Running(job, tenant, slots, slot_type, tuple(nodes), ends_by))
    return found
