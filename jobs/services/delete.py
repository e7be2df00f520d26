"""Delete an ended job: hidden at once, its bytes purged after the retention time."""

from __future__ import annotations

from django.db import transaction
from django.db.models.functions import Now

from jobs import events
from jobs.failpoints import fp
from jobs.models import Job
from jobs.services.locking import lock_job, refuse, refuse_stale
from jobs.states import EventCode
from tenants import audit
from tenants.models import User


def job_delete(*, user: User, job_id: str, if_match: frozenset[str] | None = None) -> None:
    """Hide the job for good. Raises IllegalTransition while it is not over, JobChanged when if_match is stale."""
    with transaction.atomic():
        job = lock_job(user=user, job_id=job_id, to_decide=True)
        refuse_stale(job, if_match)
        if not job.is_final:
            raise refuse(job, "deleted")
        events.append(
            job_id=job.pk,
            tenant_id=job.tenant_id,
            code=EventCode.DELETED,
            attempt=job.attempt,
            message=f"Deleted by {user.get_username()}",
            actor_id=user.pk,
            source="user",
        )
        audit.record(  # also of its owner: the job's own history is hidden with it
            actor=user,
            action="job.delete",
            tenant_id=job.tenant_id,
            target=job.pk,
            reason=audit.access_reason.get(),
            details={"name": job.name, "owner": job.owner.get_username()},
        )
        fp("delete.after_event")
        Job.objects.filter(pk=job.pk).update(deleted_at=Now())
