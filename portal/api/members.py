"""Members of a tenant, and its service accounts."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from portal.api import paging, permissions
from portal.api.fields import Moment, Paged, Strict, Text, Whole
from portal.api.me import TOKEN_EXAMPLE, TokenMade, TokenOut, token_view
from portal.api.operations import Call, operation
from tenants import tokens
from tenants.models import Membership, Tenant
from tenants.roles import Permission, Role
from tenants.services import accounts, members

ROLES = [role.value for role in Role]
ACCOUNT_ROLES = [Role.VIEWER.value, Role.RESEARCHER.value]


class Member(serializers.Serializer[Any]):
    username = serializers.CharField()
    email = serializers.CharField(allow_blank=True)
    role = serializers.ChoiceField(ROLES)
    is_service_account = serializers.BooleanField()
    since = Moment()
    etag = serializers.CharField()


MEMBER_EXAMPLE = {
    "username": "carol",
    "email": "carol@example.org",
    "role": "viewer",
    "is_service_account": False,
    "since": "2026-11-21T09:00:00.000Z",
    "etag": '"7-viewer"',
}


@operation(Out=Member, Query=Paged, many=True, tell=MEMBER_EXAMPLE)
def member_list(call: Call, t: str) -> dict[str, Any]:
    """Everybody who belongs to the tenant, by name."""
    rows = permissions.tenant(call, t).memberships.select_related("user")
    return paging.page(call, rows, member_view, keys=("user__username",))


class MemberIn(Strict):
    username = Text(max_length=150)
    role = serializers.ChoiceField(ROLES)


@operation(
    authorize=permissions.into_tenant(Permission.MANAGE_MEMBERS),
    In=MemberIn,
    Out=Member,
    status=201,
    location=lambda made: f"./{made['username']}",
    ask={"username": "carol", "role": "viewer"},
    tell=MEMBER_EXAMPLE,
)
def member_add(call: Call, t: str) -> dict[str, Any]:
    """Make an existing person a member; managers only. Nobody adds himself."""
    made = members.member_add(
        user=call.user, tenant=call.found, username=call.data["username"], role=Role(call.data["role"])
    )
    return member_view(made)


class RoleIn(Strict):
    role = serializers.ChoiceField(ROLES)


@operation(
    authorize=permissions.into_tenant(Permission.MANAGE_MEMBERS),
    In=RoleIn,
    Out=Member,
    ask={"role": "researcher"},
    tell=MEMBER_EXAMPLE,
    fails=(409,),
)
def member_change(call: Call, t: str, username: str) -> dict[str, Any]:
    """Give a member another role; managers only. Nobody raises himself; the last manager stays one."""
    changed = members.member_change(
        user=call.user,
        tenant=call.found,
        username=username,
        role=Role(call.data["role"]),
        if_match=call.if_match,
    )
    return member_view(changed)


@operation(status=204, fails=(409,))
def member_remove(call: Call, t: str, username: str) -> None:
    """End a membership and the tokens bound to it; managers, or the member himself. Jobs stay."""
    members.member_remove(user=call.user, tenant=permissions.tenant(call, t), username=username)


def member_view(row: Membership) -> dict[str, Any]:
    return {
        "username": row.user.get_username(),
        "email": row.user.email,
        "role": row.role,
        "is_service_account": row.user.is_service_account,
        "since": row.created_at,
        "etag": members.version(row),
    }


class Account(serializers.Serializer[Any]):
    name = serializers.CharField()
    username = serializers.CharField(help_text="the owner that its jobs show")
    role = serializers.ChoiceField(ACCOUNT_ROLES)
    since = Moment()
    etag = serializers.CharField()


ACCOUNT_EXAMPLE = {
    "name": "nightly",
    "username": "vision-lab.nightly",
    "role": "researcher",
    "since": "2026-11-21T09:00:00.000Z",
    "etag": '"8-researcher"',
}


@operation(Out=Account, Query=Paged, many=True, tell=ACCOUNT_EXAMPLE, fails=(403,))
def account_list(call: Call, t: str) -> dict[str, Any]:
    """The tenant's service accounts; managers only."""
    rows = accounts.accounts(user=call.user, tenant=permissions.tenant(call, t))
    return paging.page(call, rows, account_view, keys=("user__username",))


class AccountIn(Strict):
    name = Text(max_length=60)
    role = serializers.ChoiceField(ACCOUNT_ROLES, required=False, default=Role.RESEARCHER.value)


@operation(
    authorize=permissions.into_tenant(Permission.MANAGE_MEMBERS),
    In=AccountIn,
    Out=Account,
    status=201,
    ask={"name": "nightly", "role": "researcher"},
    tell=ACCOUNT_EXAMPLE,
)
def account_create(call: Call, t: str) -> dict[str, Any]:
    """Create a service account: a user for a program. It is researcher at most and cannot log in."""
    made = accounts.account_create(
        user=call.user, tenant=call.found, name=call.data["name"], role=Role(call.data["role"])
    )
    return account_view(made)


@operation(status=204)
def account_remove(call: Call, t: str, name: str) -> None:
    """Close a service account. Its tokens end at once; its jobs stay."""
    accounts.account_remove(user=call.user, tenant=permissions.tenant(call, t), name=name)


@operation(Out=TokenOut, Query=Paged, many=True, tell=TOKEN_EXAMPLE, fails=(403,))
def account_token_list(call: Call, t: str, name: str) -> dict[str, Any]:
    """A service account's tokens, newest first, without their secrets."""
    account = accounts.account_get(user=call.user, tenant=permissions.tenant(call, t), name=name)
    return paging.page(call, tokens.tokens_of(account), token_view, keys=("-created", "pk"))


class AccountTokenIn(Strict):
    name = Text(max_length=80)
    expires_in_days = Whole(
        min_value=1,
        max_value=tokens.LONGEST_DAYS,
        required=False,
        help_text=f"{tokens.DEFAULT_DAYS} unless given, or the days that the caller's own token has left",
    )


def _with_account(call: Call, t: str, name: str) -> Tenant:
    tenant = permissions.tenant(call, t)
    accounts.account_get(user=call.user, tenant=tenant, name=name)
    return tenant


@operation(
    authorize=_with_account,
    In=AccountTokenIn,
    Out=TokenMade,
    status=201,
    secret=("secret",),
    per_minute=30,
    ask={"name": "ci", "expires_in_days": 30},
    tell=TOKEN_EXAMPLE | {"secret": "lut_0123…"},
)
def account_token_create(call: Call, t: str, name: str) -> dict[str, Any]:
    """Make a token for a service account, bound to the tenant; its secret is shown in this answer only."""
    token, secret = accounts.account_token_create(
        user=call.user,
        tenant=call.found,
        name=name,
        token_name=call.data["name"],
        days=call.data.get("expires_in_days"),
    )
    return token_view(token) | {"secret": secret}


@operation(status=204)
def account_token_revoke(call: Call, t: str, name: str, token_id: str) -> None:
    """Revoke one token of a service account, at once."""
    accounts.account_token_revoke(
        user=call.user, tenant=permissions.tenant(call, t), name=name, token_id=token_id
    )


def account_view(row: Membership) -> dict[str, Any]:
    username = row.user.get_username()
    return {
        "name": username.removeprefix(f"{row.tenant.slug}."),
        "username": username,
        "role": row.role,
        "since": row.created_at,
        "etag": members.version(row),
    }
