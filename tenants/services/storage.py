"""How many bytes a tenant may store. What it stores is counted in jobs.storage."""

from __future__ import annotations

from django.db import transaction

from tenants import access, audit, checks
from tenants.errors import problem
from tenants.models import Tenant
from tenants.retention import MAX_BYTES
from tenants.services.editing import content_etag, locked_tenant

CHANGED = "storage.change"
"""The audit log's action."""
MAX_LIMIT = MAX_BYTES


def etag(tenant: Tenant) -> str:
    """The version for If-Match: it follows from the limit alone."""
    return content_etag("s", tenant.storage_limit)


@transaction.atomic
def storage_set(
    *,
    user: access.Person,
    slug: str,
    limit_bytes: int | None,
    reason: str,
    if_match: frozenset[str] | None = None,
) -> Tenant:
    """Set the tenant's limit; None: no limit. A limit below what is stored removes nothing.

    Raises AdminOnly, NotFound, VersionChanged, FieldsInvalid.
    """
    tenant = locked_tenant(user, slug, etag, if_match)
    checks.refuse(_bounds(limit_bytes), checks.text("reason", reason, 500))
    before = tenant.storage_limit
    if limit_bytes != before:
        Tenant.objects.filter(pk=tenant.pk).update(storage_limit=limit_bytes)
        details = {"from": before, "to": limit_bytes}
        audit.record(
            actor=user, action=CHANGED, tenant_id=tenant.pk, target=slug, reason=reason, details=details
        )
        tenant.refresh_from_db()
    return tenant


def _bounds(limit_bytes: int | None) -> dict[str, object] | None:
    if limit_bytes is None or 0 <= limit_bytes <= MAX_LIMIT:
        return None
    allowed = f"0 to {MAX_LIMIT}, or null"
    return problem("limit_bytes", "out_of_range", f"must be {allowed}", limit_bytes, allowed)
