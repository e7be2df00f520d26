"""The caller himself, and his tokens."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from portal.api import paging
from portal.api.fields import Moment, Paged, Strict, Text, Whole
from portal.api.operations import Call, operation
from tenants import access, tokens
from tenants.errors import FieldsInvalid, problem
from tenants.models import Tenant, Token
from tenants.roles import Role

ROLES = [role.value for role in Role]


class MyTenant(serializers.Serializer[Any]):
    slug = serializers.CharField()
    name = serializers.CharField()
    state = serializers.ChoiceField(["active", "suspended"])
    role = serializers.ChoiceField(ROLES, allow_null=True, help_text="null: seen as a platform admin only")
    permissions = serializers.ListField(child=serializers.CharField())


class Me(serializers.Serializer[Any]):
    username = serializers.CharField()
    email = serializers.CharField(allow_blank=True)
    is_platform_admin = serializers.BooleanField()
    is_service_account = serializers.BooleanField()
    tenants = MyTenant(many=True)


@operation(
    Out=Me,
    tell={
        "username": "alice",
        "email": "alice@example.org",
        "is_platform_admin": False,
        "is_service_account": False,
        "tenants": [
            {
                "slug": "vision-lab",
                "name": "Vision Lab",
                "state": "active",
                "role": "researcher",
                "permissions": ["submit", "view"],
            }
        ],
    },
)
def me(call: Call) -> dict[str, Any]:
    """Who the caller is, and what he may do in which tenant.

    A token shows no more than it carries: its own tenant, and the role it is limited to.
    """
    return {
        "username": call.user.get_username(),
        "email": call.user.email,
        "is_platform_admin": access.is_platform_admin(call.user),
        "is_service_account": call.user.is_service_account,
        "tenants": [_tenant(call, each) for each in access.visible_tenants(call.user)],
    }


def _tenant(call: Call, tenant: Tenant) -> dict[str, Any]:
    return {
        "slug": tenant.slug,
        "name": tenant.name,
        "state": tenant.state,
        "role": access.role_in(call.user, tenant.pk),
        "permissions": sorted(access.permissions_in(call.user, tenant.pk)),
    }


class TokenOut(serializers.Serializer[Any]):
    id = serializers.CharField()
    name = serializers.CharField()
    prefix = serializers.CharField(help_text="how its secret begins")
    tenant = serializers.CharField(allow_null=True, help_text="null: works in every tenant of its owner")
    role = serializers.ChoiceField(ROLES, help_text="what it may be at most, whatever its owner is")
    created_at = Moment()
    expires_at = Moment(allow_null=True)
    last_used_at = Moment(allow_null=True)
    etag = serializers.CharField()


class TokenMade(TokenOut):
    secret = serializers.CharField(allow_null=True, help_text="shown once; null in a repeated answer")


class TokenIn(Strict):
    name = Text(max_length=80)
    tenant = Text(max_length=40, required=False, allow_null=True, default=None)
    role = serializers.ChoiceField(
        ROLES, required=False, help_text="manager unless given, or what the caller's own token allows"
    )
    expires_in_days = Whole(
        min_value=1,
        max_value=tokens.LONGEST_DAYS,
        required=False,
        help_text=f"{tokens.DEFAULT_DAYS} unless given, or the days that the caller's own token has left",
    )


TOKEN_EXAMPLE = {
    "id": "9f86d081884c7d65",
    "name": "laptop",
    "prefix": "lut_7c2e",
    "tenant": "vision-lab",
    "role": "researcher",
    "created_at": "2026-11-21T09:00:00.000Z",
    "expires_at": "2027-02-19T09:00:00.000Z",
    "last_used_at": None,
    "etag": '"9f86d081884c7d65"',
}


@operation(Out=TokenOut, Query=Paged, many=True, tell=TOKEN_EXAMPLE)
def token_list(call: Call) -> dict[str, Any]:
    """The caller's tokens, newest first, without their secrets."""
    return paging.page(call, tokens.tokens_of(call.user), token_view, keys=("-created", "pk"))


@operation(
    In=TokenIn,
    Out=TokenMade,
    status=201,
    secret=("secret",),
    per_minute=30,
    ask={"name": "laptop", "tenant": "vision-lab", "role": "researcher", "expires_in_days": 90},
    tell=TOKEN_EXAMPLE | {"secret": "lut_0123…"},
)
def token_create(call: Call) -> dict[str, Any]:
    """Make a token for oneself; its secret is shown in this answer only.

    It may be bound to one tenant and to a lower role, and it ends after 1 to 366 days. What a
    caller with a token leaves open is taken from that token.
    """
    token, secret = tokens.token_create(
        user=call.user,
        owner=call.user,
        name=call.data["name"],
        tenant=_own_tenant(call, call.data["tenant"]),
        role=Role(call.data["role"]) if "role" in call.data else None,
        days=call.data.get("expires_in_days"),
    )
    return token_view(token) | {"secret": secret}


@operation(status=204)
def token_revoke(call: Call, token_id: str) -> None:
    """Revoke one of one's own tokens, at once.

    A caller with a token revokes that one, and others that are bound to its tenant (if it is) and are no stronger.
    """
    tokens.token_revoke(user=call.user, owner=call.user, token_id=token_id)


def token_view(token: Token) -> dict[str, Any]:
    return {
        "id": tokens.public_id(token),
        "name": token.name,
        "prefix": tokens.shown_prefix(token),
        "tenant": token.tenant.slug if token.tenant else None,
        "role": token.role_ceiling,
        "created_at": token.created,
        "expires_at": token.expiry,
        "last_used_at": token.last_used_at,
        "etag": f'"{tokens.public_id(token)}"',  # a token never changes; its last use is no version of it
    }


def _own_tenant(call: Call, slug: str | None) -> Tenant | None:
    if slug is None:
        return None
    found = access.tenant_for(call.user, slug)
    if found is None:
        raise FieldsInvalid(errors=[problem("tenant", "not_found", "there is no such tenant of yours", slug)])
    return found
