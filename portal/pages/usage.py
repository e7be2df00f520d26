"""Quota and use of a tenant: what it holds now, who holds it, and what a month has cost."""

from __future__ import annotations

import calendar
import csv
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.db.models import F, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from jobs.models import Attempt, Job
from jobs.selectors import usage
from jobs.selectors.jobs import job_list
from jobs.selectors.views import job_view
from portal.pages import charts, meters
from portal.pages.cells import row as job_row
from portal.pages.guard import in_tenant
from portal.pages.shell import frame
from tenants.models import Tenant, User

JOBS_SHOWN = 8
CHANGES_SHOWN = 5
FULL = 0.9  # from this share of a limit on, its card says so


@dataclass(frozen=True, slots=True)
class Month:
    """A month as the address names it; end is now while it is the present one."""

    first: date
    now: datetime

    @classmethod
    def read(cls, text: str, now: datetime) -> Month:
        """The month of "2026-11"; the present one for anything else."""
        this = now.astimezone(UTC).date().replace(day=1)
        try:
            first = date.fromisoformat(f"{text}-01")
        except ValueError:
            return cls(this, now)
        return cls(min(first, this) if first.year >= 2000 else this, now)

    @property
    def days(self) -> int:
        return calendar.monthrange(self.first.year, self.first.month)[1]

    @property
    def start(self) -> datetime:
        return datetime(self.first.year, self.first.month, 1, tzinfo=UTC)

    @property
    def end(self) -> datetime:
        return min(self.now, self.start + timedelta(days=self.days))

    @property
    def previous(self) -> str:
        return f"{self.first - timedelta(days=1):%Y-%m}"

    @property
    def following(self) -> str:
        """Empty in the present month: there is no use in the future."""
        after = self.first + timedelta(days=self.days)
        return f"{after:%Y-%m}" if after <= self.now.astimezone(UTC).date() else ""


