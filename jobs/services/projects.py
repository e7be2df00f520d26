"""Change a tenant's projects, and have the next plan made with them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial

from django.db import transaction

from jobs import pubsub, wake
from jobs.retries import retry_on_serialization_failure
from tenants import access
from tenants.models import Tenant
from tenants.services.projects import Change, ChangeSet, project_changes_apply, project_changes_undo


@retry_on_serialization_failure
def projects_change(
    *, user: access.Person, tenant: Tenant, changes: Sequence[Change], reason: str, dry_run: bool = False
) -> ChangeSet:
    """Set all of it or nothing. Raises as tenants.services.projects."""
    with transaction.atomic():
        made = project_changes_apply(
            user=user, tenant=tenant, changes=changes, reason=reason, dry_run=dry_run
        )
        _publish(tenant, made)
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
        _publish(tenant, made)
    return made


def _publish(tenant: Tenant, made: ChangeSet) -> None:
    if made.id:
        wake.cycle()
        transaction.on_commit(partial(pubsub.quotas_changed, tenant.pk))
