"""How far a page or a frame has come: numbers that grow with each change. A page that is read after its head was taken
lacks nothing up to that head.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Max, QuerySet

from jobs.models import JobEvent
from tenants.models import QuotaChange, Tenant

ROWS = 2**20
"""Row numbers between two numbers of the database; all remain below 2**53, the largest integer in a browser."""


def first_row(head: int) -> int:
    """The first row number of a viewer who subscribes at the database's number head."""
    return head * ROWS


def store_cursor(row: int) -> int:
    """The database's number that a viewer who has this row is certain to have received."""
    return row // ROWS


def of_cluster() -> int:
    """Id of the newest event of all; 0 without one."""
    return JobEvent.objects.aggregate(newest=Max("id"))["newest"] or 0


def of_jobs(tenant: str) -> int:
    """Id of the newest event of the tenant with this slug; 0 without one."""
    return _newest(JobEvent.objects.all(), tenant)


def of_quotas(tenant: str) -> int:
    """Grows with the events and the quota changes of the tenant with this slug, and never goes back."""
    return of_jobs(tenant) + _newest(QuotaChange.objects.all(), tenant)


def _newest(rows: QuerySet[Any], tenant: str) -> int:
    """The end of the tenant's range of an index; a maximum over a join would read the whole range."""
    of = Tenant.objects.filter(slug=tenant).values("pk")[:1]
    return rows.filter(tenant=of).order_by("-id").values_list("id", flat=True).first() or 0
