"""Edit a submitted job (name, tags, priority), and delete it once it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from gpu_scheduler.model import Priority
from jobs import events, wake
from jobs.errors import SpecInvalid
from jobs.failpoints import fp
from jobs.models import Job
from jobs.services.locking import illegal, lock_job, reload, require_match
from jobs.services.submit import parse_spec
from jobs.spec.context import priority_problem
from jobs.states import EventCode
from tenants import audit
from tenants.models import User


def job_edit(
    *,
    user: User,
    job_id: str,
    name: str | None = None,
    tags: Sequence[str] | None = None,
    priority: str | None = None,
    if_match: frozenset[str] | None = None,
) -> Job:
    """Change what is given.

    Raises JobNotFound, JobForbidden, JobChanged when if_match (ETags) is stale, IllegalTransition for the priority of
    an ended job, SpecInvalid naming each field.
    """
    wanted: dict[str, Any] = {
        "name": name,
        "tags": None if tags is None else list(tags),
        "priority": priority,
    }
    with transaction.atomic():
        job = lock_job(user=user, job_id=job_id, to_manage=True)
        require_match(job, if_match)
        changes = {
            field: value
            for field, value in wanted.items()
            if value is not None and value != getattr(job, field)
        }
        if "priority" in changes and job.is_final:
            raise illegal(job, "given another priority, only another name or other tags")
        if changes:
            _apply(job, changes, user)
    return reload(job_id)


def _apply(job: Job, changes: dict[str, Any], user: User) -> None:
    spec = parse_spec(job.spec | changes)  # the same rules as for a new job
    if "priority" in changes and spec.priority not in job.tenant.priorities:
        raise SpecInvalid(errors=[priority_problem(spec.priority, job.tenant.priorities).as_dict()])
    before = {field: getattr(job, field) for field in changes}
    Job.objects.filter(pk=job.pk).update(
        name=spec.name,
        tags=list(spec.tags),
        priority=spec.priority,
        priority_rank=Priority[spec.priority.upper()],
        spec=spec.normalized,
    )
    events.append(
        job_id=job.pk,
        tenant_id=job.tenant_id,
        code=EventCode.EDITED,
        attempt=job.attempt,
        message=f"{', '.join(changes)} changed by {user.get_username()}",
        numbers={field: {"from": before[field], "to": value} for field, value in changes.items()},
        actor_id=user.pk,
        source="user",
    )
    audit.admin_act(user=user, tenant_id=job.tenant_id, action="job.edit", target=job.pk)
    if "priority" in changes:
        wake.cycle()


def job_delete(*, user: User, job_id: str, if_match: frozenset[str] | None = None) -> None:
    """Hide the job for good; its bytes are purged after the retention time.

    Raises IllegalTransition while it is not over, JobChanged when if_match is stale.
    """
    with transaction.atomic():
        job = lock_job(user=user, job_id=job_id, to_manage=True)
        require_match(job, if_match)
        if not job.is_final:
            raise illegal(job, "deleted")
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
