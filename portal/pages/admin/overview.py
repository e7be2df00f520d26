"""The installation now: the cluster, who waits and for whom to act, limits that are full, and who works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import Count, Min
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from jobs.selectors import cluster, installation, queue, usage
from jobs.selectors.budgets import Budget, budgets_of
from jobs.selectors.wait_reasons import Remedy, check_of, is_start_failed, label_of
from portal.pages.admin.matrix import Matrix, matrix
from portal.pages.admin.shell import frame
from portal.pages.admin.terms import described
from portal.pages.cluster import pool_view
from portal.pages.guard import admins_only, person
from portal.pages.meters import FULL
from tenants.models import QuotaChange, Tenant

WAITING_SHOWN = 8
CHANGES_SHOWN = 5


@require_GET
@admins_only
def page(request: HttpRequest) -> HttpResponse:
    user = person(request)
    nodes = cluster.nodes(user)
    changes, drawn = _changes(), matrix(user)
    context = frame(request, "overview") | {
        "pools": [pool_view(pool) for pool in cluster.pools(nodes)],
        "down": [node for node in nodes if not node.ready],
        "queue": queue.queue_totals(),
        "working": installation.working(),
        "waiting": [_waiting(job) for job in queue.waiting_jobs()[:WAITING_SHOWN]],
        "full": _full(drawn),
        "budgets": [each for each in _budgets(drawn) if each[1].warns],
        "full_share": FULL,
        "changes": changes,
        "terms": {change.pk: described(change.terms) for change, _ in changes},
        "now": timezone.now(),
    }
    return render(request, "console/overview.html", context)


def _waiting(job: Any) -> dict[str, Any]:
    now = timezone.now()
    backs_off = job.start_after is not None and job.start_after > now and not is_start_failed(job.reason_code)
    return {
        "job": job,
        "kind": usage.CPU_TYPE if not job.gpus else job.gpu_type or "any",
        "why": "backing off" if backs_off else label_of(job.reason_code),
        "acts": "" if backs_off else _who_acts(job.reason_code, job.reason_numbers),
        "by_quota": _is_about_quota(job.reason_code),
        "waits_s": job.waits_s,
    }


def _who_acts(code: str, numbers: Mapping[str, Any]) -> str:
    """Who has to act, as the job's own page says it: "owner", "admin", or "" if the wait ends by itself."""
    check = check_of(code)
    if check is None:
        return ""
    remedy = check.remedy_for(numbers)
    if remedy is Remedy.FIX:
        return "owner"
    return "admin" if remedy is Remedy.ASK else ""


def _is_about_quota(code: str) -> bool:
    """A larger quota can end the wait; otherwise it is up to the tenant's own settings."""
    check = check_of(code)
    return check is not None and "limit" in check.private


def _changes() -> list[tuple[QuotaChange, int]]:
    """The newest sets: the first limit of each, and how many more it set."""
    newest = QuotaChange.objects.order_by().values("change_set").annotate(first=Min("pk"), count=Count("pk"))
    sets = {row["first"]: row["count"] - 1 for row in newest.order_by("-first")[:CHANGES_SHOWN]}
    rows = QuotaChange.objects.select_related("tenant", "actor").in_bulk(list(sets))
    return [(rows[pk], more) for pk, more in sets.items()]


def _budgets(drawn: Matrix) -> list[tuple[Tenant, Budget]]:
    """The budgets that there are, those of which the most is used first."""
    tenants = {row.tenant.slug: row.tenant for row in drawn.rows}
    found = sorted(
        budgets_of(tenants.values()).items(),
        key=lambda each: -each[1].used_gpu_hours / (each[1].gpu_hours or 1e-9),
    )
    return [(tenants[slug], budget) for slug, budget in found]


def _full(drawn: Matrix) -> list[Any]:
    cells = [cell for row in drawn.rows for cell in row.cells if cell.limit or cell.used]
    return sorted((c for c in cells if c.used >= FULL * c.limit), key=lambda c: -c.waiting)[:WAITING_SHOWN]
