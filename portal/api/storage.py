"""How many bytes a tenant stores, and may store."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs import storage
from jobs.serialization import ReadSerializer
from portal.api import permissions
from portal.api.fields import StrictCharField, StrictIntegerField, StrictSerializer
from portal.api.operations import Call, operation
from tenants.models import Tenant
from tenants.services import storage as services


class ByKindSerializer(ReadSerializer):
    logs = serializers.IntegerField(help_text="as printed; they are compressed on the disk")
    metrics = serializers.IntegerField(help_text="250 for each point")
    checkpoints = serializers.IntegerField()
    results = serializers.IntegerField()
    code = serializers.IntegerField()


class StorageSerializer(ReadSerializer):
    limit_bytes = serializers.IntegerField(allow_null=True, help_text="null: no limit")
    used_bytes = serializers.IntegerField(help_text="may be above a limit that was lowered")
    by = ByKindSerializer(help_text="bytes that are stored once for several uses count for the first")
    etag = serializers.CharField(help_text="of the limit")


STORAGE_EXAMPLE = {
    "limit_bytes": 1_099_511_627_776,
    "used_bytes": 52_613_349_376,
    "by": {
        "logs": 1_073_741_824,
        "metrics": 268_435_456,
        "checkpoints": 48_318_382_080,
        "results": 2_684_354_560,
        "code": 268_435_456,
    },
    "etag": '"s0f1f7b3e6a534b7a"',
}


@operation(Out=StorageSerializer, response_example=STORAGE_EXAMPLE)
def storage_get(call: Call, t: str) -> dict[str, Any]:
    """How many bytes the tenant stores, by kind, and its limit.

    A file counts once per tenant, from the moment that a program offers it until it is removed, which is up to an hour
    after its last use.
    """
    return _shown(permissions.tenant(call, t))


class StorageRequest(StrictSerializer):
    limit_bytes = StrictIntegerField(
        allow_null=True, max_value=services.MAX_LIMIT, help_text="null: no limit"
    )
    reason = StrictCharField(max_length=500)


@operation(
    authorize=permissions.for_admins,
    In=StorageRequest,
    Out=StorageSerializer,
    request_example={"limit_bytes": 1_099_511_627_776, "reason": "Second half of the grant"},
    response_example=STORAGE_EXAMPLE,
)
def storage_set(call: Call, t: str) -> dict[str, Any]:
    """Set the tenant's limit; null removes it. Platform admins only. A limit below what is stored removes nothing."""
    changed = services.storage_set(
        user=call.user,
        slug=t,
        limit_bytes=call.data["limit_bytes"],
        reason=call.data["reason"],
        if_match=call.if_match,
    )
    return _shown(changed)


def _shown(tenant: Tenant) -> dict[str, Any]:
    used = storage.used_by(tenant.pk)
    return StorageSerializer.render(
        {
            "limit_bytes": tenant.storage_limit,
            "used_bytes": sum(used.values()),
            "by": {kind.value: size for kind, size in used.items()},
            "etag": services.etag(tenant),
        }
    )
