"""How far a page or a frame has come: numbers that grow with each change. A page that is read after its head was taken
lacks nothing up to that head.
"""

from __future__ import annotations

from django.db.models import Max

from jobs.models import JobEvent
from tenants.models import QuotaChange

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
    return JobEvent.objects.filter(tenant__slug=tenant).aggregate(newest=Max("id"))["newest"] or 0


def of_quotas(tenant: str) -> int:
    """Grows with the events and the quota changes of the tenant with this slug, and never goes back."""
    changes = QuotaChange.objects.filter(tenant__slug=tenant).aggregate(newest=Max("id"))
    return of_jobs(tenant) + (changes["newest"] or 0)
