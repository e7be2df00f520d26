"""Which container images a tenant's jobs may run."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.serialization import ReadSerializer
from portal.api import permissions
from portal.api.fields import StrictCharField, StrictSerializer
from portal.api.operations import Call, operation
from tenants.models import Tenant
from tenants.services import images as services


class ImagesSerializer(ReadSerializer):
    patterns = serializers.ListField(
        child=serializers.CharField(),
        allow_null=True,
        help_text="the tenant's own; null: the installation's apply",
    )
    applies = serializers.ListField(
        child=serializers.CharField(), help_text="the patterns that count; without one no image is allowed"
    )
    etag = serializers.CharField()


PATTERNS_EXAMPLE = ["registry.example/vision/**", "docker.io/library/python:3.12-slim"]
IMAGES_EXAMPLE = {"patterns": PATTERNS_EXAMPLE, "applies": PATTERNS_EXAMPLE, "etag": '"i0f1f7b3e6a534b7a"'}


@operation(Out=ImagesSerializer, response_example=IMAGES_EXAMPLE)
def images_get(call: Call, t: str) -> dict[str, Any]:
    """Which container images the tenant's jobs may run: its own patterns, or the installation's where it has none."""
    return _shown(permissions.tenant(call, t))


class ImagesRequest(StrictSerializer):
    patterns = serializers.ListField(child=StrictCharField(), allow_null=True)
    reason = StrictCharField(max_length=500)


@operation(
    authorize=permissions.for_admins,
    In=ImagesRequest,
    Out=ImagesSerializer,
    request_example={"patterns": PATTERNS_EXAMPLE, "reason": "Their group maintains these images"},
    response_example=IMAGES_EXAMPLE,
)
def images_set(call: Call, t: str) -> dict[str, Any]:
    """Replace the tenant's own patterns; null follows the installation's, an empty list allows none. Platform admins
    only.

    A pattern is a fully qualified reference in which `*` stands for a part of a name and `/**` at the end for
    everything below; without tag and digest it matches all of them. Jobs that run continue; one that waits for an image
    that is not allowed any more fails at its start.
    """
    changed = services.images_set(
        user=call.user,
        slug=t,
        patterns=call.data["patterns"],
        reason=call.data["reason"],
        if_match=call.if_match,
    )
    return _shown(changed)


def _shown(tenant: Tenant) -> dict[str, Any]:
    applies = list(services.effective_patterns(tenant))
    return ImagesSerializer.render(
        {"patterns": tenant.image_patterns, "applies": applies, "etag": services.etag(tenant)}
    )
