"""The installation's users, for platform admins. A new or reset user gets a one-time password, shown once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rest_framework import serializers

from jobs.serialization import ReadSerializer, TimestampField
from portal.api import paging, permissions
from portal.api.fields import Follows, PagedQuery, StrictBooleanField, StrictCharField, StrictSerializer
from portal.api.operations import Call, operation
from tenants.models import OneTimePassword, User
from tenants.services import users
from tenants.services.users import LENGTHS, Invited

STATES = ("active", "invited", "expired", "disabled")
STATE_TEXT = "invited: has not set a password yet; expired: the one-time password has, so reset it"


class UserMembershipSerializer(ReadSerializer):
    tenant = serializers.CharField(source="tenant.slug")
    role = serializers.CharField()


class UserSerializer(ReadSerializer):
    username = serializers.CharField()
    email = serializers.CharField(allow_blank=True)
    first_name = serializers.CharField(allow_blank=True)
    last_name = serializers.CharField(allow_blank=True)
    is_platform_admin = serializers.BooleanField(source="is_superuser")
    state = serializers.ChoiceField(STATES, help_text=STATE_TEXT)
    two_factor = serializers.BooleanField(
        source="has_two_factor", help_text="whether a second factor is set up, which a sign-in then takes"
    )
    tenants = UserMembershipSerializer(many=True)
    created_at = TimestampField(source="date_joined")
    last_login_at = TimestampField(allow_null=True, source="last_login")
    etag = serializers.CharField()

    @staticmethod
    def get_state(user: User, context: object) -> str:
        return users.state_of(user)

    @staticmethod
    def get_tenants(user: User, context: object) -> Any:
        return user.memberships.all()

    @staticmethod
    def get_etag(user: User, context: object) -> str:
        return users.version(user)


class InvitedSerializer(UserSerializer):
    one_time_password = serializers.CharField(allow_null=True, help_text="null in a repeated response")
    link = serializers.CharField(
        allow_null=True, help_text="to hand over instead; null in a repeated response"
    )
    expires_at = TimestampField(help_text="of the one-time password")

    @staticmethod
    def get_one_time_password(user: User, made: Invited) -> str:
        return made.secret

    @staticmethod
    def get_link(user: User, made: Invited) -> str:
        return made.link

    @staticmethod
    def get_expires_at(user: User, made: Invited) -> Any:
        return OneTimePassword.objects.get(user=user).expires_at


USER_EXAMPLE = {
    "username": "erin",
    "email": "erin@example.org",
    "first_name": "Erin",
    "last_name": "Sato",
    "is_platform_admin": False,
    "state": "invited",
    "two_factor": False,
    "tenants": [{"tenant": "vision-lab", "role": "researcher"}],
    "created_at": "2026-11-21T09:00:00.000Z",
    "last_login_at": None,
    "etag": '"9f86d081884c7d65"',
}
INVITED_EXAMPLE = USER_EXAMPLE | {
    "tenants": [],
    "one_time_password": "once-3f9k-2m7q-x4ta-9zre-7h2d-k8vp-w5xc",
    "link": "https://luthier.example.org/welcome#erin/once-3f9k-2m7q-x4ta-9zre-7h2d-k8vp-w5xc",
    "expires_at": "2026-11-24T09:00:00.000Z",
}
SHOWN_ONCE = ("one_time_password", "link")


class UsersQuery(PagedQuery):
    q = serializers.CharField(
        required=False, max_length=120, help_text="part of a name or address, or a tenant's slug"
    )


def _text(name: str, **options: Any) -> StrictCharField:
    return StrictCharField(
        max_length=LENGTHS[name], validators=[Follows(partial(users.fault, name))], **options
    )


class UserChangeRequest(StrictSerializer):
    email = _text("email", required=False, allow_blank=True)
    first_name = _text("first_name", required=False, allow_blank=True)
    last_name = _text("last_name", required=False, allow_blank=True)
    is_platform_admin = StrictBooleanField(required=False)


class UserRequest(UserChangeRequest):
    username = _text("username")


@operation(Out=UserSerializer, Query=UsersQuery, many=True, response_example=USER_EXAMPLE, fails=(403,))
def user_list(call: Call) -> dict[str, Any]:
    """All users of the installation by name, without service accounts; platform admins only."""
    rows = users.users(user=call.user, q=call.query.get("q", ""))
    return paging.page(call, rows, UserSerializer.render, keys=("username",))


@operation(
    authorize=permissions.for_admins_to_invite,
    In=UserRequest,
    Out=InvitedSerializer,
    status=201,
    secret=SHOWN_ONCE,
    location=lambda made: f"/api/v1/users/{made['username']}",
    request_example={"username": "erin", "email": "erin@example.org"},
    response_example=INVITED_EXAMPLE,
    fails=(409,),
)
def user_create(call: Call) -> dict[str, Any]:
    """Create a user; platform admins only.

    The one-time password works once, for three days: with it, or by the link, the user sets a password.
    """
    return _invited(users.user_create(user=call.user, **_columns(call.data)))


@operation(Out=UserSerializer, response_example=USER_EXAMPLE, fails=(403,))
def user_read(call: Call, username: str) -> dict[str, Any]:
    """A user; platform admins only."""
    return UserSerializer.render(users.user_get(user=call.user, username=username))


@operation(
    authorize=permissions.for_admins_on_user,
    In=UserChangeRequest,
    Out=UserSerializer,
    request_example={"email": "erin@example.org"},
    response_example=USER_EXAMPLE,
    fails=(409,),
)
def user_change(call: Call, username: str) -> dict[str, Any]:
    """Change a user's address, names, or whether they are a platform admin; platform admins only. The last platform
    admin stays one."""
    changed = users.user_change(
        user=call.user, username=username, changes=_columns(call.data), if_match=call.if_match
    )
    return UserSerializer.render(changed)


@operation(
    authorize=permissions.for_admins_on_user,
    Out=InvitedSerializer,
    secret=SHOWN_ONCE,
    response_example=INVITED_EXAMPLE,
)
def user_reset(call: Call, username: str) -> dict[str, Any]:
    """Take a user's password away and give a one-time password instead; platform admins only. Their sessions end, their
    API tokens stay."""
    return _invited(users.user_reset(user=call.user, username=username))


@operation(
    authorize=permissions.for_admins_on_user,
    Out=UserSerializer,
    response_example=USER_EXAMPLE | {"state": "active"},
)
def user_two_factor_reset(call: Call, username: str) -> dict[str, Any]:
    """Remove a user's second factor, which they have lost; platform admins only. Make sure that it is the user who
    asks: the password alone signs in next.

    Recovery codes go with it, sessions end, API tokens stay. The next sign-in says so to the user. Without a second
    factor nothing is changed.
    """
    users.user_two_factor_reset(user=call.user, username=username)
    return UserSerializer.render(users.user_get(user=call.user, username=username))


@operation(
    authorize=permissions.for_admins_on_user,
    Out=UserSerializer,
    response_example=USER_EXAMPLE | {"state": "disabled"},
    fails=(409,),
)
def user_disable(call: Call, username: str) -> dict[str, Any]:
    """Keep a user out; platform admins only. Their sessions end and their API tokens are revoked; jobs stay. The last
    platform admin cannot be disabled."""
    return UserSerializer.render(users.user_disable(user=call.user, username=username))


@operation(
    authorize=permissions.for_admins_on_user,
    Out=UserSerializer,
    response_example=USER_EXAMPLE | {"state": "active"},
)
def user_enable(call: Call, username: str) -> dict[str, Any]:
    """Let a disabled user in again; platform admins only. Their password is as before, their API tokens are gone."""
    return UserSerializer.render(users.user_enable(user=call.user, username=username))


def _columns(values: Mapping[str, Any]) -> dict[str, Any]:
    names = {"is_platform_admin": "is_superuser"}
    return {names.get(name, name): value for name, value in values.items()}


def _invited(made: Invited) -> dict[str, Any]:
    return InvitedSerializer.render(made.user, made)
