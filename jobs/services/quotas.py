"""Change limits, and record it in the history of the jobs that wait for them, as changes of projects do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from django.conf import settings
from django.db import connection, transaction

from gpu_scheduler.model import CPU_TYPE
from jobs import events, pubsub, wake
from jobs.models import JobEvent
from jobs.retries import retry_on_serialization_failure
from jobs.selectors.installation import pools
from jobs.spec.quantities import print_duration
from jobs.states import EventCode
from tenants import access
from tenants.models import Tenant
from tenants.services.quotas import Applied, Change, ChangeSet, Term, quota_changes_apply


@retry_on_serialization_failure
def quotas_change(
    *, user: access.Person, changes: Sequence[Change], reason: str, dry_run: bool = False
) -> ChangeSet:
    """Set all limits or none, against what the cluster has. Raises as tenants.services.quotas."""
    capacity = {kind: pool.slots for kind, pool in pools().items()}
    with transaction.atomic():
        made = quota_changes_apply(
            user=user,
            changes=changes,
            reason=reason,
            capacity=capacity,
            overcommit=settings.LUTHIER_OVERCOMMIT_MAX,
            dry_run=dry_run,
        )
        if made.id:
            wake.cycle()
            ids = dict(
                Tenant.objects.filter(slug__in={one.tenant for one in made.changes}).values_list("slug", "pk")
            )
            for tenant_id in ids.values():
                transaction.on_commit(partial(pubsub.quotas_changed, tenant_id))
            for one in made.changes:
                if one.changes:
                    _record_for_waiting(one, ids[one.tenant], reason, user)
    return made


# A job whose row is locked is about to start or to end: it no longer waits, so it is skipped.
NUMBER_WAITING = """
UPDATE jobs_job SET event_seq = event_seq + 1 WHERE id IN (
  SELECT id FROM jobs_job
  WHERE tenant_id = %(tenant)s AND state = 'QUEUED' AND intent = 'RUN' AND deleted_at IS NULL
    AND project = coalesce(%(project)s, project)
    AND CASE %(type)s WHEN '' THEN true WHEN %(cpu)s THEN gpus = 0 ELSE gpus > 0 AND gpu_type IN (%(type)s, '') END
  ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
RETURNING id, event_seq, attempt
"""


def _record_for_waiting(one: Applied, tenant_id: int, reason: str, user: access.Person) -> None:
    changed = {"limit": (one.old_limit, one.new_limit)} if one.new_limit != one.old_limit else {}
    whose = f" of {one.gpu_type}" if one.gpu_type else ""
    parts = [
        f"{name.removesuffix('_s').replace('_', ' ')}{whose} changed from {_shown(name, old)} to {_shown(name, new)}"
        for name, (old, new) in {**changed, **one.terms}.items()
    ]
    text = " and ".join(parts)
    text = f"{text[0].upper()}{text[1:]} by {user.get_username()}: {reason}"
    numbers = {"gpu_type": one.gpu_type, "from": one.old_limit, "to": one.new_limit, "used": one.used}
    record_for_waiting(
        tenant_id=tenant_id, gpu_type=one.gpu_type, message=text, numbers=numbers, actor=user, source="admin"
    )


def record_for_waiting(
    *,
    tenant_id: int,
    gpu_type: str,
    message: str,
    numbers: Mapping[str, Any],
    actor: access.Person,
    source: str,
    project: str | None = None,
) -> None:
    """Write a change of limits into the history of every job that waits and counts against them.

    gpu_type: that of the limits; "": of all types. project: None: whatever project a job is in.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            NUMBER_WAITING, {"tenant": tenant_id, "type": gpu_type, "cpu": CPU_TYPE, "project": project}
        )
        waiting = cursor.fetchall()
    JobEvent.objects.bulk_create(
        JobEvent(
            job_id=job,
            tenant_id=tenant_id,
            n=n,
            code=EventCode.QUOTA_CHANGED,
            attempt=attempt,
            message=message,
            numbers=dict(numbers),
            actor_id=actor.pk,
            source=source,
        )
        for job, n, attempt in waiting
    )
    for job, n, _ in waiting:
        events.publish_later(job, tenant_id, n)


def _shown(name: str, value: Term) -> str:
    if name == "max_time_s" and isinstance(value, int):
        return print_duration(value)
    return "no limit" if value is None else str(value) or "none"
