"""One job shared with one person outside its tenant."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.serialization import ReadSerializer
from jobs.services import sharing
from portal.api import paging, permissions
from portal.api.fields import ShortListQuery, StrictCharField, StrictSerializer
from portal.api.operations import Call, operation

PERMISSIONS = [grant.value for grant in sharing.SharePermission]
SHARE_EXAMPLE = {"username": "bob", "permission": "view"}


class ShareSerializer(ReadSerializer):
    username = serializers.CharField()
    permission = serializers.ChoiceField(PERMISSIONS)


class ShareRequest(StrictSerializer):
    username = StrictCharField(max_length=150)
    permission = serializers.ChoiceField(PERMISSIONS)


@operation(Out=ShareSerializer, Query=ShortListQuery, many=True, response_example=SHARE_EXAMPLE, fails=(403,))
def share_list(call: Call, job_id: str) -> dict[str, Any]:
    """The people outside the tenant who can see or operate this job; for its owner and managers."""
    shares = sharing.shares_of(user=call.user, job_id=job_id)
    return paging.whole(call, [ShareSerializer.render(share) for share in shares], keys=("username",))


@operation(
    authorize=permissions.to_manage,
    In=ShareRequest,
    Out=ShareSerializer,
    status=201,
    request_example=SHARE_EXAMPLE,
    response_example=SHARE_EXAMPLE,
)
def share_add(call: Call, job_id: str) -> dict[str, Any]:
    """Share one job with a person outside its tenant; for its owner and managers. A second share replaces the first."""
    made = sharing.job_share(
        user=call.user,
        job_id=job_id,
        username=call.data["username"],
        permission=sharing.SharePermission(call.data["permission"]),
    )
    return ShareSerializer.render(made)


@operation(status=204)
def share_remove(call: Call, job_id: str, username: str) -> None:
    """Remove a share, effective immediately."""
    sharing.job_unshare(user=call.user, job_id=job_id, username=username)
