"""The identities at the provider of single sign-on by which users sign in, for platform admins."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.serialization import ReadSerializer, TimestampField
from portal.api import paging, permissions
from portal.api.fields import ShortListQuery, StrictCharField, StrictSerializer
from portal.api.operations import Call, operation
from tenants.services import identities


class IdentitySerializer(ReadSerializer):
    id = serializers.CharField()
    issuer = serializers.CharField(help_text="the address of the provider")
    subject = serializers.CharField(help_text="who it is there: the claim `sub`")
    linked_at = TimestampField()
    signed_in_at = TimestampField(allow_null=True, help_text="last sign-in by it; null: none yet")


class IdentityRequest(StrictSerializer):
    subject = StrictCharField(
        help_text=f"the claim `sub`, at most {identities.SUBJECT_CHARS} characters; "
        "the login page shows it to a person who is not linked yet"
    )


EXAMPLE = {
    "id": "4c6b0f5f1d2a7e93",
    "issuer": "https://id.example.org",
    "subject": "248289761001",
    "linked_at": "2026-11-21T09:00:00.000Z",
    "signed_in_at": None,
}


@operation(Out=IdentitySerializer, Query=ShortListQuery, many=True, response_example=EXAMPLE, fails=(403,))
def identity_list(call: Call, username: str) -> dict[str, Any]:
    """The identity that is linked to a user at the present provider of single sign-on, as a list of one or none;
    platform admins only."""
    found = identities.identities_of(user=call.user, username=username)
    return paging.whole(call, [IdentitySerializer.render(each) for each in found], keys=("id",))


@operation(
    authorize=permissions.for_admins_on_user,
    In=IdentityRequest,
    Out=IdentitySerializer,
    status=201,
    location=lambda made: "./identities",
    request_example={"subject": "248289761001"},
    response_example=EXAMPLE,
)
def identity_link(call: Call, username: str) -> dict[str, Any]:
    """Let the identity with this subject sign in as the user; platform admins only.

    It replaces one that is linked already: the sessions of the user end, as do the memberships that its groups gave.
    Linking the same one again changes nothing. An identity belongs to one user. Where passwords do not sign in, the
    identity of the last platform admin who can sign in is not replaced. 409 `single_sign_on_off` without a provider.
    """
    made = identities.identity_add(user=call.user, username=username, subject=call.data["subject"])
    return IdentitySerializer.render(made)


@operation(authorize=permissions.for_admins_on_user, status=204, fails=(409,))
def identity_unlink(call: Call, username: str, identity_id: str) -> None:
    """Let the identity sign in as the user no more; platform admins only.

    The sessions of the user end, as do the memberships that its groups gave, with their API tokens. Not for a disabled
    user, whom the link keeps out, and not for the last platform admin who can sign in.
    """
    identities.identity_unlink(user=call.user, username=username, identity_id=identity_id)
