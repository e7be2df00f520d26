"""What all edits of a tenant by platform admins begin with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet

from tenants import access
from tenants.errors import NotFound, VersionChanged
from tenants.models import AuditEntry, Tenant


def locked_tenant(
    user: access.Person, slug: str, etag: Callable[[Tenant], str], if_match: frozenset[str] | None
) -> Tenant:
    """The tenant, locked until the transaction ends, for a change of the part whose version `etag` is.

    Raises AdminOnly, NotFound, or VersionChanged if `if_match` (If-Match's versions, None without the header) lacks it.
    """
    access.require_admin(user)
    tenant = Tenant.objects.select_for_update(no_key=True).filter(slug=slug).first()
    if tenant is None:
        raise NotFound
    if if_match is not None and (now := etag(tenant)) not in if_match:
        raise VersionChanged(etag=now)
    return tenant


def content_etag(prefix: str, content: Any) -> str:
    """A version that follows from the content alone (JSON), so that writing the same again leaves it as it is."""
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return f'"{prefix}{digest[:16]}"'


def changes(tenant: Tenant, action: str, count: int) -> QuerySet[AuditEntry]:
    """The newest edits of one kind, an action of the audit log, with their authors."""
    return tenant.audit.filter(action=action).select_related("actor").order_by("-pk")[:count]
