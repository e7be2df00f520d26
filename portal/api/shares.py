"""One job shared with one person outside its tenant."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.services import sharing
from portal.api import paging, permissions
from portal.api.fields import Short, Strict, Text
from portal.api.operations import Call, operation

PERMISSIONS = [grant.value for grant in sharing.Grant]
SHARE_EXAMPLE = {"username": "bob", "permission": "view"}


class ShareOut(serializers.Serializer[Any]):
    username = serializers.CharField()
    permission = serializers.ChoiceField(PERMISSIONS)


class ShareIn(Strict):
    username = Text(max_length=150)
    permission = serializers.ChoiceField(PERMISSIONS)


@operation(Out=ShareOut, Query=Short, many=True, tell=SHARE_EXAMPLE, fails=(403,))
def share_list(call: Call, job_id: str) -> dict[str, Any]:
    """Who outside the tenant may see or operate this job; for its owner and managers."""
    shares = sharing.shares_of(user=call.user, job_id=job_id)
    return paging.whole(call, [_view(share) for share in shares], keys=("username",))


@operation(
    authorize=permissions.to_decide,
    In=ShareIn,
    Out=ShareOut,
    status=201,
    ask=SHARE_EXAMPLE,
    tell=SHARE_EXAMPLE,
)
def share_add(call: Call, job_id: str) -> dict[str, Any]:
    """Share one job with somebody outside its tenant; its owner or a manager. A second share replaces the first."""
    made = sharing.job_share(
        user=call.user,
        job_id=job_id,
        username=call.data["username"],
        permission=sharing.Grant(call.data["permission"]),
    )
    return _view(made)


@operation(status=204)
def share_remove(call: Call, job_id: str, username: str) -> None:
    """Take a share back; it ends at once."""
    sharing.job_unshare(user=call.user, job_id=job_id, username=username)


def _view(share: sharing.Share) -> dict[str, Any]:
    return {"username": share.username, "permission": share.permission.value}
