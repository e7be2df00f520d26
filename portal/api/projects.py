"""The projects of a tenant: what they have and use, and changes of that."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from rest_framework import serializers

from jobs.selectors import project_effects
from jobs.serialization import ReadSerializer, TimestampField
from jobs.services.projects import projects_change, projects_undo
from portal.api import paging, permissions
from portal.api.fields import (
    PagedQuery,
    ShortListQuery,
    StrictCharField,
    StrictIntegerField,
    StrictSerializer,
)
from portal.api.operations import Call, operation
from portal.api.quotas import CHANGE_SETS_A_MINUTE, AffectedJobSerializer, ReasonRequest
from tenants.errors import NotFound
from tenants.roles import Permission
from tenants.services.projects import MAX_CHANGES, WHOLE, Change, ChangeSet
from tenants.services.quotas import MAX_LIMIT, MAX_WEIGHT


class ProjectShareSerializer(ReadSerializer):
    gpu_type = serializers.CharField()
    guarantee = serializers.IntegerField(help_text="slots for which the project comes first in its tenant")
    limit = serializers.IntegerField(allow_null=True, help_text="the most that its jobs hold; null: no limit")
    used = serializers.IntegerField(help_text="slots that its jobs hold now")


class ProjectSerializer(ReadSerializer):
    slug = serializers.CharField(help_text="what jobs name in `project`")
    weight = serializers.IntegerField()
    shares = ProjectShareSerializer(many=True)


@operation(
    Out=ProjectSerializer,
    Query=ShortListQuery,
    many=True,
    response_example={
        "slug": "vision",
        "weight": 2,
        "shares": [{"gpu_type": "a100", "guarantee": 8, "limit": 12, "used": 6}],
    },
)
def project_list(call: Call, t: str) -> dict[str, Any]:
    """The tenant's projects: how they divide its quota, and what their jobs hold."""
    found = [
        ProjectSerializer.render(each)
        for each in project_effects.projects_status(permissions.tenant(call, t))
    ]
    return paging.whole(call, found, keys=("slug",))


class ProjectChangeRequest(StrictSerializer):
    """With an empty gpu_type the weight, which makes a project that does not exist; null removes it. With a type its
    guarantee and limit. What is not sent stays as it is. The if_ fields: apply only while it is this."""

    project = StrictCharField(max_length=40)
    gpu_type = StrictCharField(max_length=40, allow_blank=True)
    weight = StrictIntegerField(required=False, allow_null=True, min_value=1, max_value=MAX_WEIGHT)
    guarantee = StrictIntegerField(required=False, max_value=MAX_LIMIT)
    limit = StrictIntegerField(required=False, allow_null=True, min_value=1, max_value=MAX_LIMIT)
    if_weight = StrictIntegerField(required=False, allow_null=True)
    if_guarantee = StrictIntegerField(required=False)
    if_limit = StrictIntegerField(required=False, allow_null=True)

    def wrong_names(self, data: Any) -> dict[str, list[serializers.ErrorDetail]]:
        wrong = super().wrong_names(data)
        if not hasattr(data, "keys"):
            return wrong
        whole = data.get("gpu_type") == WHOLE
        others = ("guarantee", "limit") if whole else ("weight",)
        text = (
            "Is set for each slot type." if whole else "Is of the project as a whole: gpu_type must be empty."
        )
        for name in (*others, *(f"if_{name}" for name in others)):
            if name in data:
                wrong[name] = [serializers.ErrorDetail(text, code="wrong_scope")]
        return wrong


class ProjectChangesRequest(ReasonRequest):
    changes = serializers.ListField(child=ProjectChangeRequest(), min_length=1, max_length=MAX_CHANGES)


class AppliedSerializer(ReadSerializer):
    project = serializers.CharField()
    gpu_type = serializers.CharField(allow_blank=True)
    terms = serializers.DictField(help_text="what changed: [before, after]")


class OverSerializer(ReadSerializer):
    project = serializers.CharField()
    gpu_type = serializers.CharField()
    limit = serializers.IntegerField()
    used = serializers.IntegerField(help_text="what its jobs hold until they end; none is stopped")


class ProjectEffectsSerializer(ReadSerializer):
    over = OverSerializer(many=True)
    starts = AffectedJobSerializer(many=True)
    waits = AffectedJobSerializer(many=True)


class ProjectChangesSerializer(ReadSerializer):
    change_set = serializers.UUIDField(
        allow_null=True, help_text="null for a dry run, and where nothing changed"
    )
    dry_run = serializers.BooleanField()
    changes = AppliedSerializer(many=True)
    effects = ProjectEffectsSerializer()


Apply = Callable[[bool], ChangeSet]
"""(dry_run) -> the set that was made, or would be."""