@require_GET
@in_tenant
def page(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    month = Month.read(request.GET.get("month", ""), timezone.now())
    by = "type" if request.GET.get("by") == "type" else "user"
    resource = "cpu" if request.GET.get("of") == "cpu" else "gpu"
    if request.GET.get("of") is None and not tenant.quotas.exclude(gpu_type=usage.CPU_TYPE).exists():
        resource = "cpu"
    people = usage.usage_of(tenant, start=month.start, end=month.end, by=usage.By.USER)
    quotas = usage.quotas_of(tenant)
    context = frame(request, tenant, "usage") | {
        "month": month,
        "by": by,
        "of": resource,
        "cards": [_card(tenant, use) for use in quotas],
        "chart": _chart(tenant, month, by, resource, quotas),
        "people": _people(people),
        "kinds": sorted({use.gpu_type for use in people}),
        "total": _totals(people),
        "jobs_of_month": Job.objects.filter(
            tenant=tenant, created_at__range=(month.start, month.end)
        ).count(),
        "share": _busy_share(people, quotas, month),
        "jobs": _jobs(request, tenant, month),
        "changes": tenant.quota_changes.select_related("actor").order_by("-pk")[:CHANGES_SHOWN],
        "admins": User.objects.filter(is_superuser=True, is_active=True).order_by("username")[:3],
    }
    return render(request, "tenant/usage.html", context)


@require_GET
@in_tenant
def export(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """The month as CSV: one line per day, user and slot type, in slot-hours."""
    month = Month.read(request.GET.get("month", ""), timezone.now())
    answer = HttpResponse(content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{tenant.slug}-usage-{month.first:%Y-%m}.csv"'
    lines = csv.writer(answer)
    lines.writerow(["day", "user", "type", "slot_hours_used", "slot_hours_waited", "slot_hours_lost"])
    for row in usage.usage_by_day_and_user(tenant, start=month.start, end=month.end):
        day, user = row.key.split(" ", 1)
        lines.writerow(
            [day, user, row.gpu_type, *(f"{s / 3600:.4f}" for s in (row.used, row.waited, row.lost))]
        )
    return answer


def holders(tenant: Tenant, gpu_type: str) -> list[tuple[str, int]]:
    """Who holds slots of this type now, most first."""
    rows = Attempt.objects.filter(tenant=tenant, held=True, slot_type=gpu_type)
    sums = rows.values_list("job__owner__username").annotate(n=Sum(F("slots") * F("learners"))).order_by("-n")
    return [(name, int(count)) for name, count in sums]


def _card(tenant: Tenant, use: usage.QuotaUse) -> dict[str, Any]:
    held = holders(tenant, use.gpu_type)
    return {
        "use": use,
        "unit": "slots" if use.gpu_type == usage.CPU_TYPE else "GPUs",
        "holders": [(name, count, meters.series(index)) for index, (name, count) in enumerate(held)],
        "meter": meters.shared_meter(use.gpu_type, held, limit=use.limit, waiting=use.waiting),
        "full": use.limit and use.used >= FULL * use.limit,
    }


def _chart(tenant: Tenant, month: Month, by: str, resource: str, quotas: list[usage.QuotaUse]) -> charts.Bars:
    values: dict[tuple[date, str], float] = {}
    for row in usage.usage_by_day_and_user(tenant, start=month.start, end=month.end):
        if (row.gpu_type == usage.CPU_TYPE) == (resource == "cpu"):
            day, user = row.key.split(" ", 1)
            key = (date.fromisoformat(day), user if by == "user" else row.gpu_type)
            values[key] = values.get(key, 0.0) + row.used / 3600
    possible = 24 * sum(q.limit for q in quotas if (q.gpu_type == usage.CPU_TYPE) == (resource == "cpu"))
    today = min(month.now.astimezone(UTC).date(), month.first + timedelta(days=month.days - 1))
    return charts.stacked_days(values, first=month.first, days=month.days, today=today, possible=possible)


def _people(rows: list[usage.Usage]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    kinds = sorted({row.gpu_type for row in rows})
    for row in rows:
        one = found.setdefault(row.key, {"name": row.key, "by_kind": dict.fromkeys(kinds, 0.0), "gpu": 0.0,
                                         "cpu": 0.0, "waited": 0.0, "lost": 0.0})  # fmt: skip
        one["by_kind"][row.gpu_type] += row.used / 3600
        one["cpu" if row.gpu_type == usage.CPU_TYPE else "gpu"] += row.used / 3600
        one["waited"] += row.waited / 3600
        one["lost"] += row.lost / 3600
    most = max((max(one["gpu"], 0) or one["cpu"] for one in found.values()), default=0.0)
    ordered = sorted(found.values(), key=lambda one: (-one["gpu"], -one["cpu"], one["name"]))
    for index, one in enumerate(ordered):
        one["kind"] = meters.series(index)
        one["share"] = f"{100 * (one['gpu'] or one['cpu']) / most:.1f}" if most else "0"
        one["cells"] = [one["by_kind"][kind] for kind in kinds]
    return ordered


def _totals(rows: list[usage.Usage]) -> dict[str, Any]:
    kinds = sorted({row.gpu_type for row in rows})
    return {
        "gpu": sum(row.used for row in rows if row.gpu_type != usage.CPU_TYPE) / 3600,
        "cpu": sum(row.used for row in rows if row.gpu_type == usage.CPU_TYPE) / 3600,
        "waited": sum(row.waited for row in rows) / 3600,
        "lost": sum(row.lost for row in rows) / 3600,
        "cells": [sum(row.used for row in rows if row.gpu_type == kind) / 3600 for kind in kinds],
    }


def _busy_share(rows: list[usage.Usage], quotas: list[usage.QuotaUse], month: Month) -> float | None:
    """Used part of today's limits over the month so far; None without a limit."""
    possible = sum(quota.limit for quota in quotas) * (month.end - month.start).total_seconds()
    return 100 * sum(row.used for row in rows) / possible if possible else None


def _jobs(request: HttpRequest, tenant: Tenant, month: Month) -> list[dict[str, Any]]:
    """The jobs that used most in this month, each with its slot-hours."""
    hours: dict[str, float] = {}
    for one in usage.usage_by_job(tenant, start=month.start, end=month.end):
        hours[one.key] = hours.get(one.key, 0.0) + one.used / 3600
    most = sorted(hours, key=lambda key: -hours[key])[:JOBS_SHOWN]
    shown = {job.pk: job for job in job_list(user=request.user, tenant=tenant.slug).filter(pk__in=most)}
    return [job_row(job_view(shown[pk])) | {"hours": hours[pk]} for pk in most if pk in shown]
