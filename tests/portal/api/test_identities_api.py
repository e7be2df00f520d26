"""Identities of single sign-on by REST: linked and unlinked by platform admins, never so that no admin gets in."""

from __future__ import annotations

from datetime import datetime

import pytest
from allauth.socialaccount.models import SocialAccount
from django.conf import LazySettings
from django.test import Client
from django.utils import timezone

from tenants.models import AuditEntry, GroupMapping, Token, User
from tenants.roles import Role
from tenants.services import identities
from tenants.services.accounts import account_create, account_token_create
from tenants.services.identities import Identity, identity_of, user_of
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api

ISSUER = "https://id.example"
PATH = "/users/alice/identities"
SUBJECT = {"subject": "alice-there"}


@pytest.fixture(autouse=True)
def sso(settings: LazySettings) -> LazySettings:
    settings.LUTHIER_OIDC_ISSUER = ISSUER
    return settings


def signs_in(user: User) -> None:
    """By the identity that is linked to the user."""
    user_of(Identity(ISSUER, identity_of(user) or ""))


def test_an_admin_links_lists_and_unlinks(admin: Api, people: People) -> None:
    assert admin.get(PATH).json() == {"items": [], "next": None}
    made = admin.post(PATH, SUBJECT, Idempotency_Key="a")
    assert (made.status_code, made["Location"]) == (201, "./identities")
    assert admin.post(PATH, SUBJECT, Idempotency_Key="a").json() == made.json()
    (listed,) = admin.get(PATH).json()["items"]
    assert listed == made.json()
    assert (listed["issuer"], listed["subject"], listed["signed_in_at"]) == (ISSUER, "alice-there", None)
    signs_in(people.alice)
    (used,) = admin.get(PATH).json()["items"]
    assert abs(timezone.now() - datetime.fromisoformat(used["signed_in_at"])).total_seconds() < 60
    browser = Client()
    browser.force_login(people.alice)
    assert admin.delete(f"{PATH}/{listed['id']}").status_code == 204
    assert browser.get("/me").status_code == 302, "sessions end"
    assert admin.delete(f"{PATH}/{listed['id']}").status_code == 404
    entries = AuditEntry.objects.filter(target="alice").order_by("pk")
    assert [(each.action, each.actor, each.address, each.details) for each in entries] == [
        ("user.link", people.admin, "127.0.0.1", {"subject": "alice-there", "by": "admin"}),
        ("user.unlink", people.admin, "127.0.0.1", {"subject": "alice-there", "sessions": 1}),
    ]


def test_the_same_again_changes_nothing_and_another_replaces_it(admin: Api, people: People) -> None:
    first = admin.post(PATH, SUBJECT).json()
    browser = Client()
    browser.force_login(people.alice)
    assert admin.post(PATH, SUBJECT).json() == first
    assert browser.get("/me").status_code == 200
    second = admin.post(PATH, {"subject": "another"}).json()
    assert browser.get("/me").status_code == 302
    assert admin.get(PATH).json()["items"] == [second]
    assert admin.delete(f"{PATH}/{first['id']}").status_code == 404, "it is not the one that was read"
    assert identity_of(people.alice) == "another"
    assert AuditEntry.objects.filter(action="user.link").count() == 2


@pytest.mark.parametrize(
    ("body", "path", "code"),
    [
        ({}, "subject", "required"),
        ({"subject": " "}, "subject", "blank"),
        ({"subject": 7}, "subject", "invalid"),
        ({"subject": "x" * 256}, "subject", "too_long"),
        ({"subject": "a\u2028b"}, "subject", "not_printable"),
        ({"subject": "bob-there"}, "subject", "in_use"),
        ({"subject": "a", "issuer": "https://other.example"}, "issuer", "unknown_field"),
    ],
)
def test_a_wrong_body_links_nothing(
    admin: Api, people: People, body: dict[str, object], path: str, code: str
) -> None:
    admin.post("/users/bob/identities", {"subject": "bob-there"})
    answer = admin.post(PATH, body)
    assert answer.status_code == 400
    assert [(each["path"], each["code"]) for each in answer.json()["errors"]] == [(path, code)]
    assert identity_of(people.alice) is None


def test_an_identity_of_another_user_is_not_unlinked_by_this_ones_path(admin: Api, people: People) -> None:
    others = admin.post("/users/bob/identities", {"subject": "bob-there"}).json()
    assert admin.delete(f"{PATH}/{others['id']}").status_code == 404
    admin.post(PATH, SUBJECT)
    assert admin.delete(f"{PATH}/{others['id']}").status_code == 404
    assert identity_of(people.bob) == "bob-there"
    assert identity_of(people.alice) == "alice-there"


