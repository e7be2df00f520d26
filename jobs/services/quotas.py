"""Change limits, and record it in the history of the jobs that wait for them, as changes of projects do."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.conf import settings
from django.db import connection, transaction

from gpu_scheduler.model import CPU_TYPE
from jobs import events, pubsub, wake
from jobs.humanize import decimal
from jobs.models import JobEvent
from jobs.retries import retry_on_serialization_failure
from jobs.selectors.installation import pools
from jobs.spec.quantities import print_duration
from jobs.states import EventCode
from tenants import access
from tenants.models import Tenant
from tenants.services.quotas import WHOLE_TERMS, Applied, Change, ChangeSet, Term, quota_changes_apply
from tenants.services.tenants import tenant_change


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
            changed = [_changed(one, ids[one.tenant]) for one in made.changes if one.changes]
            record_for_waiting(changed, actor=user, reason=reason, source="admin")
    return made


@transaction.atomic
def tenant_edit(
    *,
    user: access.Person,
    slug: str,
    changes: Mapping[str, Any],
    reason: str,
    if_match: frozenset[str] | None = None,
) -> Tenant:
    """Change a tenant, as tenants.services.tenants.tenant_change, which it raises as. New terms have a pass made and
    pages updated at once, as those of a change set."""
    changed = tenant_change(user=user, slug=slug, changes=changes, reason=reason, if_match=if_match)
    if not WHOLE_TERMS.keys().isdisjoint(changes):
        wake.cycle()
        transaction.on_commit(partial(pubsub.quotas_changed, changed.pk))
    return changed


@dataclass(frozen=True, slots=True)
class Changed:
    """A change of limits of one slot type ("": of all), for the history of jobs. project "": of whatever project.

    words: such as "limit of cpu changed from 2 to 4".
    """

    tenant_id: int
    gpu_type: str
    words: str
    numbers: Mapping[str, Any]
    project: str = ""


# A job whose row is locked is about to start or to end: it no longer waits, so it is skipped.
NUMBER_WAITING = """
UPDATE jobs_job SET event_seq = event_seq + 1 WHERE id IN (
  SELECT id FROM jobs_job AS job
  WHERE state = 'QUEUED' AND intent = 'RUN' AND deleted_at IS NULL AND EXISTS (
    SELECT FROM unnest(%(tenants)s::bigint[], %(projects)s::text[], %(types)s::text[])
      AS changed (tenant_id, project, gpu_type)
    WHERE changed.tenant_id = job.tenant_id
      AND changed.project = CASE WHEN %(by_project)s THEN job.project ELSE '' END
      AND CASE changed.gpu_type WHEN '' THEN true WHEN %(cpu)s THEN job.gpus = 0
        ELSE job.gpus > 0 AND job.gpu_type IN (changed.gpu_type, '') END)
  ORDER BY id FOR NO KEY UPDATE OF job SKIP LOCKED)
RETURNING id, event_seq, attempt, tenant_id, project, CASE WHEN gpus = 0 THEN %(cpu)s ELSE gpu_type END
"""
EVENTS_AT_ONCE = 500
"""Written by one statement."""
IN_WORDS = 8
"""Changes that a message names; the numbers of its event have all."""


def _changed(one: Applied, tenant_id: int) -> Changed:
    limits = {"limit": (one.old_limit, one.new_limit)} if one.new_limit != one.old_limit else {}
    whose = f" of {one.gpu_type}" if one.gpu_type else ""
    parts = [
        f"{name.removesuffix('_s').replace('_', ' ')}{whose} changed from {_shown(name, old)} to {_shown(name, new)}"
        for name, (old, new) in {**limits, **one.terms}.items()
    ]
    numbers = {"gpu_type": one.gpu_type, "from": one.old_limit, "to": one.new_limit, "used": one.used}
    terms = {"terms": {name: list(pair) for name, pair in one.terms.items()}} if one.terms else {}
    return Changed(tenant_id, one.gpu_type, " and ".join(parts), numbers | terms)


def record_for_waiting(changed: Sequence[Changed], *, actor: access.Person, reason: str, source: str) -> None:
    """Write what a change set changes into the history of the jobs that wait and count against it: one event per job.

    A single change has its numbers beside `changes`, too. Of all changes, each has a project or none has. One statement
    numbers the events, and one writes EVENTS_AT_ONCE of them: the caller holds the lock of all quotas.
    """
    if not changed:
        return
    by_project = bool(changed[0].project)
    by_owner = defaultdict(list)
    for one in changed:
        by_owner[one.tenant_id, one.project].append(one)

    @functools.cache
    def written(tenant_id: int, project: str, kind: str) -> dict[str, Any]:
        own = [one for one in by_owner[tenant_id, project] if _counts(one.gpu_type, kind)]
        text = f"project {project}: {_words(own)}," if project else _words(own)
        text = f"{text[0].upper()}{text[1:]} by {actor.get_username()}: {reason}"
        numbers = [dict(one.numbers) for one in own]
        return {"message": text, "numbers": {**(numbers[0] if len(own) == 1 else {}), "changes": numbers}}

    made = [
        JobEvent(
            job_id=job,
            tenant_id=tenant_id,
            n=n,
            code=EventCode.QUOTA_CHANGED,
            attempt=attempt,
            actor_id=actor.pk,
            source=source,
            **written(tenant_id, project if by_project else "", kind),
        )
        for job, n, attempt, tenant_id, project, kind in _number_waiting(changed, by_project)
    ]
    JobEvent.objects.bulk_create(made, batch_size=EVENTS_AT_ONCE)
    for event in made:
        events.publish_later(event.job_id, event.tenant_id, event.n)


def _number_waiting(changed: Sequence[Changed], by_project: bool) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        values: dict[str, Any] = {
            "tenants": [one.tenant_id for one in changed],
            "projects": [one.project for one in changed],
            "types": [one.gpu_type for one in changed],
            "by_project": by_project,
            "cpu": CPU_TYPE,
        }
        cursor.execute(NUMBER_WAITING, values)
        return list(cursor.fetchall())


def _counts(changed: str, kind: str) -> bool:
    """Whether a change of this type concerns a job of that kind ("": any type of GPU), as in NUMBER_WAITING."""
    return changed in ("", kind) or (kind == "" and changed != CPU_TYPE)


def _words(changed: Sequence[Changed]) -> str:
    left = len(changed) - IN_WORDS
    more = [f"{left} more change{'s' if left > 1 else ''}"] if left > 0 else []
    return " and ".join([*(one.words for one in changed[:IN_WORDS]), *more])


def _shown(name: str, value: Term) -> str:
    if name == "max_time_s" and isinstance(value, int):
        return print_duration(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return decimal(value)
    return "no limit" if value is None else str(value) or "none"
