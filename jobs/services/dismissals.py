"""A user dismisses failures from what needs their attention, and restores them.

A dismissal is the user's own: it changes no job and hides nothing from others, so it is in no history. A job fails
once: nothing has to forget a dismissal.
"""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone

from jobs.models import Dismissal
from jobs.selectors.dismissals import dismissals_of, dismissed_by, recent_failures
from jobs.selectors.jobs import job_get, job_list
from jobs.services.locking import illegal
from jobs.states import State
from tenants import access
from tenants.models import Tenant, User
from tenants.roles import Permission


def failure_dismiss(*, user: User, job_id: str) -> Dismissal:
    """Dismiss a job's failure; a repeat changes nothing. Raises JobNotFound, NotAllowed; IllegalTransition unless it
    has failed."""
    job = job_get(user=user, job_id=job_id)
    access.require_writes(user)
    if job.state != State.FAILED:
        raise illegal(job, "dismissed")
    row, _ = Dismissal.objects.get_or_create(user=user, job=job, defaults={"tenant_id": job.tenant_id})
    return row


def failures_dismiss(*, user: User, tenant: Tenant, until: datetime | None = None) -> list[Dismissal]:
    """Dismiss what failed in this tenant within a day, and is not dismissed yet; the new rows, all of one moment, the
    newest first. until: only what failed by then, such as what the user has seen. Raises NotFound, NotAllowed."""
    access.require(user, Permission.VIEW, tenant)
    access.require_writes(user)
    now = timezone.now()
    failed = recent_failures(job_list(user=user, tenant=tenant.slug), now).exclude(dismissed_by(user))
    if until is not None:
        failed = failed.filter(finished_at__lte=until)
    rows = [
        Dismissal(user=user, job_id=job, tenant=tenant, dismissed_at=now)
        for job in failed.values_list("pk", flat=True)
    ]
    if not rows:
        return []
    Dismissal.objects.bulk_create(rows, batch_size=1000, ignore_conflicts=True)
    # What the same user dismissed meanwhile elsewhere is of another moment.
    return list(dismissals_of(user, tenant).filter(dismissed_at=now))


def failure_restore(*, user: User, job_id: str) -> None:
    """Take a dismissal back; a repeat changes nothing. Raises JobNotFound, NotAllowed."""
    job = job_get(user=user, job_id=job_id)
    access.require_writes(user)
    Dismissal.objects.filter(user=user, job=job).delete()


def failures_restore(*, user: User, tenant: Tenant, since: datetime | None = None) -> None:
    """Take back all of the user's dismissals in this tenant; since: only those of that moment.

    Raises NotFound, NotAllowed."""
    access.require(user, Permission.VIEW, tenant)
    access.require_writes(user)
    rows = dismissals_of(user, tenant)
    if since is not None:
        rows = rows.filter(dismissed_at=since)
    rows.delete()
