"""Members of a tenant, and its service accounts."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db import transaction
from rest_framework import serializers

from jobs.serialization import ReadSerializer, TimestampField
from portal import proof
from portal.api import paging, permissions
from portal.api.fields import (
    ROLES,
    Follows,
    PagedQuery,
    StrictCharField,
    StrictIntegerField,
    StrictSerializer,
)
from portal.api.me import (
    TOKEN_EXAMPLE,
    CreatedTokenSerializer,
    TokenSerializer,
    own_code,
    own_password,
    shown_for_token,
)
from portal.api.operations import Call, operation
from tenants import checks, tokens
from tenants.models import Membership, Tenant
from tenants.roles import Permission, Role
from tenants.services import accounts, members

ACCOUNT_ROLES = [Role.VIEWER.value, Role.RESEARCHER.value]


class MemberSerializer(ReadSerializer):
    username = serializers.CharField(source="user.username")
    email = serializers.CharField(
        allow_blank=True, source="shown_email", help_text="empty until the member has accepted the membership"
    )
    role = serializers.ChoiceField(ROLES)
    is_service_account = serializers.BooleanField(source="user.is_service_account")
    since = TimestampField(source="created_at")
    etag = serializers.CharField()

    @staticmethod
    def get_etag(row: Membership, context: object) -> str:
        return members.version(row)


MEMBER_EXAMPLE = {
    "username": "carol",
    "email": "carol@example.org",
    "role": "viewer",
    "is_service_account": False,
    "since": "2026-11-21T09:00:00.000Z",
    "etag": '"7-viewer"',
}


class MembersQuery(PagedQuery):
    search = serializers.CharField(
        required=False, max_length=120, help_text="part of a username or a name, or a role"
    )


@operation(Out=MemberSerializer, Query=MembersQuery, many=True, response_example=MEMBER_EXAMPLE)
def member_list(call: Call, t: str) -> dict[str, Any]:
    """Members of the tenant, by name: all, or those that are searched for. Addresses are not searched."""
    rows = members.members_of(permissions.tenant(call, t), call.query.get("search", ""))
    return paging.page(call, rows, MemberSerializer.render, keys=("user__username",))


class MemberRequest(StrictSerializer):
    username = StrictCharField(max_length=150)
    role = serializers.ChoiceField(ROLES)


@operation(
    authorize=permissions.into_tenant(Permission.MANAGE_MEMBERS),
    In=MemberRequest,
    Out=MemberSerializer,
    status=201,
    location=lambda made: f"./members/{made['username']}",
    request_example={"username": "carol", "role": "viewer"},
    response_example=MEMBER_EXAMPLE,
)
def member_add(call: Call, t: str) -> dict[str, Any]:
    """Make an existing user a member; managers only. You cannot add yourself."""
    made = members.member_add(
        user=call.user, tenant=call.found, username=call.data["username"], role=Role(call.data["role"])
    )
    return MemberSerializer.render(made)


@operation(Out=MemberSerializer, response_example=MEMBER_EXAMPLE)
def member_accept(call: Call, t: str) -> dict[str, Any]:
    """Accept your membership: from then on the other members see your e-mail address."""
    made = members.member_accept(user=call.user, tenant=permissions.tenant(call, t))
    return MemberSerializer.render(made)


class RoleRequest(StrictSerializer):
    role = serializers.ChoiceField(ROLES)


@operation(
    authorize=permissions.into_tenant(Permission.MANAGE_MEMBERS),
    In=RoleRequest,
    Out=MemberSerializer,
    request_example={"role": "researcher"},
    response_example=MEMBER_EXAMPLE,
    fails=(409,),
)
def member_change(call: Call, t: str, username: str) -> dict[str, Any]:
    """Give a member another role; managers only. You cannot raise your own role, and the last manager keeps theirs."""
    changed = members.member_change(
        user=call.user,
        tenant=call.found,
        username=username,
        role=Role(call.data["role"]),
        if_match=call.if_match,
    )
    return MemberSerializer.render(changed)


@operation(status=204, fails=(409,))
def member_remove(call: Call, t: str, username: str) -> None:
    """End a membership and the tokens limited to it; for managers and the member. Jobs are kept."""
    members.member_remove(user=call.user, tenant=permissions.tenant(call, t), username=username)


class ServiceAccountSerializer(ReadSerializer):
    name = serializers.CharField()
    username = serializers.CharField(source="user.username", help_text="shown as the owner of its jobs")
    role = serializers.ChoiceField(ACCOUNT_ROLES)
    since = TimestampField(source="created_at")
    etag = serializers.CharField()

    @staticmethod
    def get_etag(row: Membership, context: object) -> str:
        return members.version(row)

    @staticmethod
    def get_name(row: Membership, context: object) -> str:
        return row.user.username.removeprefix(f"{row.tenant.slug}.")


ACCOUNT_EXAMPLE = {
    "name": "nightly",
    "username": "vision-lab.nightly",
    "role": "researcher",
    "since": "2026-11-21T09:00:00.000Z",
    "etag": '"8-researcher"',
}


@operation(
    Out=ServiceAccountSerializer, Query=PagedQuery, many=True, response_example=ACCOUNT_EXAMPLE, fails=(403,)
)
def account_list(call: Call, t: str) -> dict[str, Any]:
    """The tenant's service accounts; managers only."""
    rows = accounts.accounts(user=call.user, tenant=permissions.tenant(call, t))
    return paging.page(call, rows, ServiceAccountSerializer.render, keys=("user__username",))


