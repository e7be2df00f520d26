"""A user dismisses failures from what needs their attention, and restores them.

A dismissal is the user's own: it changes no job and hides nothing from others, so it is in no history. It is of one
failure: a job that failed again needs attention again.
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
from tenants.errors import NotAllowed
from tenants.models import Tenant, User
from tenants.roles import Permission, Role


def failure_dismiss(*, user: User, job_id: str) -> Dismissal:
    """Dismiss a job's failure; a repeat changes nothing. Raises JobNotFound, NotAllowed; IllegalTransition unless it
    has failed."""
    job = job_get(user=user, job_id=job_id)
    _require_writes(user)
    if job.state != State.FAILED or job.finished_at is None:
        raise illegal(job, "dismissed")
    row, _ = Dismissal.objects.get_or_create(
        user=user, job=job, defaults={"tenant_id": job.tenant_id, "failed_at": job.finished_at}
    )
    if row.failed_at != job.finished_at:
        row.failed_at, row.dismissed_at = job.finished_at, timezone.now()
        row.save(update_fields=["failed_at", "dismissed_at"])
    return row


def failures_dismiss(*, user: User, tenant: Tenant, until: datetime | None = None) -> list[Dismissal]:
    """Dismiss what failed in this tenant within a day, and is not dismissed yet. until: only what failed by then, such
    as what the user has seen. Raises NotFound, NotAllowed."""
    access.require(user, Permission.VIEW, tenant)
    _require_writes(user)
    now = timezone.now()
    failed = recent_failures(job_list(user=user, tenant=tenant.slug), now).exclude(dismissed_by(user))
    if until is not None:
        failed = failed.filter(finished_at__lte=until)
    rows = [
        Dismissal(user=user, job_id=job, tenant=tenant, failed_at=at, dismissed_at=now)
        for job, at in failed.values_list("pk", "finished_at")
        if at is not None
    ]
    return Dismissal.objects.bulk_create(
        rows,
        batch_size=1000,
        update_conflicts=True,
        unique_fields=["user", "job"],
        update_fields=["failed_at", "dismissed_at"],
    )


def failure_restore(*, user: User, job_id: str) -> None:
    """Take a dismissal back; a repeat changes nothing. Raises JobNotFound, NotAllowed."""
    job = job_get(user=user, job_id=job_id)
    _require_writes(user)
    Dismissal.objects.filter(user=user, job=job).delete()


def failures_restore(*, user: User, tenant: Tenant, since: datetime | None = None) -> None:
    """Take back all of the user's dismissals in this tenant; since: only those of that moment.

    Raises NotFound, NotAllowed."""
    access.require(user, Permission.VIEW, tenant)
    _require_writes(user)
    rows = dismissals_of(user, tenant)
    if since is not None:
        rows = rows.filter(dismissed_at=since)
    rows.delete()


def _require_writes(user: User) -> None:
    token = access.token_of(user)
    if token is not None and token.role_ceiling == Role.VIEWER:
        raise NotAllowed("This token has the role viewer, which can only read.")
