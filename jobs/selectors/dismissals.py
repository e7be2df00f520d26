"""Recent failures, and which of them a user has dismissed. What needs attention and the services read these alone."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Exists, OuterRef, QuerySet

from jobs.models import Dismissal, Job
from jobs.selectors.jobs import ENDED_WITHIN
from jobs.states import State
from tenants.models import Tenant, User

RECENT = ENDED_WITHIN["24h"]


def recent_failures(jobs: QuerySet[Job], now: datetime) -> QuerySet[Job]:
    """Those of these jobs that failed within a day, the newest failure first."""
    return jobs.filter(state=State.FAILED, finished_at__gt=now - RECENT).order_by("-finished_at", "pk")


def dismissed_by(user: User) -> Exists:
    """A condition on jobs: that this user has dismissed the job's failure."""
    return Exists(Dismissal.objects.filter(user=user, job=OuterRef("pk")).order_by())


def dismissals_of(user: User, tenant: Tenant) -> QuerySet[Dismissal]:
    """The user's in this tenant, the newest first; not of jobs that are deleted."""
    return Dismissal.objects.filter(user=user, tenant=tenant, job__deleted_at=None).order_by("-pk")