class ServiceAccountRequest(StrictSerializer):
    name = StrictCharField(max_length=60, validators=[Follows(partial(checks.slug, "name", longest=60))])
    role = serializers.ChoiceField(ACCOUNT_ROLES, required=False, default=Role.RESEARCHER.value)


@operation(
    authorize=permissions.into_tenant(Permission.MANAGE_MEMBERS),
    In=ServiceAccountRequest,
    Out=ServiceAccountSerializer,
    status=201,
    request_example={"name": "nightly", "role": "researcher"},
    response_example=ACCOUNT_EXAMPLE,
)
def account_create(call: Call, t: str) -> dict[str, Any]:
    """Create a service account: a user for a program. Its maximum role is researcher, and it cannot sign in."""
    made = accounts.account_create(
        user=call.user, tenant=call.found, name=call.data["name"], role=Role(call.data["role"])
    )
    return ServiceAccountSerializer.render(made)


@operation(status=204)
def account_remove(call: Call, t: str, name: str) -> None:
    """Close a service account. Its tokens are revoked at once; its jobs are kept."""
    accounts.account_remove(user=call.user, tenant=permissions.tenant(call, t), name=name)


@operation(Out=TokenSerializer, Query=PagedQuery, many=True, response_example=TOKEN_EXAMPLE, fails=(403,))
def account_token_list(call: Call, t: str, name: str) -> dict[str, Any]:
    """A service account's tokens, newest first, without their secrets."""
    account = accounts.account_get(user=call.user, tenant=permissions.tenant(call, t), name=name)
    return paging.page(call, tokens.tokens_of(account), TokenSerializer.render, keys=("-created", "pk"))


class ServiceAccountTokenRequest(StrictSerializer):
    name = StrictCharField(max_length=80)
    expires_in_days = StrictIntegerField(
        min_value=1,
        max_value=tokens.MAX_DAYS,
        required=False,
        help_text=f"{tokens.DEFAULT_DAYS} by default, or the days that the caller's own token has left",
    )
    password = own_password()
    code = own_code()


def _with_account(call: Call, t: str, name: str) -> Tenant:
    tenant = permissions.tenant(call, t)
    accounts.account_get(user=call.user, tenant=tenant, name=name)
    return tenant


@operation(
    authorize=_with_account,
    proof=shown_for_token,
    In=ServiceAccountTokenRequest,
    Out=CreatedTokenSerializer,
    status=201,
    secret=("secret",),
    per_minute=30,
    request_example={"name": "ci", "expires_in_days": 30},
    response_example=TOKEN_EXAMPLE | {"secret": "lut_0123…"},
)
def account_token_create(call: Call, t: str, name: str) -> dict[str, Any]:
    """Create a token for a service account, limited to the tenant; its secret is shown in this response only.

    With a session, the caller's password is required, and their second factor if the session has not shown it within
    ten minutes.
    """
    with transaction.atomic():
        proof.require_still(call.user, shown=call.prepared)
        token, secret = accounts.account_token_create(
            user=call.user,
            tenant=call.found,
            name=name,
            token_name=call.data["name"],
            days=call.data.get("expires_in_days"),
        )
    return CreatedTokenSerializer.render(token, secret)


@operation(status=204)
def account_token_revoke(call: Call, t: str, name: str, token_id: str) -> None:
    """Revoke one token of a service account, effective immediately."""
    accounts.account_token_revoke(
        user=call.user, tenant=permissions.tenant(call, t), name=name, token_id=token_id
    )