def test_who_signs_in_for_the_first_time_meanwhile_keeps_the_identity(
    admin: Api, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = identities._link

    def meanwhile(user: User, identity: Identity) -> None:
        link(people.bob, identity)
        link(user, identity)

    monkeypatch.setattr(identities, "_link", meanwhile)
    answer = admin.post(PATH, SUBJECT)
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, "in_use")
    assert identity_of(people.alice) is None


def test_only_a_platform_admin_may(people: People, alice: Api, dave: Api) -> None:
    """Neither users, also not of their own, nor a service account, nor an admin's token that is limited."""
    account_create(user=people.dave, tenant=people.vision, name="ci")
    _, robot = account_token_create(user=people.dave, tenant=people.vision, name="ci", token_name="x")
    callers = [alice, dave, Api(secret=robot)]
    for limits in ({"role_ceiling": Role.RESEARCHER}, {"tenant": people.vision}):
        _, secret = Token.objects.create(user=people.admin, name="weak", **limits)
        callers.append(Api(secret=secret))
    Api(people.admin).post(PATH, SUBJECT)
    (linked,) = identities.identities_of(user=people.admin, username="alice")
    for caller in callers:
        assert caller.get(PATH).status_code == 403
        assert caller.post(PATH, {"subject": "mine"}).status_code == 403
        assert caller.delete(f"{PATH}/{linked.id}").status_code == 403
        assert caller.delete("/users/no-one/identities/x").status_code == 403
    assert identity_of(people.alice) == "alice-there"


def test_there_are_none_of_service_accounts_and_missing_users(admin: Api, people: People) -> None:
    account_create(user=people.dave, tenant=people.vision, name="ci")
    for name in ("vision-lab.ci", "no-one"):
        assert admin.get(f"/users/{name}/identities").status_code == 404
        assert admin.post(f"/users/{name}/identities", SUBJECT).status_code == 404
    assert not SocialAccount.objects.exists()


def test_the_link_of_a_disabled_user_stays(admin: Api, people: People) -> None:
    made = admin.post(PATH, SUBJECT).json()
    admin.post("/users/alice/disable", {})
    for answer in (admin.delete(f"{PATH}/{made['id']}"), admin.post(PATH, {"subject": "another"})):
        assert (answer.status_code, answer.json()["code"]) == (409, "user_disabled")
    assert identity_of(people.alice) == "alice-there"


def test_the_last_admin_keeps_the_way_in(admin: Api, people: People, sso: LazySettings) -> None:
    sso.LUTHIER_PASSWORD_SIGN_IN = False
    own = "/users/admin/identities"
    made = admin.post(own, {"subject": "boss"}).json()
    signs_in(people.admin)
    factories.user("second", is_superuser=True)
    admin.post("/users/second/identities", {"subject": "second"})
    for answer in (admin.delete(f"{own}/{made['id']}"), admin.post(own, {"subject": "may-never-come"})):
        assert (answer.status_code, answer.json()["code"]) == (409, "last_admin")
    assert identity_of(people.admin) == "boss"
    signs_in(User.objects.get(username="second"))
    assert admin.delete(f"{own}/{made['id']}").status_code == 204


def test_an_admin_who_unlinks_themselves_in_a_browser_is_answered(people: People, admin: Api) -> None:
    """The session of the request is among those that end."""
    made = admin.post("/users/admin/identities", {"subject": "boss"}).json()
    User.objects.filter(pk=factories.user("second", is_superuser=True).pk).update(password="pbkdf2$x")
    browser = Client()
    browser.force_login(people.admin)
    assert browser.delete(f"/api/v1/users/admin/identities/{made['id']}").status_code == 204
    assert browser.get("/me").status_code == 302


def test_without_a_provider_nothing_is_linked(admin: Api, people: People, sso: LazySettings) -> None:
    sso.LUTHIER_OIDC_ISSUER = None
    assert admin.get(PATH).json()["items"] == []
    answer = admin.post(PATH, SUBJECT)
    assert (answer.status_code, answer.json()["code"]) == (409, "single_sign_on_off")
    assert "LUTHIER_OIDC_ISSUER" in answer.json()["detail"]
    assert not SocialAccount.objects.exists()


def test_what_groups_gave_goes_with_the_link(admin: Api, people: People) -> None:
    GroupMapping.objects.create(group="ml", tenant=people.nlp, role=Role.VIEWER)
    made = admin.post(PATH, SUBJECT).json()
    user_of(Identity(ISSUER, "alice-there", groups=("ml",)))
    assert people.alice.memberships.filter(tenant=people.nlp).exists()
    admin.delete(f"{PATH}/{made['id']}")
    assert [row.tenant for row in people.alice.memberships.all()] == [people.vision]
