"""What the frame around every page needs: who is here, in which tenant, and what the sidebar shows."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from jobs.selectors.usage import live_jobs
from portal.pages import theme
from tenants import access
from tenants.models import AuditEntry, Membership, Tenant, User
from tenants.roles import Permission


def shell(request: HttpRequest) -> dict[str, Any]:
    """Context for templates/base.html; queries run only if the template looks."""
    return {
        "theme": theme.chosen(request),
        "my_memberships": SimpleLazyObject(lambda: _memberships(request)),
        "platform_admin": access.is_platform_admin(request.user) if hasattr(request, "user") else False,
        "shortcuts_on": SimpleLazyObject(lambda: _shortcuts(request)),
    }


def frame(request: HttpRequest, tenant: Any, here: str) -> dict[str, Any]:
    """Context of a page inside a tenant, or of one outside with the tenant used last; None: there is none.

    here: the sidebar entry to mark (overview, jobs, members …).
    """
    if tenant is None:
        return {"tenant": None, "here": here}
    return {
        "tenant": tenant,
        "here": here,
        "live_jobs": live_jobs(tenant),
        "suspension": SimpleLazyObject(lambda: _suspension(tenant)),
        "my_role": access.role_in(request.user, tenant.pk),
        "may_submit": tenant.state == Tenant.State.ACTIVE
        and access.may(request.user, Permission.SUBMIT, tenant.pk),
    }


def last_tenant(request: HttpRequest) -> Any:
    """The tenant whose sidebar a page outside tenants shows: the one used last, while it is still the caller's."""
    user = request.user
    if not isinstance(user, User):
        return None
    slug = user.last_tenant.slug if user.last_tenant else ""
    rows = access.visible_tenants(user)
    return rows.filter(slug=slug).first() or (None if access.is_platform_admin(user) else rows.first())


def _memberships(request: HttpRequest) -> list[Membership]:
    if not getattr(request, "user", None) or not request.user.is_authenticated:
        return []
    return list(access.memberships(request.user).select_related("tenant").order_by("tenant__name"))


def _shortcuts(request: HttpRequest) -> bool:
    """Single-key shortcuts, unless the person has switched them off (WCAG 2.1.4)."""
    return bool(getattr(request.user, "preferences", {}).get("shortcuts", True))


def _suspension(tenant: Tenant) -> AuditEntry | None:
    """Who suspended the tenant, when and why; None while it is active."""
    if tenant.state != Tenant.State.SUSPENDED:
        return None
    return tenant.audit.select_related("actor").filter(action="tenant.suspend").order_by("-pk").first()
