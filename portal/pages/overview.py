"""A tenant's front page: is anything mine wrong, what runs, and how much can we still use?"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from jobs.models import Job
from jobs.selectors import cluster
from jobs.selectors.jobs import job_list
from jobs.selectors.usage import QuotaUse, quotas_of
from jobs.selectors.views import job_view
from jobs.states import FINAL, HOLDS_GPUS, State
from portal.pages.cells import row
from portal.pages.guard import in_tenant
from portal.pages.shell import frame
from tenants.models import Tenant

SHOWN = 8
FAILED_WITHIN = timedelta(hours=24)
HALTED_FOR = timedelta(hours=24)
FIX_NEEDED = ("SPEC_INVALID", "DATA_UNREACHABLE", "NO_MATCHING_POOL", "EXCEEDS_MAX_QUOTA", "TENANT_SUSPENDED")


@require_GET
@in_tenant
def overview(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Attention first, then what runs, the quota, and what ended lately."""
    mine = job_list(user=request.user, tenant=tenant.slug)
    active = [*HOLDS_GPUS, State.QUEUED]
    context = frame(request, tenant, "overview") | {
        "attention": [row(job_view(job)) for job in _attention(mine)],
        "active": [row(job_view(job)) for job in mine.filter(state__in=active)[:SHOWN]],
        "ended": [
            row(job_view(job)) for job in mine.filter(state__in=FINAL).order_by("-finished_at")[:SHOWN]
        ],
        "quotas": [quota_row(use) for use in quotas_of(tenant)],
        "queued": [
            row(job_view(job)) for job in mine.filter(state=State.QUEUED).order_by("queued_at", "pk")[:SHOWN]
        ],
        "pools": cluster.pools(cluster.nodes(request.user)),
        "first_run": not mine.exists(),
    }
    return render(request, "overview.html", context)


def quota_row(use: QuotaUse) -> dict[str, Any]:
    """A meter of one cell per device (at most 64 cells drawn): used, free, waiting beyond the limit's tick."""
    per_cell = max(1, -(-(max(use.limit, use.used) + use.waiting) // 64))
    cells = [("u", use.used), ("", max(0, use.limit - use.used)), ("tick", 0), ("w", use.waiting)]
    return {
        "type": use.gpu_type,
        "used": use.used,
        "limit": use.limit,
        "waiting": use.waiting,
        "cells": [
            kind for kind, count in cells for _ in range(1 if kind == "tick" else -(-count // per_cell))
        ],
        "per_cell": per_cell,
    }


def _attention(mine: Any) -> list[Job]:
    """Failed lately, waiting for somebody to mend something, halted for long."""
    now = timezone.now()
    failed = mine.filter(state=State.FAILED, finished_at__gt=now - FAILED_WITHIN)
    stuck = mine.filter(state=State.QUEUED, reason_code__in=FIX_NEEDED)
    forgotten = mine.filter(state=State.HALTED, stop_at__lt=now - HALTED_FOR)
    return [*stuck[:SHOWN], *failed[:SHOWN], *forgotten[:SHOWN]][:SHOWN]
