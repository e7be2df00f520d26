"""Browser sessions: the caller's own, and for platform admins those of any user."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rest_framework import serializers

from jobs.serialization import ReadSerializer, TimestampField
from portal.api import paging, permissions
from portal.api.errors import NotFoundError
from portal.api.fields import ShortListQuery, StrictSerializer
from portal.api.operations import Call, operation
from tenants.models import User
from tenants.services import sessions, users
from tenants.sessions import row_key


class SessionSerializer(ReadSerializer):
    id = serializers.CharField()
    started_at = TimestampField(help_text="when it was signed in")
    seen_at = TimestampField(help_text="last use, to the minute")
    expires_at = TimestampField(help_text="if it is not used before")
    address = serializers.CharField(allow_null=True, help_text="that signed in")
    agent = serializers.CharField(allow_blank=True, help_text="the User-Agent that signed in")
    current = serializers.BooleanField(help_text="whether this request came with it")


class EndedSerializer(ReadSerializer):
    sessions = serializers.IntegerField(help_text="that were ended")
    tokens = serializers.IntegerField(help_text="that were revoked")


class EndQuery(StrictSerializer):
    tokens = serializers.BooleanField(
        required=False, default=False, help_text="true: revoke API tokens, too; the caller's own stays"
    )


EXAMPLE = {
    "id": "9f86d081884c7d65",
    "started_at": "2026-11-21T09:00:00.000Z",
    "seen_at": "2026-11-21T11:20:00.000Z",
    "expires_at": "2026-11-28T11:20:00.000Z",
    "address": "192.0.2.17",
    "agent": "Mozilla/5.0 (X11; Linux x86_64) Chrome/140.0.0.0",
    "current": True,
}
ENDED_EXAMPLE = {"sessions": 2, "tokens": 0}


@operation(Out=SessionSerializer, Query=ShortListQuery, many=True, response_example=EXAMPLE, fails=(403,))
def own_session_list(call: Call) -> dict[str, Any]:
    """Your browser sessions, the last used first; not with a token that is limited to a tenant or a role."""
    return _listed(call, call.user)


@operation(
    authorize=permissions.by_fresh_session,
    Out=EndedSerializer,
    Query=EndQuery,
    response_example=ENDED_EXAMPLE,
    fails=(403,),
)
def own_sessions_end(call: Call) -> dict[str, Any]:
    """End all of your sessions but the one of this request. With `tokens=true` your API tokens are revoked, too, but
    the one of this request. 403 `proof_required` in a session whose user gave no proof within ten minutes."""
    return _ended(call, call.user)


@operation(Out=SessionSerializer, response_example=EXAMPLE, fails=(403,))
def own_session_read(call: Call, session_id: str) -> dict[str, Any]:
    """One of your browser sessions."""
    found = sessions.sessions_of(user=call.user, owner=call.user, current=current(call))
    one = next((each for each in found if each.id == session_id), None)
    if one is None:
        raise NotFoundError
    return SessionSerializer.render(one)


@operation(authorize=permissions.by_fresh_session, status=204, fails=(403,))
def own_session_end(call: Call, session_id: str) -> None:
    """End one of your sessions, effective immediately. 403 `proof_required` as when all are ended."""
    sessions.session_end(user=call.user, owner=call.user, session_id=session_id)


@operation(
    Out=SessionSerializer,
    Query=ShortListQuery,
    many=True,
    response_example=EXAMPLE | {"current": False},
    fails=(403,),
)
def user_session_list(call: Call, username: str) -> dict[str, Any]:
    """A user's browser sessions; platform admins only."""
    return _listed(call, users.user_get(user=call.user, username=username))


@operation(
    authorize=permissions.for_admins_on_user,
    Out=EndedSerializer,
    Query=EndQuery,
    response_example=ENDED_EXAMPLE,
    fails=(403,),
)
def user_sessions_end(call: Call, username: str) -> dict[str, Any]:
    """End all sessions of a user, with `tokens=true` also their API tokens; platform admins only. What the request
    itself came with stays."""
    return _ended(call, call.found)


@operation(authorize=permissions.for_admins_on_user, status=204, fails=(403,))
def user_session_end(call: Call, username: str, session_id: str) -> None:
    """End one session of a user, effective immediately; platform admins only."""
    sessions.session_end(user=call.user, owner=call.found, session_id=session_id)


def _listed(call: Call, owner: User) -> dict[str, Any]:
    found = sessions.sessions_of(user=call.user, owner=owner, current=current(call))
    return paging.whole(call, [SessionSerializer.render(each) for each in found], keys=("id",))


def _ended(call: Call, owner: User) -> dict[str, Any]:
    return asdict(
        sessions.sessions_end(
            user=call.user, owner=owner, keep=current(call), tokens=bool(call.query["tokens"])
        )
    )


def current(call: Call) -> str | None:
    """The key of the row of the session that this request came with; None with a token."""
    return None if call.user.token else row_key(call.request._request.session)
