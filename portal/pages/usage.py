"""Quota and use of a tenant: what it holds now, who holds it, and what a month has cost."""

from __future__ import annotations

import calendar
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.db.models import Count, F, Sum
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from jobs import humanize, storage
from jobs.models import Attempt, Job
from jobs.selectors import heads, usage
from jobs.selectors.budgets import budget_of
from jobs.selectors.fairness import fairness
from jobs.selectors.jobs import detailed, job_list
from jobs.selectors.metric_csv import harmless
from jobs.selectors.platform_stops import stopped_s
from jobs.selectors.serializers import JobSerializer
from jobs.states import State
from portal.pages import charts, meters
from portal.pages.admin.terms import described
from portal.pages.burn import burn_of
from portal.pages.cells import row as job_row
from portal.pages.csv_files import csv_file
from portal.pages.entitlements import rows_of
from portal.pages.guard import in_tenant
from portal.pages.shell import frame
from tenants.models import Tenant, User

JOBS_SHOWN = 8
ENDS = (State.COMPLETED, State.FAILED, State.CANCELED)
CHANGES_SHOWN = 5
PEOPLE_SHOWN = 50
"""Lines of the table; the others are one line together, and each has its lines in the CSV."""
NAMED = 12
"""Users with a series of their own in the chart; more would look alike."""
OTHERS = "others"
ANY = "any"
"""Slot type of waits for whatever GPU comes first; no job holds it, so it has no column."""


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
    def last(self) -> date:
        """The last day that it counts: today, or the month's last one."""
        return (self.end - timedelta(microseconds=1)).astimezone(UTC).date()

    @property
    def ongoing(self) -> bool:
        return self.end == self.now

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
    news = heads.first_row(heads.of_quotas(tenant.slug) + 1)  # before what the page shows is read
    by = "type" if request.GET.get("by") == "type" else "user"
    resource = "cpu" if request.GET.get("of") == "cpu" else "gpu"
    if request.GET.get("of") is None and not tenant.quotas.exclude(gpu_type=usage.CPU_TYPE).exists():
        resource = "cpu"
    rows = usage.usage_of(tenant, start=month.start, end=month.end, by=usage.By.USER)
    waits = usage.first_waits(tenant, start=month.start, end=month.end)
    quotas = usage.quotas_of(tenant)
    budget = budget_of(tenant)
    kinds = sorted({use.gpu_type for use in rows} - {ANY}, key=usage.gpus_first)
    submitted = _submitted(tenant, month)
    people = _people(rows, kinds, waits, _summed(submitted, OWNER))
    report = fairness(month.start, month.end, month.now, tenant)
    entitlements = rows_of([line for line in report.lines if _of(resource, line.slot_type)])
    changes = list(tenant.quota_changes.select_related("actor").order_by("-pk")[:CHANGES_SHOWN])
    context = frame(request, tenant, "usage") | {
        "news": news,
        "month": month,
        "by": by,
        "of": resource,
        "cards": [_card(tenant, use) for use in quotas],
        "budget": budget,
        "budget_meter": meters.budget_meter(budget) if budget else None,
        "burn": burn_of(tenant, budget) if budget else None,
        "storage": meters.storage(storage.used_by(tenant.pk), tenant.storage_limit),
        "chart": _chart(tenant, month, by, resource, rows, quotas),
        "people": people[:PEOPLE_SHOWN],
        "others": _others(people[PEOPLE_SHOWN:], kinds),
        "kinds": kinds,
        "on_gpus": resource == "gpu"
        or any(_of("gpu", kind) for kind in [*kinds, *(use.gpu_type for use in quotas if use.limit)]),
        "total": _totals(rows, kinds, waits.whole),
        "stopped_s": stopped_s(month.start, month.end),
        "sum": _sum(rows, waits, quotas, month, resource),
        "ends": _ends(submitted),
        "jobs": _jobs(request, tenant, month, resource),
        "entitlements": entitlements,
        "report": report,
        "changes": changes,
        "terms": {change.pk: described(change.terms) for change in changes},
        "admins": User.objects.filter(is_superuser=True, is_active=True).order_by("username")[:3],
    }
    return render(request, "tenant/usage.html", context)


