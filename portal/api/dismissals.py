"""Failures that the caller has dismissed from what needs attention on their overview."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.selectors.dismissals import dismissals_of
from jobs.serialization import ReadSerializer, TimestampField
from jobs.services import dismissals
from portal.api import paging, permissions
from portal.api.fields import PagedQuery, StrictSerializer
from portal.api.operations import Call, operation
from tenants.roles import Permission

DISMISSAL = {
    "job": "3f9k2m7qx4ta",
    "dismissed_at": "2026-11-29T10:03:07.000Z",
}


class DismissalSerializer(ReadSerializer):
    job = serializers.CharField(source="job_id")
    dismissed_at = TimestampField()


class DismissedSerializer(ReadSerializer):
    dismissed = serializers.IntegerField(help_text="failures that were not dismissed before")


class DismissRequest(StrictSerializer):
    until = serializers.DateTimeField(
        required=False, help_text="only what failed by then, such as what you have seen; without a zone UTC"
    )


@operation(Out=DismissalSerializer, Query=PagedQuery, many=True, response_example=DISMISSAL)
def dismissal_list(call: Call, t: str) -> dict[str, Any]:
    """The failures in this tenant that you have dismissed, the newest dismissal first. Others still see them."""
    rows = dismissals_of(call.user, permissions.tenant(call, t))
    return paging.page(call, rows, DismissalSerializer.render, keys=("-pk",))


@operation(
    authorize=permissions.into_tenant(Permission.VIEW),
    In=DismissRequest,
    Out=DismissedSerializer,
    request_example={"until": "2026-11-29T10:00:00Z"},
    response_example={"dismissed": 11},
)
def dismissal_of_all(call: Call, t: str) -> dict[str, Any]:
    """Dismiss all failures of the last 24 hours in this tenant from what needs your attention."""
    made = dismissals.failures_dismiss(user=call.user, tenant=call.found, until=call.data.get("until"))
    return DismissedSerializer.render({"dismissed": len(made)})


@operation(authorize=permissions.into_tenant(Permission.VIEW), status=204)
def restore_all(call: Call, t: str) -> None:
    """Take back all of your dismissals in this tenant."""
    dismissals.failures_restore(user=call.user, tenant=call.found)


@operation(authorize=permissions.to_see, Out=DismissalSerializer, response_example=DISMISSAL, fails=(409,))
def dismissal_set(call: Call, job_id: str) -> dict[str, Any]:
    """Dismiss a job's failure from what needs your attention; for all who can see the job. A repeat changes nothing."""
    return DismissalSerializer.render(dismissals.failure_dismiss(user=call.user, job_id=job_id))


@operation(authorize=permissions.to_see, status=204)
def dismissal_remove(call: Call, job_id: str) -> None:
    """Take your dismissal of a job's failure back."""
    dismissals.failure_restore(user=call.user, job_id=job_id)
