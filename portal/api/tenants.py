"""Tenants, and how platform admins manage them."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.serialization import ReadSerializer, TimestampField
from jobs.services.isolation import require_isolation_for_one_more
from jobs.services.quotas import tenant_edit
from portal.api import paging, permissions
from portal.api.fields import (
    ROLES,
    TENANT_STATES,
    PagedQuery,
    StrictCharField,
)
from portal.api.operations import Call, operation
from portal.api.quotas import WholeTermsRequest
from tenants import access
from tenants.models import Tenant
from tenants.services import tenants as services


class TenantSerializer(ReadSerializer):
    slug = serializers.CharField()
    name = serializers.CharField()
    state = serializers.ChoiceField(TENANT_STATES)
    role = serializers.ChoiceField(ROLES, allow_null=True)
    permissions = serializers.ListField(child=serializers.CharField())
    priorities = serializers.ListField(child=serializers.CharField())
    jobs_limit = serializers.IntegerField(allow_null=True, help_text="concurrent jobs; null: no limit")
    jobs_used = serializers.IntegerField()
    user_jobs_limit = serializers.IntegerField(
        allow_null=True, help_text="concurrent jobs of one user; null: no limit"
    )
    max_time_s = serializers.IntegerField(
        allow_null=True, help_text="longest time_limit of a job, in seconds; null: none is needed"
    )
    budget_gpu_hours = serializers.FloatField(
        allow_null=True, help_text="of each calendar month (UTC); null: no budget"
    )
    budget_is_hard = serializers.BooleanField(
        help_text="true: GPU jobs stop when it is used up; false: it only warns"
    )
    cohort = serializers.CharField(
        allow_blank=True, help_text="tenants with the same one lend each other slots; empty: none"
    )
    created_at = TimestampField()
    etag = serializers.CharField()

    @staticmethod
    def get_role(tenant: Tenant, call: Call) -> str | None:
        return access.role_in(call.user, tenant.pk)

    @staticmethod
    def get_permissions(tenant: Tenant, call: Call) -> list[str]:
        return sorted(access.permissions_in(call.user, tenant.pk))

    @staticmethod
    def get_etag(tenant: Tenant, call: Call) -> str:
        return services.version(tenant)


TENANT_EXAMPLE = {
    "slug": "vision-lab",
    "name": "Vision Lab",
    "state": "active",
    "role": "researcher",
    "permissions": ["submit", "view"],
    "priorities": ["low", "normal", "high"],
    "jobs_limit": None,
    "jobs_used": 3,
    "user_jobs_limit": None,
    "max_time_s": 172800,
    "budget_gpu_hours": 5000.0,
    "budget_is_hard": True,
    "cohort": "research",
    "created_at": "2026-11-21T09:00:00.000Z",
    "etag": '"t17"',
}


@operation(Out=TenantSerializer, Query=PagedQuery, many=True, response_example=TENANT_EXAMPLE)
def tenant_list(call: Call) -> dict[str, Any]:
    """The caller's tenants by slug; all tenants for platform admins."""
    tenants = services.with_versions(access.visible_tenants(call.user))
    access.read_roles(call.user, tenants)
    return paging.page(
        call,
        tenants,
        lambda each: TenantSerializer.render(each, call),
        keys=("slug",),
    )


@operation(Out=TenantSerializer, response_example=TENANT_EXAMPLE)
def tenant_get(call: Call, t: str) -> dict[str, Any]:
    """One tenant."""
    return TenantSerializer.render(permissions.tenant(call, t), call)


class TenantSettings(WholeTermsRequest):
    priorities = serializers.ListField(
        child=StrictCharField(max_length=12), required=False, min_length=1, max_length=4
    )
    reason = StrictCharField(max_length=500)


class TenantRequest(TenantSettings):
    slug = StrictCharField(max_length=40)
    name = StrictCharField(max_length=120)


@operation(
    authorize=permissions.for_admins,
    In=TenantRequest,
    Out=TenantSerializer,
    status=201,
    location=lambda made: f"/api/v1/tenants/{made['slug']}",
    request_example={"slug": "speech", "name": "Speech", "reason": "New group of the institute"},
    response_example=TENANT_EXAMPLE,
)
def tenant_create(call: Call) -> dict[str, Any]:
    """Create a tenant; platform admins only. It has no quota until one is set.

    409 `tenants_not_isolated`: programs of tenants could reach each other on this cluster.
    """
    require_isolation_for_one_more()
    settings = {key: call.data[key] for key in services.EDITABLE if key in call.data and key != "name"}
    made = services.tenant_create(
        user=call.user,
        slug=call.data["slug"],
        name=call.data["name"],
        reason=call.data["reason"],
        settings=settings,
    )
    return TenantSerializer.render(made, call)


class TenantChangeRequest(TenantSettings):
    name = StrictCharField(max_length=120, required=False)
    state = serializers.ChoiceField(TENANT_STATES, required=False)


@operation(
    authorize=permissions.for_admins,
    In=TenantChangeRequest,
    Out=TenantSerializer,
    request_example={"state": "suspended", "reason": "Contract ended"},
    response_example=TENANT_EXAMPLE,
)
def tenant_change(call: Call, t: str) -> dict[str, Any]:
    """Rename, suspend or reopen a tenant, or change its priorities, its limits of concurrent jobs and of
    their time, its GPU-hour budget, or its cohort; platform admins only.

    In a suspended tenant, jobs cannot be submitted, started or resumed. Running jobs continue and can be halted.
    """
    changes = dict(call.data)
    reason = changes.pop("reason")
    changed = tenant_edit(user=call.user, slug=t, changes=changes, reason=reason, if_match=call.if_match)
    return TenantSerializer.render(changed, call)
