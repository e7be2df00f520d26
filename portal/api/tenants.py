"""Tenants, and what platform admins do with them."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from portal.api import paging, permissions
from portal.api.fields import Moment, Paged, Strict, Text, Whole
from portal.api.operations import Call, operation
from tenants import access
from tenants.models import Tenant
from tenants.roles import Permission, Role
from tenants.services import tenants as services


class TenantOut(serializers.Serializer[Any]):
    slug = serializers.CharField()
    name = serializers.CharField()
    state = serializers.ChoiceField(["active", "suspended"])
    role = serializers.ChoiceField([role.value for role in Role], allow_null=True)
    permissions = serializers.ListField(child=serializers.CharField())
    priorities = serializers.ListField(child=serializers.CharField())
    jobs_limit = serializers.IntegerField(allow_null=True, help_text="live jobs at once; null: no limit")
    jobs_used = serializers.IntegerField()
    created_at = Moment()
    etag = serializers.CharField()


TENANT_EXAMPLE = {
    "slug": "vision-lab",
    "name": "Vision Lab",
    "state": "active",
    "role": "researcher",
    "permissions": ["submit", "view"],
    "priorities": ["low", "normal", "high"],
    "jobs_limit": None,
    "jobs_used": 3,
    "created_at": "2026-11-21T09:00:00.000Z",
    "etag": '"t17"',
}


@operation(Out=TenantOut, Query=Paged, many=True, tell=TENANT_EXAMPLE)
def tenant_list(call: Call) -> dict[str, Any]:
    """The caller's tenants, by slug. A platform admin sees all."""
    return paging.page(
        call, access.visible_tenants(call.user), lambda each: tenant_view(call, each), keys=("slug",)
    )


@operation(Out=TenantOut, tell=TENANT_EXAMPLE)
def tenant_get(call: Call, t: str) -> dict[str, Any]:
    """One tenant."""
    return tenant_view(call, permissions.tenant(call, t))


class TenantIn(Strict):
    slug = Text(max_length=40)
    name = Text(max_length=120)
    priorities = serializers.ListField(child=Text(max_length=12), required=False, min_length=1, max_length=4)
    jobs_limit = Whole(required=False, allow_null=True, max_value=1_000_000)
    reason = Text(max_length=500)


@operation(
    authorize=permissions.for_admins,
    In=TenantIn,
    Out=TenantOut,
    status=201,
    location=lambda made: f"/api/v1/tenants/{made['slug']}",
    ask={"slug": "speech", "name": "Speech", "reason": "New group of the institute"},
    tell=TENANT_EXAMPLE,
)
def tenant_create(call: Call) -> dict[str, Any]:
    """Create a tenant; platform admins only. It has no quota until one is set."""
    settings = {key: call.data[key] for key in ("priorities", "jobs_limit") if key in call.data}
    made = services.tenant_create(
        user=call.user,
        slug=call.data["slug"],
        name=call.data["name"],
        reason=call.data["reason"],
        settings=settings,
    )
    return tenant_view(call, made)


class TenantChange(Strict):
    name = Text(max_length=120, required=False)
    state = serializers.ChoiceField(["active", "suspended"], required=False)
    priorities = serializers.ListField(child=Text(max_length=12), required=False, min_length=1, max_length=4)
    jobs_limit = Whole(required=False, allow_null=True, max_value=1_000_000)
    reason = Text(max_length=500)


@operation(
    authorize=permissions.for_admins,
    In=TenantChange,
    Out=TenantOut,
    ask={"state": "suspended", "reason": "Contract ended"},
    tell=TENANT_EXAMPLE,
)
def tenant_change(call: Call, t: str) -> dict[str, Any]:
    """Rename, suspend or resume a tenant, or change its priorities or job limit; platform admins only.

    A suspended tenant starts and submits nothing new. What runs goes on and may be halted.
    """
    changes = dict(call.data)
    reason = changes.pop("reason")
    changed = services.tenant_change(
        user=call.user, slug=t, changes=changes, reason=reason, if_match=call.if_match
    )
    return tenant_view(call, changed)


class AuditOut(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    at = Moment()
    actor = serializers.CharField(allow_null=True)
    action = serializers.CharField()
    target = serializers.CharField(allow_blank=True)
    reason = serializers.CharField(allow_blank=True)
    details = serializers.DictField()
    request_id = serializers.CharField(allow_blank=True)


@operation(Out=AuditOut, Query=Paged, many=True, fails=(403,))
def audit_list(call: Call, t: str) -> dict[str, Any]:
    """Who changed what in this tenant, and what platform admins read in it; for its managers, newest first."""
    tenant = permissions.tenant(call, t, Permission.MANAGE_MEMBERS)
    return paging.page(
        call,
        tenant.audit.select_related("actor"),
        lambda row: {
            "id": row.pk,
            "at": row.at,
            "actor": row.actor.get_username() if row.actor else None,
            "action": row.action,
            "target": row.target,
            "reason": row.reason,
            "details": row.details,
            "request_id": row.request_id,
        },
        keys=("-pk",),
    )


def tenant_view(call: Call, tenant: Tenant) -> dict[str, Any]:
    return {
        "slug": tenant.slug,
        "name": tenant.name,
        "state": tenant.state,
        "role": access.role_in(call.user, tenant.pk),
        "permissions": sorted(access.permissions_in(call.user, tenant.pk)),
        "priorities": tenant.priorities,
        "jobs_limit": tenant.jobs_limit,
        "jobs_used": tenant.jobs_used,
        "created_at": tenant.created_at,
        "etag": services.version(tenant),
    }
