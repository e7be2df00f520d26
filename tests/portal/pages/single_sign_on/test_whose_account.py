"""Who gets in as whom: by a link, by rules that are set, and by groups."""

from __future__ import annotations

from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.conf import LazySettings
from django.test import Client

from tenants.errors import AccountClosed, IdentityUnknown, UserDisabled
from tenants.models import AuditEntry, Tenant, User
from tenants.services import groups
from tenants.services.identities import Identity, identity_link, identity_of, identity_unlink, user_of
from tests import factories
from tests.identity_provider.process import ERIN, IdentityProvider
from tests.portal.pages.single_sign_on.conftest import said, signed_in

pytestmark = pytest.mark.django_db
WHO = {"iss": "https://id.example", "sub": "erin"}


def test_the_groups_of_the_provider_become_memberships(
    provider: IdentityProvider, erin: User, lab: Tenant, admin: User
) -> None:
    wanted = groups.read_rules("vision-lab viewer ml users")
    groups.rules_set(user=admin, wanted=wanted, if_match=None)
    for names, roles in ((["staff", "ml users"], ["viewer"]), (["staff"], [])):
        provider.set(claims=ERIN | {"groups": names})
        provider.sign_in(Client())
        assert list(erin.memberships.values_list("role", flat=True)) == roles


def test_an_identity_that_is_not_linked_gets_in_nowhere(provider: IdentityProvider) -> None:
    factories.user("erin")  # has this very name and address
    client = Client()
    text = said(provider.sign_in(client))
    assert "Ask a platform admin to link it" in text
    assert signed_in(client) is None
    assert not SocialAccount.objects.exists()
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.target, entry.details["reason"]) == (
        "login.failure",
        "",
        "unknown identity",
    )


def test_a_disabled_user_stays_out(provider: IdentityProvider, erin: User) -> None:
    User.objects.update(is_active=False)
    client = Client()
    assert "disabled" in said(provider.sign_in(client))
    assert signed_in(client) is None
    assert AuditEntry.objects.get(action="login.failure").target == "erin"


def test_a_service_account_stays_out_even_if_a_row_says_otherwise(provider: IdentityProvider) -> None:
    account = factories.user("lab.robot", is_service_account=True)
    uid = Identity(provider.issuer, "erin").uid
    SocialAccount.objects.create(user=account, provider="openid_connect", uid=uid)
    client = Client()
    assert said(provider.sign_in(client))
    assert signed_in(client) is None


@pytest.mark.parametrize("verified", [False, "true", "false", 1, None])
def test_an_address_that_is_not_verified_links_nothing(
    provider: IdentityProvider, settings: LazySettings, verified: Any
) -> None:
    settings.LUTHIER_OIDC_LINK_BY_EMAIL = True
    factories.user("erin")
    provider.set(claims=ERIN | {"email_verified": verified})
    client = Client()
    assert "link" in said(provider.sign_in(client))
    assert signed_in(client) is None


def test_a_verified_address_links_where_the_rule_is_set(
    provider: IdentityProvider, settings: LazySettings
) -> None:
    settings.LUTHIER_OIDC_LINK_BY_EMAIL = True
    user = factories.user("another-name")
    User.objects.filter(pk=user.pk).update(email="Erin@Example.org")
    client = Client()
    provider.sign_in(client)
    assert signed_in(client) == "another-name"
    assert identity_of(user) == "erin"
    entry = AuditEntry.objects.get(action="user.link")
    assert entry.details == {"subject": "erin", "by": "verified e-mail address"}


@pytest.mark.parametrize("lookalike", ["er\u0131n@example.org", "erin@example.\u0131org"])
def test_an_address_that_only_looks_alike_does_not_link(
    provider: IdentityProvider, settings: LazySettings, lookalike: str
) -> None:
    """The database takes a dotless i for an i, as in CVE-2019-19844."""
    settings.LUTHIER_OIDC_LINK_BY_EMAIL = True
    User.objects.filter(pk=factories.user("erin").pk).update(email=lookalike.replace("\u0131", "i"))
    with pytest.raises(IdentityUnknown):
        user_of(Identity(provider.issuer, "erin", email=lookalike))
    User.objects.update(email=lookalike)
    with pytest.raises(IdentityUnknown):
        user_of(Identity(provider.issuer, "erin", email=lookalike.replace("\u0131", "i")))
    assert not SocialAccount.objects.exists()


