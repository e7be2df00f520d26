"""The record of who did what, and of what a platform admin read in tenants that are not his."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from django.db.models.functions import Now

from tenants import access
from tenants.models import AuditEntry, User

REPEAT_AFTER = timedelta(minutes=10)
"""The same reading by the same admin within this time is one entry: a page that follows a job reads it often."""

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Set by whoever answers a request, so that an entry can be matched with the log."""


def record(
    *,
    actor: access.Person | None,
    action: str,
    tenant_id: int | None = None,
    target: str = "",
    reason: str = "",
    details: dict[str, Any] | None = None,
) -> AuditEntry:
    """Write one entry, within the caller's transaction: what is not recorded did not happen."""
    return AuditEntry.objects.create(
        tenant_id=tenant_id,
        actor=actor if isinstance(actor, User) else None,
        action=action,
        target=target[:200],
        reason=reason[:500],
        details=details or {},
        request_id=request_id.get(),
    )


def admin_read(
    *, user: access.Person, tenant_id: int | None, action: str, target: str = "", reason: str = ""
) -> None:
    """Record that a platform admin read what he sees only as one. Anybody else's reading leaves no entry."""
    if not access.is_platform_admin(user):
        return
    if tenant_id is not None and access.memberships(user).filter(tenant=tenant_id).exists():
        return
    seen = AuditEntry.objects.filter(
        actor=user.pk, action=action, target=target[:200], tenant=tenant_id, at__gt=Now() - REPEAT_AFTER
    )
    if reason:
        seen = seen.filter(reason=reason[:500])
    if not seen.exists():
        record(actor=user, action=action, tenant_id=tenant_id, target=target, reason=reason)