Prepared = tuple[Apply, project_effects.Tried]


def _tried(call: Call, apply: Apply) -> Prepared:
    """What is wrong is refused before anything is planned."""
    return apply, project_effects.tried(call.found, apply(True))


def _try_changes(call: Call, t: str) -> Prepared:
    names = ("weight", "guarantee", "limit")
    changes = [
        Change(
            each["project"],
            each["gpu_type"],
            {name: each[name] for name in names if name in each},
            {name: each[f"if_{name}"] for name in names if f"if_{name}" in each},
        )
        for each in call.data["changes"]
    ]

    def apply(dry_run: bool) -> ChangeSet:
        return projects_change(
            user=call.user, tenant=call.found, changes=changes, reason=call.data["reason"], dry_run=dry_run
        )

    return _tried(call, apply)


def _try_undo(call: Call, t: str, change_set: str) -> Prepared:
    number = _uuid(change_set)

    def apply(dry_run: bool) -> ChangeSet:
        return projects_undo(
            user=call.user, tenant=call.found, change_set=number, reason=call.data["reason"], dry_run=dry_run
        )

    return _tried(call, apply)


@operation(
    authorize=permissions.into_tenant(Permission.MANAGE_PROJECTS),
    prepare=_try_changes,
    In=ProjectChangesRequest,
    Out=ProjectChangesSerializer,
    request_example={
        "changes": [
            {"project": "vision", "gpu_type": "", "weight": 2},
            {"project": "vision", "gpu_type": "a100", "guarantee": 8, "limit": 12},
        ],
        "reason": "The vision team has a deadline",
        "dry_run": True,
    },
    per_minute=CHANGE_SETS_A_MINUTE,
    fails=(409,),
)
def project_changes(call: Call, t: str) -> dict[str, Any]:
    """Make, change and remove projects, all or none; managers of the tenant and platform admins. With dry_run nothing
    is set; the response has the effects on the tenant's jobs.

    All guarantees for a type together are at most the tenant's limit. Nothing that runs is stopped.
    """
    return _applied(call)


@operation(
    authorize=permissions.into_tenant(Permission.MANAGE_PROJECTS),
    prepare=_try_undo,
    In=ReasonRequest,
    Out=ProjectChangesSerializer,
    request_example={"reason": "The deadline is over"},
    per_minute=CHANGE_SETS_A_MINUTE,
    fails=(409,),
)
def project_undo(call: Call, t: str, change_set: str) -> dict[str, Any]:
    """Set back everything that this set changed, as a set of its own; managers of the tenant and platform admins.

    Refused if any of it has changed since.
    """
    return _applied(call)


def _uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise NotFound from None


class ProjectHistorySerializer(ReadSerializer):
    id = serializers.IntegerField(source="pk")
    project = serializers.CharField()
    gpu_type = serializers.CharField(allow_blank=True, help_text="empty: of the project as a whole")
    terms = serializers.DictField(
        help_text="guarantee and limit, or weight, as far as they changed: [before, after]; a weight of null: there is"
        " no such project"
    )
    reason = serializers.CharField()
    actor = serializers.CharField(allow_null=True, source="actor.username")
    change_set = serializers.UUIDField(help_text="the changes that were applied together")
    at = TimestampField()


@operation(
    Out=ProjectHistorySerializer,
    Query=PagedQuery,
    many=True,
    response_example={
        "id": 3,
        "project": "vision",
        "gpu_type": "a100",
        "terms": {"guarantee": [0, 8]},
        "reason": "The vision team has a deadline",
        "actor": "alice",
        "change_set": "0f1f7b3e-6a53-4b7a-9a0e-6b8a2b8a2f11",
        "at": "2026-11-21T09:00:00.000Z",
    },
)
def project_change_list(call: Call, t: str) -> dict[str, Any]:
    """Every change of the tenant's projects, newest first."""
    rows = permissions.tenant(call, t).project_changes.select_related("actor")
    return paging.page(call, rows, ProjectHistorySerializer.render, keys=("-pk",))


def _applied(call: Call) -> dict[str, Any]:
    apply, tried = call.prepared
    made, effects = tried.made, tried.effects
    if not call.data["dry_run"]:
        made = apply(False)
        effects = tried.effects_of(made)
    over = [
        {"project": slug, "gpu_type": share.gpu_type, "limit": share.limit, "used": share.used}
        for slug, share in effects.over
    ]
    return ProjectChangesSerializer.render(
        {
            "change_set": made.id,
            "dry_run": call.data["dry_run"],
            "changes": made.changes,
            "effects": {"over": over, "starts": effects.starts, "waits": effects.waits},
        }
    )
