"""An open session alone makes no token and changes no password, and does not serve to guess the password."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from jobs.models import IdempotentResponse
from portal import passwords
from tenants.models import AuditEntry, Tenant, Token, User
from tenants.roles import Role
from tests import factories
from tests.portal.api.conftest import Api
from tests.stale_session import grow_stale

pytestmark = pytest.mark.django_db
NEW = "a brand new passphrase"
RIGHT, WRONG = {"password": factories.PASSWORD}, {"password": "not this one"}
FORM = {"name": "laptop", "role": "viewer", "days": "30"}


@pytest.fixture(autouse=True)
def _fresh_budgets() -> None:
    cache.clear()


@pytest.fixture
def lab() -> Tenant:
    return factories.tenant("vision-lab")


@pytest.fixture
def alice(lab: Tenant) -> User:
    return factories.member(lab, "alice", role=Role.MANAGER, password=factories.PASSWORD)


@pytest.fixture
def browser(alice: User) -> Client:
    return signed_in(alice)


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def make(client: Client, values: dict[str, str], path: str = "/api/v1/me/tokens", **headers: str) -> Any:
    return client.post(path, {"name": "laptop"} | values, "application/json", headers=headers)


def test_a_session_makes_a_token_with_the_password_only(browser: Client) -> None:
    for given in ({}, {"password": ""}, WRONG):
        refused = make(browser, given)
        assert (refused.status_code, refused.json()["errors"][0]["path"]) == (400, "password")
        assert "not this one" not in refused.content.decode()
        page = browser.post("/t/vision-lab/tokens/new", FORM | given)
        assert (page.status_code, list(page.context["problems"])) == (422, ["password"])
        cache.clear()
    assert not Token.objects.exists()
    assert make(browser, RIGHT).status_code == 201
    assert browser.post("/t/vision-lab/tokens/new", FORM | RIGHT).status_code == 302
    assert Token.objects.count() == 2
    failures = AuditEntry.objects.filter(action="password.failure", actor__username="alice")
    assert {entry.address for entry in failures} == {"127.0.0.1"}


def test_a_token_for_a_service_account_takes_the_managers_password(browser: Client) -> None:
    accounts = "/api/v1/tenants/vision-lab/service-accounts"
    browser.post(accounts, {"name": "ci"}, "application/json")
    assert make(browser, WRONG, f"{accounts}/ci/tokens").status_code == 400
    assert browser.post("/t/vision-lab/tokens/new", FORM | {"account": "ci"}).status_code == 422
    assert make(browser, RIGHT, f"{accounts}/ci/tokens").status_code == 201


def test_a_token_makes_what_it_may_without_a_password(alice: User) -> None:
    assert Api(alice).post("/me/tokens", {"name": "second"}).status_code == 201


def test_wrong_passwords_have_a_budget_and_right_ones_spend_none(browser: Client, alice: User) -> None:
    for _ in range(passwords.WRONG_A_MINUTE + 2):
        assert make(browser, RIGHT).status_code == 201
    for _ in range(passwords.WRONG_A_MINUTE):
        assert make(browser, WRONG).status_code == 400
    held = make(browser, RIGHT)
    assert (held.status_code, held["Retry-After"], held.json()["code"]) == (429, "60", "too_many_requests")
    assert (
        "Too many wrong passwords" in browser.post("/t/vision-lab/tokens/new", FORM | RIGHT).content.decode()
    )
    change = {"old_password": factories.PASSWORD, "new_password1": NEW, "new_password2": NEW}
    assert "Too many wrong passwords" in browser.post("/me/password", change).content.decode()
    alice.refresh_from_db()
    assert alice.check_password(factories.PASSWORD)
    other = factories.member(Tenant.objects.get(), "other", password=factories.PASSWORD)
    assert make(signed_in(other), RIGHT).status_code == 201, "another user behind the same address"
    assert Api(alice).get("/me").status_code == 200


def test_a_session_that_someone_else_has_keeps_the_owner_from_nothing(browser: Client, alice: User) -> None:
    """Not from ending it, for which they give their password."""
    for _ in range(passwords.WRONG_A_MINUTE + 1):
        make(browser, WRONG)
    assert make(browser, RIGHT).status_code == 429
    mine = signed_in(alice)
    assert make(mine, RIGHT).status_code == 201
    change = {"old_password": factories.PASSWORD, "new_password1": NEW, "new_password2": NEW}
    assert mine.post("/me/password", change)["Location"] == "/me"


def test_guesses_are_limited_by_the_hour_too(
    browser: Client, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "WRONG_A_MINUTE", 1000)
    for _ in range(passwords.WRONG_AN_HOUR):
        assert make(browser, WRONG).status_code == 400
    refused = make(browser, RIGHT)
    assert (refused.status_code, "signing in again" in refused.json()["detail"]) == (429, True)
    assert make(signed_in(alice), RIGHT).status_code == 201
    monkeypatch.setattr(passwords, "WRONG_AN_HOUR_IN_ALL", passwords.WRONG_AN_HOUR)
    assert make(signed_in(alice), RIGHT).status_code == 429, "many sessions together do not guess on"


def test_wrong_old_passwords_have_the_same_budget(browser: Client) -> None:
    change = {"new_password1": NEW, "new_password2": NEW}
    for _ in range(passwords.WRONG_A_MINUTE):
        answer = browser.post("/me/password", change | {"old_password": "not this one"})
        assert (answer.status_code, list(answer.context["form"].errors)) == (422, ["old_password"])
    held = browser.post("/me/password", change | {"old_password": factories.PASSWORD})
    assert "Too many wrong passwords" in held.content.decode()
    cache.clear()
    assert browser.post("/me/password", change | {"old_password": factories.PASSWORD}).status_code == 302


def test_a_user_without_a_password_signs_in_again(lab: Tenant) -> None:
    client = signed_in(factories.member(lab, "erin"))
    assert make(client, {}).status_code == 201
    grow_stale(client)
    refused = make(client, {})
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (400, "sign_in_again")
    assert client.post("/t/vision-lab/tokens/new", FORM)["Location"] == "/me/confirm"


def test_what_is_stored_of_a_repeatable_request_does_not_serve_to_guess_a_password(browser: Client) -> None:
    body = {"name": "laptop"} | RIGHT
    first = make(browser, RIGHT, **{"Idempotency-Key": "a"})
    assert make(browser, RIGHT, **{"Idempotency-Key": "a"}).json()["id"] == first.json()["id"]
    kept = IdempotentResponse.objects.get(key="a").request_sha256
    sent = f"POST /api/v1/me/tokens\n{json.dumps(body)}".encode()
    assert kept != hashlib.sha256(sent).hexdigest()


@pytest.mark.parametrize("by", ["page", "session", "token"])
def test_who_knows_the_earlier_password_does_not_undo_a_change_that_was_faster(
    browser: Client, alice: User, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The change of the user comes after the other request has shown the earlier password."""
    check = passwords.check

    def meanwhile(user: User, password: str, **more: Any) -> None:
        check(user, password, **more)
        mine = User.objects.get(pk=alice.pk)
        mine.set_password("of the user themselves")
        mine.save()

    monkeypatch.setattr(passwords, "check", meanwhile)
    if by == "page":
        form = {"old_password": factories.PASSWORD, "new_password1": NEW, "new_password2": NEW}
        answer = browser.post("/me/password", form)
        assert (answer.status_code, list(answer.context["form"].errors)) == (422, ["old_password"])
    else:
        body = {"current_password": factories.PASSWORD, "new_password": NEW}
        if by == "token":
            answer = Api(alice).post("/me/password", body)
        else:
            answer = browser.post("/api/v1/me/password", body, "application/json")
        assert (answer.status_code, answer.json()["errors"][0]["path"]) == (400, "current_password")
    alice.refresh_from_db()
    assert alice.check_password("of the user themselves")
