"""The frameworks that jobs can name, and how platform admins add to them without a restart."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.models import Runtime
from jobs.selectors import installation
from jobs.serialization import ReadSerializer
from jobs.services import runtimes as services
from portal.api import paging, permissions
from portal.api.fields import Follows, ShortListQuery, StrictBooleanField, StrictCharField, StrictSerializer
from portal.api.operations import Call, operation


class RuntimeSerializer(ReadSerializer):
    slug = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField(allow_blank=True)
    image = serializers.CharField(allow_blank=True)
    python = serializers.CharField(allow_blank=True, help_text="empty: the platform's own version")
    requirements = serializers.ListField(
        child=serializers.CharField(),
        allow_null=True,
        help_text="null: a runtime that comes with the platform",
    )
    enabled = serializers.BooleanField(help_text="whether new jobs may use it")
    etag = serializers.CharField()

    @staticmethod
    def get_etag(runtime: Runtime, context: object) -> str:
        return services.version(runtime)


EXAMPLE = {
    "slug": "sklearn",
    "title": "scikit-learn",
    "description": "",
    "image": "",
    "python": "",
    "requirements": None,
    "enabled": True,
    "etag": '"f3b1c5a90d2e47f86"',
}
OWN = EXAMPLE | {
    "slug": "vision",
    "title": "Vision",
    "python": "3.12",
    "requirements": ["torchvision", "timm>=1"],
}


@operation(Out=RuntimeSerializer, Query=ShortListQuery, many=True, response_example=EXAMPLE)
def runtime_list(call: Call) -> dict[str, Any]:
    """The frameworks that a job can use."""
    runtimes = [RuntimeSerializer.render(row) for row in installation.runtimes()]
    return paging.whole(call, runtimes, keys=("slug",))


class RuntimeChangeRequest(StrictSerializer):
    title = StrictCharField(max_length=80, required=False)
    description = StrictCharField(max_length=300, required=False, allow_blank=True)
    requirements = serializers.ListField(
        child=StrictCharField(max_length=500, validators=[Follows(services.entry_fault)]),
        required=False,
        max_length=200,
        help_text="as in a job spec",
    )
    python = StrictCharField(
        max_length=8, required=False, allow_blank=True, validators=[Follows(services.python_fault)]
    )
    image = StrictCharField(
        max_length=300, required=False, allow_blank=True, help_text="on a cluster of images only"
    )
    enabled = StrictBooleanField(required=False)


class RuntimeRequest(RuntimeChangeRequest):
    slug = StrictCharField(max_length=40, validators=[Follows(services.slug_fault)])


@operation(
    authorize=permissions.for_admins,
    In=RuntimeRequest,
    Out=RuntimeSerializer,
    status=201,
    location=lambda made: f"/api/v1/runtimes/{made['slug']}",
    request_example={name: OWN[name] for name in ("slug", "title", "requirements", "python")},
    response_example=OWN,
    fails=(409,),
)
def runtime_create(call: Call) -> dict[str, Any]:
    """Add a runtime; platform admins only. Jobs can use it at once; the first of them installs its packages."""
    return _shown(services.runtime_add(user=call.user, values=call.data))


@operation(
    authorize=permissions.for_admins,
    In=RuntimeChangeRequest,
    Out=RuntimeSerializer,
    request_example={"enabled": False},
    response_example=OWN | {"enabled": False},
    fails=(409,),
)
def runtime_change(call: Call, slug: str) -> dict[str, Any]:
    """Change a runtime, or disable it for new jobs; platform admins only. Attempts that run keep what they have."""
    return _shown(
        services.runtime_change(user=call.user, slug=slug, changes=call.data, if_match=call.if_match)
    )


@operation(authorize=permissions.for_admins, status=204, fails=(409,))
def runtime_remove(call: Call, slug: str) -> None:
    """Remove a runtime that no unfinished job uses; platform admins only."""
    services.runtime_remove(user=call.user, slug=slug)


def _shown(runtime: Runtime) -> dict[str, Any]:
    return RuntimeSerializer.render(runtime)