@require_GET
@in_tenant
def export(request: HttpRequest, tenant: Tenant) -> HttpResponseBase:
    """The month as CSV: one line per day, user and slot type, in slot-hours."""
    month = Month.read(request.GET.get("month", ""), timezone.now())
    return csv_file(request, f"{tenant.slug}-usage-{month.first:%Y-%m}.csv", _lines(tenant, month))


def _lines(tenant: Tenant, month: Month) -> Iterator[Sequence[object]]:
    """Read by one statement: no line is of another moment than the rest."""
    yield "day", "user", "type", "slot_hours_used", "slot_hours_waited", "slot_hours_lost"
    for day, user, *rest in usage.hours_by_day_and_user(tenant, start=month.start, end=month.end):
        yield day, harmless(user), *rest


def holders(tenant: Tenant, gpu_type: str) -> list[tuple[str, int]]:
    """Who holds slots of the quota of this type now, most first."""
    rows = Attempt.objects.filter(tenant=tenant, held=True, opportunistic=False, slot_type=gpu_type)
    sums = rows.values_list("job__owner__username").annotate(n=Sum(F("slots") * F("learners"))).order_by("-n")
    return [(name, int(count)) for name, count in sums]


def _card(tenant: Tenant, use: usage.QuotaStatus) -> dict[str, Any]:
    held = holders(tenant, use.gpu_type)
    return {
        "use": use,
        "unit": humanize.unit(use.gpu_type, use.limit),
        "holders": [(name, count, meters.series(index)) for index, (name, count) in enumerate(held)],
        "meter": meters.shared_meter(use.gpu_type, held, limit=use.limit, waiting=use.waiting),
        "full": use.limit and use.used >= meters.FULL * use.limit,
    }


def _chart(
    tenant: Tenant,
    month: Month,
    by: str,
    resource: str,
    rows: list[usage.Usage],
    quotas: list[usage.QuotaStatus],
) -> charts.Bars:
    """rows: the month by user; those with the most hours are named, the others share a series."""
    hours: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        if _of(resource, row.gpu_type):
            hours[row.key] += row.used
    named = sorted(hours, key=lambda name: -hours[name])[:NAMED] if by == "user" else []
    values: defaultdict[tuple[date, str], float] = defaultdict(float)
    for one in usage.usage_by_day_and_user(tenant, start=month.start, end=month.end, named=named):
        if _of(resource, one.gpu_type):
            values[one.day, (one.user or OTHERS) if by == "user" else one.gpu_type] += one.used / 3600
    possible = 24 * sum(quota.limit for quota in quotas if _of(resource, quota.gpu_type))
    today = min(month.now.astimezone(UTC).date(), month.first + timedelta(days=month.days - 1))
    return charts.stacked_days(
        values, first=month.first, days=month.days, today=today, possible=possible, rest=OTHERS
    )


def _of(resource: str, kind: str) -> bool:
    return (kind == usage.CPU_TYPE) == (resource == "cpu")


def _hours(rows: list[usage.Usage], resource: str) -> dict[str, float]:
    """Slot-hours used and lost on one resource; GPU and CPU are never added up."""
    mine = [row for row in rows if _of(resource, row.gpu_type)]
    return {"used": sum(row.used for row in mine) / 3600, "lost": sum(row.lost for row in mine) / 3600}


def _totals(rows: list[usage.Usage], kinds: list[str], wait: tuple[float, float] | None) -> dict[str, Any]:
    """One line of the table: hours per resource and kind, what was lost of each, and the wait for the first start."""
    return {
        "gpu": _hours(rows, "gpu"),
        "cpu": _hours(rows, "cpu"),
        "cells": [(kind, sum(row.used for row in rows if row.gpu_type == kind) / 3600) for kind in kinds],
        "wait": wait[0] if wait else None,
    }


