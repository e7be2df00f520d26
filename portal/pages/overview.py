"""A tenant's front page: is anything mine wrong, what runs, and how much can we still use?"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db.models import Case, IntegerField, Value, When
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from examples import catalog
from jobs.models import Job
from jobs.selectors import cluster, heads
from jobs.selectors.budgets import budget_of
from jobs.selectors.jobs import detailed_lists, job_list
from jobs.selectors.metrics import glances
from jobs.selectors.serializers import JobSerializer
from jobs.selectors.usage import CPU_TYPE, QuotaStatus, held_by, live_jobs, quotas_of, waits_of
from jobs.spec import to_yaml
from jobs.states import ACTIVE, FINAL, State
from portal.pages import attention, passes
from portal.pages.cells import primary_metric, row
from portal.pages.charts import sparkline
from portal.pages.dismissals import undo_of
from portal.pages.guard import in_tenant, person
from portal.pages.shell import frame
from tenants import access
from tenants.models import Tenant, User
from tenants.roles import Permission

SHOWN = 8
CELLS = 48
"""A quota is drawn as at most this many cells, which fit a phone; in a larger one each cell is several slots."""
WAITS_WITHIN = timedelta(hours=24)


@require_GET
@in_tenant
def overview(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Attention first, then what runs, the quota, and what finished recently."""
    user, now = person(request), timezone.now()
    news = heads.first_row(heads.of_jobs(tenant.slug) + 1)  # before what the page shows is read
    mine = job_list(user=user, tenant=tenant.slug)
    active = mine.filter(state__in=ACTIVE)
    ended = mine.filter(state__in=FINAL, finished_at__isnull=False)
    queued = mine.filter(state=State.QUEUED).order_by("queued_at", "pk")
    own_first = Case(When(owner=user, then=Value(0)), default=Value(1), output_field=IntegerField())
    shown = [
        list(rows.only("pk")[:SHOWN])
        for rows in (active.order_by(own_first, "-id"), queued, ended.order_by("-finished_at"))
    ]
    watched = attention.candidates(mine, user, now)
    now_active, waiting, done, *details = detailed_lists([*shown, *watched.lists])
    found = attention.judged(watched, details, now, budget_of(tenant))
    noticed = {one.job.pk for one in found.shown if one.kind == attention.BLOCKED}
    held = held_by(user, tenant)
    first_run = not mine.exists()
    quotas = quotas_of(tenant)
    on_gpus = any(use.limit for use in quotas if use.gpu_type != CPU_TYPE) or any(job.gpus for job in done)
    context = frame(request, tenant, "overview") | {
        "news": news,
        "outdated": passes.outdated(),
        "attention": found,
        "undo": undo_of(request, tenant),
        "active": _active(now_active, user),
        "active_count": live_jobs(tenant),
        "ended": [_ended(job, on_gpus) for job in done],
        "on_gpus": on_gpus,
        "quotas": [quota_row(use, held.get(use.gpu_type, 0)) for use in quotas],
        "queued": [row(JobSerializer.render(job)) | {"noticed": job.pk in noticed} for job in waiting],
        "waits": waits_of(tenant, since=now - WAITS_WITHIN),
        "pools": cluster.pools(cluster.nodes(user)),
        "first_run": first_run,
        "example": to_yaml(catalog.load(catalog.FIRST_JOB)) if first_run else "",
    }
    return render(request, "overview.html", context)


def quota_row(use: QuotaStatus, mine: int) -> dict[str, Any]:
    """A meter of one cell per device: mine, others', free, waiting beyond the limit's tick.

    At most CELLS are drawn, and of waiting ones no more than would fill the limit twice; the number is next to it.
    """
    shown = min(use.waiting, max(use.limit, use.used, 1))
    per_cell = max(1, -(-(max(use.limit, use.used) + shown) // CELLS))
    mine = min(mine, use.used)
    free = max(0, use.limit - use.used)
    cells = [("mine", mine), ("others", use.used - mine), ("", free), ("tick", 0), ("waiting-mark", shown)]
    return {
        "type": use.gpu_type,
        "used": use.used,
        "mine": mine,
        "free": free,
        "limit": use.limit,
        "waiting": use.waiting,
        "borrowed": use.borrowed,
        "lent": use.lent,
        "opportunistic": use.opportunistic,
        "cells": [
            kind for kind, count in cells for _ in range(1 if kind == "tick" else -(-count // per_cell))
        ],
    }


def _active(jobs: Iterable[Job], user: User) -> list[dict[str, Any]]:
    """Rows with the primary metric's line, the time that is left, and whether this person may resume the job."""
    views = [(job, row(JobSerializer.render(job))) for job in jobs]
    wanted = [
        (view["id"], name, view["metrics"][name].get("rank", 0), view["metrics"][name]["step"])
        for _, view in views
        if (name := primary_metric(view))
    ]
    lines = glances(wanted)
    return [
        view
        | {
            "metric_name": primary_metric(view),
            "spark": sparkline(lines.get(view["id"], [])),
            "left": view["throughput"]["seconds_left"],
            "may_resume": "resume" in view["allowed_actions"]
            and job.tenant.state == Tenant.State.ACTIVE
            and (job.owner_id == user.pk or access.may(user, Permission.OPERATE_ANY, job.tenant_id)),
        }
        for job, view in views
    ]


def _ended(job: Job, on_gpus: bool) -> dict[str, Any]:
    """hours: GPU-hours, or the CPU-hours of a tenant that has no GPUs; the two are never in one column."""
    view = row(JobSerializer.render(job))
    ran = job.running_s if job.started_at else None  # over all attempts, without the time it lay halted
    hours = view["slot_seconds"] / 3600 if bool(job.gpus) == on_gpus else None
    return view | {"metric_name": primary_metric(view), "ran": ran, "hours": hours}
