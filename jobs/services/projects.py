"""Change a tenant's projects, record it in the history of the jobs that wait in them, and have the next plan made with
them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial

from django.db import transaction

from jobs import pubsub, wake
from jobs.retries import retry_on_serialization_failure
from jobs.services.quotas import Changed, record_for_waiting
from tenants import access
from tenants.models import Tenant
from tenants.services.projects import (
    WHOLE,
    Applied,
    Change,
    ChangeSet,
    Term,
    project_changes_apply,
    project_changes_undo,
)


@retry_on_serialization_failure
def projects_change(
    *, user: access.Person, tenant: Tenant, changes: Sequence[Change], reason: str, dry_run: bool = False
) -> ChangeSet:
    """Set all of it or nothing. Raises as tenants.services.projects."""
    with transaction.atomic():
        made = project_changes_apply(
            user=user, tenant=tenant, changes=changes, reason=reason, dry_run=dry_run
        )
        _publish(user, tenant, made, reason)
    return made


@retry_on_serialization_failure
def projects_undo(
    *, user: access.Person, tenant: Tenant, change_set: uuid.UUID, reason: str, dry_run: bool = False
) -> ChangeSet:
    """Set back what this set changed. Raises as tenants.services.projects."""
    with transaction.atomic():
        made = project_changes_undo(
            user=user, tenant=tenant, change_set=change_set, reason=reason, dry_run=dry_run
        )
        _publish(user, tenant, made, reason)
    return made


def _publish(user: access.Person, tenant: Tenant, made: ChangeSet, reason: str) -> None:
    if not made.id:
        return
    wake.cycle()
    transaction.on_commit(partial(pubsub.quotas_changed, tenant.pk))
    changed = [
        Changed(
            tenant.pk,
            one.gpu_type,
            _in_words(one),
            {
                "project": one.project,
                "gpu_type": one.gpu_type,
                "terms": {name: list(pair) for name, pair in one.terms.items()},
            },
            one.project,
        )
        for one in made.changes
    ]
    record_for_waiting(changed, actor=user, reason=reason, source="user")


def _in_words(one: Applied) -> str:
    """Such as "guarantee of cpu changed from 2 to 4 and limit of cpu changed from no limit to 8"."""
    if one.gpu_type == WHOLE:
        before, after = one.terms["weight"]
        if before is None:
            return "added"
        return "removed" if after is None else f"weight changed from {before} to {after}"
    return " and ".join(
        f"{name} of {one.gpu_type} changed from {_shown(before)} to {_shown(after)}"
        for name, (before, after) in one.terms.items()
    )


def _shown(value: Term) -> str:
    return "no limit" if value is None else str(value)
