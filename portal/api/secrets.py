"""Secrets of a tenant and of the caller: set and deleted, never read. The value is in the body of a PUT only."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.selectors.secrets import Users, users_of_own, users_of_tenant
from jobs.serialization import ReadSerializer, TimestampField
from portal.api import paging, permissions
from portal.api.fields import PagedQuery, StrictCharField, StrictSerializer
from portal.api.operations import Call, operation
from tenants import audit
from tenants.models import Secret
from tenants.roles import Permission
from tenants.services import secrets

USED_BY = "ids of the jobs that name it and have not ended, newest first"


class SecretSerializer(ReadSerializer):
    name = serializers.CharField()
    updated_at = TimestampField()
    updated_by = serializers.CharField(allow_null=True, source="updated_by.username")
    used_by = serializers.ListField(child=serializers.CharField(), help_text=USED_BY)
    etag = serializers.CharField()

    @staticmethod
    def get_used_by(row: Secret, users: Users) -> list[str]:
        return [job.id for job in users.get(row.name, ())]

    @staticmethod
    def get_etag(row: Secret, users: object) -> str:
        return secrets.version(row)


class SecretRequest(StrictSerializer):
    repeats_values = False

    value = StrictCharField(
        write_only=True,
        trim_whitespace=False,
        allow_blank=True,  # the service says how long it must be
        help_text=f"{secrets.LEAST_BYTES} to {secrets.MOST_BYTES} bytes of UTF-8; it cannot be read again",
    )


REQUEST_EXAMPLE = {"value": "the key that the service gave you"}
SECRET_EXAMPLE = {
    "name": "wandb",
    "updated_at": "2026-11-21T09:00:00.000Z",
    "updated_by": "dave",
    "used_by": ["3f9k2m7qx4ta"],
    "etag": '"12-64a1f0c2b7d40"',
}
OWN_EXAMPLE = SECRET_EXAMPLE | {"updated_by": "alice"}


@operation(Out=SecretSerializer, Query=PagedQuery, many=True, response_example=SECRET_EXAMPLE, fails=(403,))
def secret_list(call: Call, t: str) -> dict[str, Any]:
    """The tenant's secrets by name, without their values; for researchers and managers."""
    tenant = permissions.tenant(call, t)
    rows = secrets.secrets_of(call.user, tenant)
    audit.admin_read(
        user=call.user, tenant_id=tenant.pk, action="secret.list", target=tenant.slug, reason=call.reason
    )
    users = users_of_tenant(tenant)
    return paging.page(call, rows, lambda row: SecretSerializer.render(row, users), keys=("name",))


@operation(
    authorize=permissions.into_tenant(Permission.MANAGE_SECRETS),
    In=SecretRequest,
    Out=SecretSerializer,
    request_example=REQUEST_EXAMPLE,
    response_example=SECRET_EXAMPLE,
    fails=(503,),
)
def secret_set(call: Call, t: str, name: str) -> dict[str, Any]:
    """Create or replace a secret of the tenant; managers only. Jobs that are launched from now on get this value."""
    row = secrets.secret_set(
        user=call.user, tenant=call.found, name=name, value=call.data["value"], if_match=call.if_match
    )
    return SecretSerializer.render(row, users_of_tenant(call.found))


@operation(authorize=permissions.into_tenant(Permission.MANAGE_SECRETS), status=204, fails=(412,))
def secret_delete(call: Call, t: str, name: str) -> None:
    """Delete a secret of the tenant; managers only. A waiting job that names it will fail when it is launched."""
    secrets.secret_delete(user=call.user, tenant=call.found, name=name, if_match=call.if_match)


@operation(Out=SecretSerializer, Query=PagedQuery, many=True, response_example=OWN_EXAMPLE)
def own_list(call: Call) -> dict[str, Any]:
    """The caller's own secrets by name, without their values. They are used in the caller's own jobs only."""
    users = users_of_own(call.user)
    rows = secrets.own_secrets(call.user)
    return paging.page(call, rows, lambda row: SecretSerializer.render(row, users), keys=("name",))


@operation(
    In=SecretRequest,
    Out=SecretSerializer,
    request_example=REQUEST_EXAMPLE,
    response_example=OWN_EXAMPLE,
    fails=(403, 503),
)
def own_set(call: Call, name: str) -> dict[str, Any]:
    """Create or replace one of your own secrets. In your jobs it wins over a tenant's secret of the same name."""
    row = secrets.secret_set(user=call.user, name=name, value=call.data["value"], if_match=call.if_match)
    return SecretSerializer.render(row, users_of_own(call.user))


@operation(status=204, fails=(403, 412))
def own_delete(call: Call, name: str) -> None:
    """Delete one of your own secrets. A waiting job that names it then gets the tenant's of that name, or fails."""
    secrets.secret_delete(user=call.user, name=name, if_match=call.if_match)
