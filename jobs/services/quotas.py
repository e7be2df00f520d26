"""Limits changed, and everybody who waits for them told."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from django.conf import settings
from django.db import transaction

from jobs import announce, wake
from jobs.selectors.installation import pools
from tenants import access
from tenants.models import Tenant
from tenants.services.quotas import Change, ChangeSet, quota_changes_apply


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
            for tenant in Tenant.objects.filter(slug__in={one.tenant for one in made.changes}):
                transaction.on_commit(partial(announce.quotas_changed, tenant.pk))
    return made