@pytest.mark.parametrize("case", ["two", "admin", "linked", "disabled", "service"])
def test_a_verified_address_does_not_link(
    provider: IdentityProvider, settings: LazySettings, admin: User, case: str
) -> None:
    """Not one of two users, no platform admin, no user with an identity, none who may not sign in."""
    settings.LUTHIER_OIDC_LINK_BY_EMAIL = True
    user = factories.user(
        "erin",
        is_superuser=case == "admin",
        is_active=case != "disabled",
        is_service_account=case == "service",
    )
    if case == "two":
        User.objects.filter(pk=factories.user("erin2").pk).update(email="erin@example.org")
    if case == "linked":
        identity_link(user=admin, username="erin", subject="another")
    client = Client()
    assert said(provider.sign_in(client))
    assert signed_in(client) is None
    assert identity_of(user) == ("another" if case == "linked" else None)


def test_a_new_user_never_takes_the_account_of_another(
    provider: IdentityProvider, settings: LazySettings, admin: User
) -> None:
    settings.LUTHIER_OIDC_CREATE_USERS = True
    provider.set(claims=ERIN | {"preferred_username": "ADMIN", "email_verified": False})
    client = Client()
    provider.sign_in(client)
    made = User.objects.get(username="ADMIN-2")
    assert signed_in(client) == "ADMIN-2"
    assert (made.is_superuser, made.has_usable_password(), made.email) == (False, False, "")
    again = Client()
    provider.set(claims={})
    provider.sign_in(again)
    assert signed_in(again) == "ADMIN-2"


@pytest.mark.parametrize("by_email", [False, True])
@pytest.mark.parametrize("superuser", [False, True])
def test_a_disabled_user_gets_no_second_account(
    provider: IdentityProvider, settings: LazySettings, by_email: bool, superuser: bool
) -> None:
    settings.LUTHIER_OIDC_CREATE_USERS = True
    settings.LUTHIER_OIDC_LINK_BY_EMAIL = by_email
    factories.user("old-name", is_active=False, is_superuser=superuser)
    User.objects.update(email="Erin@example.org")
    with pytest.raises(AccountClosed) as refused:
        user_of(Identity(provider.issuer, "erin", email="erin@example.org", username="erin"))
    assert refused.value.details["username"] == "old-name"
    assert User.objects.count() == 1


def test_the_link_of_a_disabled_user_stays(provider: IdentityProvider, erin: User, admin: User) -> None:
    """Without it the identity would be an unknown one, which gets a new user where the rule is set."""
    User.objects.filter(pk=erin.pk).update(is_active=False)
    with pytest.raises(UserDisabled):
        identity_unlink(user=admin, username="erin")
    with pytest.raises(UserDisabled):
        identity_link(user=admin, username="erin", subject="another")
    assert identity_of(erin) == "erin"


@pytest.mark.parametrize(
    ("claimed", "name"),
    [("..", "erin"), (".", "erin"), ("-", "erin"), ("\uff41dmin", "admin"), ("a/../b", "a-..-b")],
)
def test_a_new_users_name_is_one_that_forms_and_pages_can_hold(claimed: str, name: str) -> None:
    claims = {"iss": "https://id.example", "sub": "erin", "preferred_username": claimed}
    verified = {"email": "erin@example.org", "email_verified": True}
    assert Identity.from_claims(claims | verified).username == name


def test_the_same_subject_of_another_issuer_is_another_person(erin: User) -> None:
    with pytest.raises(Exception, match="No user here is linked"):
        user_of(Identity("https://other.example", "erin"))
