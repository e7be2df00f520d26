"""Users and sessions by REST: for platform admins, with secrets shown once; own sessions for everybody."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import LazySettings
from django.test import Client

from portal.settings.secret import SecretsKeys
from tenants import one_time, two_factor
from tenants.models import AuditEntry, Token, User
from tenants.roles import Role
from tenants.services.accounts import account_create, account_token_create
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api


@pytest.fixture
def secrets_keys(settings: LazySettings, tmp_path: Path) -> None:
    settings.LUTHIER_SECRETS_KEYS = SecretsKeys((), tmp_path / "secrets_keys")


def test_an_admin_creates_reads_changes_and_lists_users(admin: Api) -> None:
    made = admin.post("/users", {"username": "erin", "email": "erin@example.org"}, Idempotency_Key="a")
    assert made.status_code == 201
    assert made["Location"] == "/api/v1/users/erin"
    body = made.json()
    assert body["state"] == "invited"
    assert body["link"].endswith(f"/welcome#erin/{body['one_time_password']}")
    again = admin.post("/users", {"username": "erin", "email": "erin@example.org"}, Idempotency_Key="a")
    assert (again.json()["one_time_password"], again.json()["link"]) == (None, None)
    assert one_time.redeem("erin", body["one_time_password"]) is not None
    changed = admin.patch("/users/erin", {"is_platform_admin": True}, If_Match=body["etag"])
    assert changed.json()["is_platform_admin"] is True
    assert admin.patch("/users/erin", {"email": ""}, If_Match=body["etag"]).status_code == 412
    names = [item["username"] for item in admin.get("/users?page_size=2").json()["items"]]
    assert names == sorted(names)
    assert [item["username"] for item in admin.get("/users?q=erin@").json()["items"]] == ["erin"]
    taken = admin.post("/users", {"username": "Erin"}).json()
    assert (taken["code"], [each["path"] for each in taken["errors"]]) == ("name_taken", ["username"])
    wrong = admin.post("/users", {"username": "no spaces", "email": "nowhere", "foo": 1}).json()["errors"]
    assert {each["path"] for each in wrong} == {"username", "email", "foo"}


def test_one_fault_of_a_text_is_one_error_with_what_is_allowed(admin: Api) -> None:
    texts = {"username": "x" * 151, "email": "x" * 255, "first_name": "\x07" * 151, "last_name": "\x07"}
    found = admin.post("/users", texts).json()["errors"]
    assert [(each["path"], each["code"], each["allowed"]) for each in found] == [
        ("email", "max_length", "at most 254 characters"),
        ("first_name", "max_length", "at most 150 characters"),
        ("last_name", "not_printable", None),
        ("username", "max_length", "1 to 150 characters"),
    ]
    (wrong,) = admin.post("/users", {"username": "erin", "email": "x"}).json()["errors"]
    assert (wrong["path"], wrong["code"], wrong["allowed"]) == ("email", "not_allowed", None)
    (wrong,) = admin.post("/runtimes", {"slug": "x" * 41}).json()["errors"]
    assert (wrong["path"], wrong["code"], wrong["allowed"]) == ("slug", "max_length", "1 to 40 characters")
    (wrong,) = admin.post("/runtimes", {"slug": "X"}).json()["errors"]
    assert (wrong["path"], wrong["code"]) == ("slug", "not_a_slug")
    assert wrong["allowed"].startswith("1 to 40 lowercase letters")


def test_reset_disable_and_enable(admin: Api, alice: Api, people: People) -> None:
    reset = admin.post("/users/alice/reset", {})
    assert reset.status_code == 200
    redeemed = one_time.redeem("alice", reset.json()["one_time_password"])
    assert redeemed is not None
    assert redeemed.user == people.alice
    assert alice.get("/me").status_code == 200, "a reset leaves API tokens"
    assert admin.post("/users/alice/disable", {}).json()["state"] == "disabled"
    assert alice.get("/me").status_code == 401
    assert admin.post("/users/alice/enable", {}).status_code == 200
    assert alice.get("/me").status_code == 401, "tokens do not come back"
    last = admin.post("/users/admin/disable", {})
    assert (last.status_code, last.json()["code"]) == (409, "last_admin")
    actions = AuditEntry.objects.filter(target="alice").order_by("pk").values_list("action", "address")
    assert list(actions) == [(f"user.{verb}", "127.0.0.1") for verb in ("reset", "disable", "enable")]


def test_admins_and_the_user_see_whether_a_second_factor_is_set_up_and_nothing_else_of_it(
    admin: Api, alice: Api, bob: Api, people: People, secrets_keys: None
) -> None:
    def states() -> dict[str, bool]:
        return {each["username"]: each["two_factor"] for each in admin.get("/users").json()["items"]}

    assert alice.get("/me").json()["two_factor"] is False
    two_factor.app_begin(people.alice)
    assert states()["alice"] is False, "an app that was only begun is not asked"
    secret, codes = factories.authenticator_app(people.alice)
    assert states() == {name: name == "alice" for name in states()}
    read = admin.get("/users/alice")
    assert read.json()["two_factor"] is True
    assert alice.get("/me").json()["two_factor"] is True
    assert bob.get("/users/alice").status_code == 403
    assert not [word for word in (secret, *codes) if word in read.content.decode()]
    factories.passkey(people.bob)
    assert states() == {name: name in ("alice", "bob") for name in states()}
    assert bob.get("/me").json()["two_factor"] is True
    _, weak = Token.objects.create(user=people.alice, name="weak", role_ceiling=Role.RESEARCHER)
    assert Api(secret=weak).get("/me").json()["two_factor"] is None


def test_an_admin_resets_the_second_factor_that_a_user_has_lost(
    admin: Api, alice: Api, bob: Api, people: People, secrets_keys: None
) -> None:
    path = "/users/alice/reset-two-factor"
    factories.authenticator_app(people.alice)
    factories.passkey(people.alice)
    browser = Client()
    browser.force_login(people.alice)
    account_create(user=people.dave, tenant=people.vision, name="ci")
    _, robot = account_token_create(user=people.dave, tenant=people.vision, name="ci", token_name="x")
    _, weak = Token.objects.create(user=people.admin, name="weak", tenant=people.vision)
    for caller in (alice, bob, Api(people.dave), Api(secret=robot), Api(secret=weak)):
        assert caller.post(path, {}).status_code == 403
    assert two_factor.is_on(people.alice)
    assert browser.get("/me").status_code == 200
    done = admin.post(path, {}, Idempotency_Key="a")
    assert (done.status_code, done.json()["two_factor"]) == (200, False)
    assert not two_factor.is_on(people.alice)
    assert two_factor.factors_of(people.alice).codes_left == 0
    assert browser.get("/me").status_code == 302
    assert alice.get("/me").status_code == 200, "API tokens stay"
    factories.authenticator_app(people.alice)
    assert admin.post(path, {}, Idempotency_Key="a").status_code == 200
    assert two_factor.is_on(people.alice), "a repeat of the request leaves what was set up since"
    assert admin.post("/users/bob/reset-two-factor", {}).json()["two_factor"] is False
    for name in ("vision-lab.ci", "no-one"):
        assert admin.post(f"/users/{name}/reset-two-factor", {}).status_code == 404
    entry = AuditEntry.objects.get(action="two_factor.reset")  # one: bob had none
    assert (entry.actor, entry.target, entry.address) == (people.admin, "alice", "127.0.0.1")
    assert entry.details == {"sessions": 1}


def test_a_user_sees_and_ends_their_sessions(alice: Api, people: People) -> None:
    browsers = [Client(), Client()]
    for browser in browsers:
        browser.force_login(people.alice)
    listed = alice.get("/me/sessions").json()["items"]
    assert len(listed) == 2
    assert not any(item["current"] for item in listed)
    assert browsers[0].get("/api/v1/me/sessions").json()["items"][0].keys() == listed[0].keys()
    assert alice.get(f"/me/sessions/{listed[0]['id']}").json() == listed[0]
    assert Api(people.bob).get(f"/me/sessions/{listed[0]['id']}").status_code == 404
    assert alice.delete(f"/me/sessions/{listed[0]['id']}").status_code == 204
    assert alice.get(f"/me/sessions/{listed[0]['id']}").status_code == 404
    assert alice.delete(f"/me/sessions/{listed[0]['id']}").status_code == 404
    Token.objects.create(user=people.alice, name="other")
    assert alice.delete("/me/sessions").json() == {"sessions": 1, "tokens": 0}
    assert alice.delete("/me/sessions?tokens=true").json() == {"sessions": 0, "tokens": 1}
    assert alice.get("/me").status_code == 200, "the token of the request stays"
    assert {browser.get("/me").status_code for browser in browsers} == {302}


def test_a_session_ends_all_others_and_stays(people: People) -> None:
    here, there = Client(), Client()
    here.force_login(people.alice)
    there.force_login(people.alice)
    assert here.delete("/api/v1/me/sessions").json() == {"sessions": 1, "tokens": 0}
    assert [here.get("/me").status_code, there.get("/me").status_code] == [200, 302]


def test_a_limited_token_neither_sees_nor_ends_sessions(people: People) -> None:
    for limits in ({"role_ceiling": Role.RESEARCHER}, {"tenant": people.alice.memberships.get().tenant}):
        _, secret = Token.objects.create(user=people.alice, name="weak", **limits)
        weak = Api(secret=secret)
        assert weak.get("/me/sessions").status_code == weak.get("/me/sessions/any").status_code == 403
        assert weak.delete("/me/sessions?tokens=true").status_code == 403
    assert Token.objects.filter(user=people.alice).count() == 2


def test_an_admin_sees_and_ends_sessions_of_a_user(admin: Api, bob: Api, people: People) -> None:
    browser = Client()
    browser.force_login(people.alice)
    (one,) = admin.get("/users/alice/sessions").json()["items"]
    assert bob.get("/users/alice/sessions").status_code == 403
    assert admin.delete(f"/users/alice/sessions/{one['id']}").status_code == 204
    assert browser.get("/me").status_code == 302
    assert admin.delete("/users/alice/sessions?tokens=true").json()["sessions"] == 0
    assert User.objects.get(pk=people.alice.pk).is_active
