"""The caller and their tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import transaction
from rest_framework import serializers

from jobs.serialization import ReadSerializer, TimestampField
from portal import proof
from portal.api import paging
from portal.api.fields import (
    ROLES,
    TENANT_STATES,
    PagedQuery,
    StrictBooleanField,
    StrictCharField,
    StrictIntegerField,
    StrictSerializer,
)
from portal.api.operations import Call, operation
from tenants import access, tokens, two_factor
from tenants.errors import FieldsInvalid, NotAllowed, problem
from tenants.models import Tenant, Token, User
from tenants.roles import Role
from tenants.services.users import preference_set


class MyTenantSerializer(ReadSerializer):
    slug = serializers.CharField()
    name = serializers.CharField()
    state = serializers.ChoiceField(TENANT_STATES)
    role = serializers.ChoiceField(ROLES, allow_null=True, help_text="null: visible only as a platform admin")
    permissions = serializers.ListField(child=serializers.CharField())

    @staticmethod
    def get_role(tenant: Tenant, user: User) -> str | None:
        return access.role_in(user, tenant.pk)

    @staticmethod
    def get_permissions(tenant: Tenant, user: User) -> list[str]:
        return sorted(access.permissions_in(user, tenant.pk))


class MeSerializer(ReadSerializer):
    username = serializers.CharField()
    email = serializers.CharField(allow_blank=True)
    is_platform_admin = serializers.BooleanField()
    is_service_account = serializers.BooleanField()
    two_factor = serializers.BooleanField(
        allow_null=True,
        help_text="whether you have set up a second factor; null with a token that is limited to a tenant or a role",
    )
    tenants = MyTenantSerializer(many=True)

    @staticmethod
    def get_is_platform_admin(user: User, context: User) -> bool:
        return access.is_platform_admin(user)

    @staticmethod
    def get_two_factor(user: User, context: User) -> bool | None:
        return two_factor.is_on(user) if access.has_whole_token(user) else None

    @staticmethod
    def get_tenants(user: User, context: User) -> Iterable[Tenant]:
        return access.visible_tenants(user)


@operation(
    Out=MeSerializer,
    response_example={
        "username": "alice",
        "email": "alice@example.org",
        "is_platform_admin": False,
        "is_service_account": False,
        "two_factor": True,
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
    """The caller, and their permissions in each tenant.

    With a token: only its own tenant, and at most its maximum role.
    """
    return MeSerializer.render(call.user, call.user)


class PreferencesSerializer(ReadSerializer):
    shortcuts = serializers.BooleanField(help_text="whether single keys are shortcuts on the pages")


class PreferencesRequest(StrictSerializer):
    shortcuts = StrictBooleanField()


def _to_change_own(call: Call) -> None:
    if not access.has_whole_token(call.user):
        raise NotAllowed("This request's token is limited: it cannot change the settings of its user.")


def _preferences(user: User) -> dict[str, Any]:
    return PreferencesSerializer.render({"shortcuts": bool(user.preferences.get("shortcuts", True))})


@operation(Out=PreferencesSerializer, response_example={"shortcuts": True})
def preferences_get(call: Call) -> dict[str, Any]:
    """Your settings of the pages that belong to your account. The theme belongs to each browser."""
    return _preferences(call.user)


@operation(
    authorize=_to_change_own,
    In=PreferencesRequest,
    Out=PreferencesSerializer,
    request_example={"shortcuts": False},
    response_example={"shortcuts": False},
)
def preferences_change(call: Call) -> dict[str, Any]:
    """Change them; not with a token that is limited to a tenant or a role."""
    preference_set(call.user, "shortcuts", call.data["shortcuts"])
    return _preferences(call.user)


class TokenSerializer(ReadSerializer):
    id = serializers.CharField()
    name = serializers.CharField()
    prefix = serializers.CharField(help_text="the first characters of its secret")
    tenant = serializers.CharField(
        allow_null=True, source="tenant.slug", help_text="null: works in every tenant of its owner"
    )
    role = serializers.ChoiceField(
        ROLES, source="role_ceiling", help_text="maximum role, whatever the role of its owner"
    )
    created_at = TimestampField(source="created")
    expires_at = TimestampField(allow_null=True, source="expiry")
    last_used_at = TimestampField(allow_null=True)
    etag = serializers.CharField()

    @staticmethod
    def get_id(token: Token, context: object) -> str:
        return tokens.public_id(token)

    @staticmethod
    def get_prefix(token: Token, context: object) -> str:
        return tokens.shown_prefix(token)

    @staticmethod
    def get_etag(token: Token, context: object) -> str:
        return f'"{tokens.public_id(token)}"'  # a token never changes; its last use is not a new version


class CreatedTokenSerializer(TokenSerializer):
    secret = serializers.CharField(allow_null=True, help_text="shown once; null in a repeated response")

    @staticmethod
    def get_secret(token: Token, secret: str) -> str:
        return secret


def _shown(help_text: str) -> StrictCharField:
    return StrictCharField(
        required=False,
        allow_blank=True,
        trim_whitespace=False,
        max_length=4096,
        write_only=True,
        default="",
        help_text=help_text,
    )


def own_password() -> StrictCharField:
    """The field of a request that makes a token."""
    return _shown("your password: required with a session, not used with a token")


def own_code() -> StrictCharField:
    """The field of a request that makes a token."""
    return _shown(
        "if you have a second factor, with a session that has not shown it within ten minutes: a code of your app, or a"
        " recovery code"
    )


class TokenRequest(StrictSerializer):
    name = StrictCharField(max_length=80)
    tenant = StrictCharField(max_length=40, required=False, allow_null=True, default=None)
    role = serializers.ChoiceField(
        ROLES, required=False, help_text="default: manager, or the maximum role of the caller's own token"
    )
    expires_in_days = StrictIntegerField(
        min_value=1,
        max_value=tokens.MAX_DAYS,
        required=False,
        help_text=f"{tokens.DEFAULT_DAYS} by default, or the days that the caller's own token has left",
    )

    password = own_password()
    code = own_code()


def shown_for_token(call: Call, **path: str) -> bool:
    """Before a token is made: a session shows all factors of its user, a token makes what it may itself.

    Whether all were shown, or none is due.
    """
    if call.user.token is not None:
        return True
    return proof.confirm(
        call.request._request, call.user, password=call.data["password"], code=call.data["code"]
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


@operation(Out=TokenSerializer, Query=PagedQuery, many=True, response_example=TOKEN_EXAMPLE)
def token_list(call: Call) -> dict[str, Any]:
    """The caller's tokens, newest first, without their secrets."""
    return paging.page(call, tokens.tokens_of(call.user), TokenSerializer.render, keys=("-created", "pk"))