def _people(
    rows: list[usage.Usage], kinds: list[str], waits: usage.FirstWaits, submitted: dict[str, int]
) -> list[dict[str, Any]]:
    used: defaultdict[str, list[usage.Usage]] = defaultdict(list)
    for row in rows:
        used[row.key].append(row)
    found = [
        _totals(used[name], kinds, waits.by_user.get(name)) | {"name": name, "jobs": submitted.get(name, 0)}
        for name in used.keys() | submitted.keys()
    ]
    found.sort(key=lambda one: (-one["gpu"]["used"], -one["cpu"]["used"], one["name"]))
    resource = "gpu" if any(one["gpu"]["used"] for one in found) else "cpu"
    whole = sum(one[resource]["used"] for one in found)
    for index, one in enumerate(found):
        one |= {"kind": meters.series(index), "share": 100 * one[resource]["used"] / whole if whole else 0.0}
    return found


def _others(people: list[dict[str, Any]], kinds: list[str]) -> dict[str, Any] | None:
    """The line of those who have none; a median of medians would say nothing."""
    if not people:
        return None
    cells = [(kind, sum(one["cells"][n][1] for one in people)) for n, kind in enumerate(kinds)]
    sums = {
        resource: {key: sum(one[resource][key] for one in people) for key in ("used", "lost")}
        for resource in ("gpu", "cpu")
    }
    return sums | {
        "name": f"{len(people):,} others",
        "kind": meters.REST,
        "share": sum(one["share"] for one in people),
        "cells": cells,
        "jobs": sum(one["jobs"] for one in people),
        "wait": None,
    }


def _sum(
    rows: list[usage.Usage],
    waits: usage.FirstWaits,
    quotas: list[usage.QuotaStatus],
    month: Month,
    resource: str,
) -> dict[str, Any]:
    """The month on one resource: hours, the share of what today's limits allow, what was lost, the waits. Opportunistic
    jobs use nothing of the limits."""
    hours = _hours(rows, resource)
    beside = sum(row.opportunistic for row in rows if _of(resource, row.gpu_type)) / 3600
    slots = sum(quota.limit for quota in quotas if _of(resource, quota.gpu_type))
    so_far = (month.end - month.start).total_seconds() / 3600
    median, p90 = waits.by_resource.get(resource, (None, None))
    return hours | {
        "median": median,
        "p90": p90,
        "opportunistic": beside,
        "share": 100 * (hours["used"] - beside) / (slots * so_far) if slots and so_far else None,
        "lost_share": 100 * hours["lost"] / hours["used"] if hours["used"] else None,
        "projected": hours["used"] * 24 * month.days / so_far if month.ongoing and so_far >= 24 else None,
    }


Submitted = list[tuple[str, str, int]]
"""How many jobs, by owner and state."""
OWNER, STATE = 0, 1
"""Its columns."""


def _submitted(tenant: Tenant, month: Month) -> Submitted:
    """The jobs submitted in the month, all read once."""
    rows = Job.objects.filter(tenant=tenant, created_at__range=(month.start, month.end))
    counted = list(rows.values_list("owner", "state").annotate(n=Count("*")).order_by())
    names = dict(User.objects.filter(pk__in={owner for owner, *_ in counted}).values_list("pk", "username"))
    return [(names[owner], state, count) for owner, state, count in counted]


def _summed(submitted: Submitted, column: int) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for row in submitted:
        counts[str(row[column])] += row[-1]
    return counts


def _ends(submitted: Submitted) -> dict[str, Any]:
    """Jobs submitted in the month, and what has become of them until now; the parts add up."""
    counts = _summed(submitted, STATE)
    whole = sum(counts.values())
    parts = [(str(state).lower(), counts.get(state, 0)) for state in ENDS]
    live = whole - sum(count for _, count in parts)
    return {"submitted": whole, "parts": [part for part in [*parts, ("active", live)] if part[1]]}


def _jobs(request: HttpRequest, tenant: Tenant, month: Month, resource: str) -> list[dict[str, Any]]:
    """The jobs that used most of one resource in this month, each with its slot-hours."""
    found = usage.largest_jobs(tenant, start=month.start, end=month.end, resource=resource, count=JOBS_SHOWN)
    mine = job_list(user=request.user, tenant=tenant.slug)
    ids = [one.job_id for one in found]
    shown = {job.pk: job for job in detailed(mine.filter(pk__in=ids).only("pk"))}
    return [
        job_row(JobSerializer.render(shown[one.job_id])) | {"hours": one.used / 3600}
        for one in found
        if one.job_id in shown
    ]
