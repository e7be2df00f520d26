"""Members cannot raise their own role, a tenant keeps a manager, and a service account stays limited."""

from __future__ import annotations

import pytest

from tenants.errors import (
    AlreadyMember,
    FieldsInvalid,
    LastManager,
    NameTaken,
    NotAllowed,
    NotFound,
    OwnRoleRaised,
)
from tenants.models import AuditEntry, Membership, Token
from tenants.roles import Role
from tenants.services import accounts, members
from tenants.tokens import identify, token_create
from tests import factories
from tests.jobs.conftest import People, people

__all__ = ["people"]


def test_a_manager_adds_changes_and_removes_members(people: People) -> None:
    members.member_add(user=people.dave, tenant=people.vision, username="bob", role=Role.VIEWER)
    members.member_change(user=people.dave, tenant=people.vision, username="bob", role=Role.RESEARCHER)
    members.member_remove(user=people.dave, tenant=people.vision, username="bob")
    actions = list(AuditEntry.objects.order_by("pk").values_list("action", flat=True))
    assert actions == ["member.add", "member.change", "member.remove"]
    assert not Membership.objects.filter(user=people.bob, tenant=people.vision).exists()


def test_a_researcher_manages_no_members(people: People) -> None:
    with pytest.raises(NotAllowed):
        members.member_add(user=people.alice, tenant=people.vision, username="bob", role=Role.VIEWER)


def test_a_stranger_learns_nothing_of_the_tenant(people: People) -> None:
    with pytest.raises(NotFound):
        members.member_add(user=people.bob, tenant=people.vision, username="bob", role=Role.MANAGER)


def test_members_cannot_raise_their_own_role(people: People) -> None:
    Membership.objects.filter(user=people.dave).update(role=Role.MANAGER)
    with pytest.raises(OwnRoleRaised):
        members.member_add(user=people.admin, tenant=people.vision, username="admin", role=Role.MANAGER)


def test_the_last_manager_stays_one(people: People) -> None:
    with pytest.raises(LastManager):
        members.member_change(user=people.dave, tenant=people.vision, username="dave", role=Role.VIEWER)
    with pytest.raises(LastManager):
        members.member_remove(user=people.dave, tenant=people.vision, username="dave")
    factories.member(people.vision, "erin", Role.MANAGER)
    members.member_remove(user=people.dave, tenant=people.vision, username="dave")


def test_a_disabled_manager_does_not_count(people: People) -> None:
    factories.member(people.vision, "erin", Role.MANAGER, is_active=False)
    with pytest.raises(LastManager):
        members.member_remove(user=people.dave, tenant=people.vision, username="dave")


def test_a_member_may_leave(people: People) -> None:
    members.member_remove(user=people.carol, tenant=people.vision, username="carol")
    assert not people.carol.memberships.exists()


def test_leaving_ends_the_tokens_of_that_tenant(people: People) -> None:
    _, secret = token_create(user=people.carol, owner=people.carol, name="x", tenant=people.vision)
    members.member_remove(user=people.dave, tenant=people.vision, username="carol")
    assert identify(secret) is None


def test_an_unknown_username_is_a_field_error(people: People) -> None:
    with pytest.raises(FieldsInvalid) as caught:
        members.member_add(user=people.dave, tenant=people.vision, username="unknown", role=Role.VIEWER)
    assert caught.value.details["errors"][0]["path"] == "username"
    with pytest.raises(AlreadyMember):
        members.member_add(user=people.dave, tenant=people.vision, username="carol", role=Role.VIEWER)
    with pytest.raises(NotFound):
        members.member_change(user=people.dave, tenant=people.vision, username="bob", role=Role.VIEWER)


def test_a_service_account_is_researcher_at_most_and_cannot_log_in(people: People) -> None:
    with pytest.raises(FieldsInvalid):
        accounts.account_create(user=people.dave, tenant=people.vision, name="ci", role=Role.MANAGER)
    made = accounts.account_create(user=people.dave, tenant=people.vision, name="ci")
    assert not made.user.has_usable_password()
    with pytest.raises(FieldsInvalid):
        members.member_change(
            user=people.dave, tenant=people.vision, username=made.user.username, role=Role.MANAGER
        )
    with pytest.raises(NameTaken, match="The account ci already exists in vision-lab: choose another name"):
        accounts.account_create(user=people.dave, tenant=people.vision, name="ci")


def test_the_name_of_a_closed_service_account_is_refused_with_the_reason(people: People) -> None:
    accounts.account_create(user=people.dave, tenant=people.vision, name="ci")
    accounts.account_remove(user=people.dave, tenant=people.vision, name="ci")
    with pytest.raises(NameTaken) as refused:
        accounts.account_create(user=people.dave, tenant=people.vision, name="ci")
    assert refused.value.message == (
        "The name ci belonged to an account of vision-lab that is closed and stays with its jobs: choose another name."
    )


def test_a_closed_service_account_opens_nothing(people: People) -> None:
    accounts.account_create(user=people.dave, tenant=people.vision, name="ci")
    _, secret = accounts.account_token_create(
        user=people.dave, tenant=people.vision, name="ci", token_name="nightly"
    )
    assert identify(secret) is not None
    accounts.account_remove(user=people.dave, tenant=people.vision, name="ci")
    assert identify(secret) is None
    assert not Token.objects.exists()


def test_a_manager_of_one_tenant_sees_no_accounts_of_another(people: People) -> None:
    erin = factories.member(people.nlp, "erin", Role.MANAGER)
    accounts.account_create(user=people.dave, tenant=people.vision, name="ci")
    with pytest.raises(NotFound):
        accounts.account_get(user=erin, tenant=people.vision, name="ci")
    with pytest.raises(NotFound):
        accounts.account_get(user=erin, tenant=people.nlp, name="ci")