@operation(
    proof=shown_for_token,
    In=TokenRequest,
    Out=CreatedTokenSerializer,
    status=201,
    secret=("secret",),
    per_minute=30,
    request_example={"name": "laptop", "tenant": "vision-lab", "role": "researcher", "expires_in_days": 90},
    response_example=TOKEN_EXAMPLE | {"secret": "lut_0123…"},
)
def token_create(call: Call) -> dict[str, Any]:
    """Create a token for yourself; its secret is shown in this response only.

    It can be limited to one tenant and to a maximum role, and expires after 1 to 366 days. If the caller uses a token,
    that token provides the defaults; with a session, the user's password is required, and their second factor if the
    session has not shown it within ten minutes.
    """
    with transaction.atomic():
        proof.require_still(call.user, shown=call.prepared)
        token, secret = tokens.token_create(
            user=call.user,
            owner=call.user,
            name=call.data["name"],
            tenant=_own_tenant(call, call.data["tenant"]),
            role=Role(call.data["role"]) if "role" in call.data else None,
            days=call.data.get("expires_in_days"),
        )
    return CreatedTokenSerializer.render(token, secret)


@operation(status=204)
def token_revoke(call: Call, token_id: str) -> None:
    """Revoke one of your tokens, effective immediately.

    A caller with a token can revoke it, and others that are limited to the same tenant and have no higher role.
    """
    tokens.token_revoke(user=call.user, owner=call.user, token_id=token_id)


def _own_tenant(call: Call, slug: str | None) -> Tenant | None:
    if slug is None:
        return None
    found = access.find_tenant(call.user, slug)
    if found is None:
        raise FieldsInvalid(
            errors=[problem("tenant", "not_found", "you are not a member of such a tenant", slug)]
        )
    return found
