"""A user's password and second factor by REST: with the proof that they are there, which a token alone is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.cache import cache
from django.db import OperationalError
from django.test import Client, RequestFactory

from portal import code_budget, passwords, proof
from portal.settings.secret import SecretsKeys
from tenants import audit, two_factor
from tenants.models import AuditEntry, Tenant, Token, User
from tenants.roles import Role
from tenants.services.accounts import account_create, account_token_create
from tests import factories
from tests.portal.api.conftest import Api
from tests.stale_session import grow_stale

pytestmark = pytest.mark.django_db
NEW = "tuba horn bass 47"
RIGHT, WRONG = {"password": factories.PASSWORD}, {"password": "not this one"}
CHANGE = {"current_password": factories.PASSWORD, "new_password": NEW}
STATE, APP, CONFIRM = "/me/two-factor", "/me/two-factor/app", "/me/two-factor/app/confirm"
REMOVALS = ("/me/two-factor/remove", "/me/two-factor/app/remove")
TAKE_PROOF = (*REMOVALS, APP, "/me/two-factor/codes")


@pytest.fixture(autouse=True)
def _keys(settings: LazySettings, tmp_path: Path) -> None:
    settings.LUTHIER_SECRETS_KEYS = SecretsKeys((), tmp_path / "secrets_keys")


@pytest.fixture
def lab() -> Tenant:
    return factories.tenant("vision-lab")


@pytest.fixture
def alice(lab: Tenant) -> User:
    return factories.member(lab, "alice", role=Role.MANAGER, password=factories.PASSWORD)


@pytest.fixture
def api(alice: User) -> Api:
    return Api(alice)


@pytest.fixture
def browser(alice: User) -> Client:
    client = Client()
    client.force_login(alice)
    return client


def send(client: Client, path: str, body: Any) -> Any:
    return client.post(f"/api/v1{path}", body, "application/json")


def wrong(answer: Any) -> tuple[int, str, str]:
    (error,) = answer.json()["errors"]
    return answer.status_code, error["path"], error["code"]


def test_a_password_is_changed_with_the_one_until_now_and_sessions_end(
    api: Api, alice: User, browser: Client
) -> None:
    before = {"current_password": "not this one", "new_password": NEW}
    assert wrong(api.post("/me/password", before)) == (400, "current_password", "wrong_password")
    assert wrong(api.post("/me/password", CHANGE | {"new_password": "short"}))[1:] == (
        "new_password",
        "too_weak",
    )
    assert api.post("/me/password", {"new_password": NEW}).status_code == 400
    done = api.post("/me/password", CHANGE)
    assert (done.status_code, done.json()) == (200, {"sessions": 1})
    alice.refresh_from_db()
    assert alice.check_password(NEW)
    assert browser.get("/me").status_code == 302
    assert api.get("/me").status_code == 200, "tokens stay"
    entries = AuditEntry.objects.filter(target="alice").order_by("pk").values_list("action", flat=True)
    assert list(entries) == ["password.failure", "password.change"]


def test_the_session_of_a_change_stays_and_others_end(alice: User, browser: Client) -> None:
    other = Client()
    other.force_login(alice)
    assert send(browser, "/me/password", CHANGE).json() == {"sessions": 1}
    assert (browser.get("/me").status_code, other.get("/me").status_code) == (200, 302)


def test_no_response_repeats_a_password(api: Api) -> None:
    long = "hunter2" * 1000
    body = {"current_password": long, "new_password": long, "code": long}
    assert "hunter2" not in api.post("/me/password", body).content.decode()
    assert "hunter2" not in api.post(APP, {"password": long}).content.decode()


def test_tokens_guess_in_vain_and_keep_no_session_from_changing_it(
    api: Api, alice: User, browser: Client
) -> None:
    other = Api(alice)
    for n in range(passwords.WRONG_A_MINUTE):
        caller = (api, other)[n % 2]
        assert caller.post("/me/password", CHANGE | {"current_password": f"guess{n}"}).status_code == 400
    for caller in (api, other):
        held = caller.post("/me/password", CHANGE)
        assert (held.status_code, held["Retry-After"]) == (429, "60")
        assert caller.post(APP, RIGHT).status_code == 429
    assert send(browser, "/me/password", CHANGE).status_code == 200


def test_with_passwords_off_there_is_none_to_change(api: Api, settings: LazySettings) -> None:
    settings.LUTHIER_PASSWORD_SIGN_IN = False
    answer = api.post("/me/password", CHANGE)
    assert (answer.status_code, answer.json()["code"]) == (409, "passwords_off")


@pytest.mark.parametrize("path", TAKE_PROOF)
def test_a_token_needs_the_password_and_the_second_factor(api: Api, alice: User, path: str) -> None:
    secret, codes = factories.authenticator_app(alice)
    assert wrong(api.post(path, {})) == (400, "password", "wrong_password")
    assert wrong(api.post(path, WRONG | {"code": codes[0]})) == (400, "password", "wrong_password")
    assert wrong(api.post(path, RIGHT)) == (400, "code", "required")
    assert wrong(api.post(path, RIGHT | {"code": "000000"})) == (400, "code", "wrong_code")
    assert two_factor.factors_of(alice).codes_left == 10, "no code was used up by a wrong password"
    assert api.post(path, RIGHT | {"code": factories.app_code(secret)}).status_code in (200, 201)
    failures = AuditEntry.objects.filter(action="code.failure", actor=alice)
    assert failures.count() == 1


@pytest.mark.parametrize("path", [*TAKE_PROOF, "/me/password"])
def test_a_factor_that_came_while_a_token_proved_its_user_has_to_be_shown(
    api: Api, alice: User, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who found a token and the password is as fast as the user, who adds the first second factor."""
    confirmed = proof.confirm

    def confirm_and_be_slow(*of: Any, **more: Any) -> bool:
        shown = confirmed(*of, **more)
        factories.authenticator_app(alice)
        return shown

    monkeypatch.setattr(proof, "confirm", confirm_and_be_slow)
    body = CHANGE if path == "/me/password" else RIGHT
    assert wrong(api.post(path, body)) == (400, "code", "required")
    assert two_factor.factors_of(alice).on
    assert not alice.authenticator_apps.filter(confirmed_at=None).exists()
    alice.refresh_from_db()
    assert alice.check_password(factories.PASSWORD)


@pytest.mark.parametrize("path", REMOVALS)
def test_a_removal_that_is_refused_anyway_uses_up_no_recovery_code(
    api: Api, alice: User, path: str, settings: LazySettings
) -> None:
    _, codes = factories.authenticator_app(alice)
    settings.LUTHIER_TWO_FACTOR_REQUIRED = True
    answer = api.post(path, RIGHT | {"code": codes[0]})
    assert (answer.status_code, answer.json()["code"]) == (409, "two_factor_required")
    assert two_factor.factors_of(alice).codes_left == two_factor.RECOVERY_CODES


def test_a_token_has_few_guesses_an_hour(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "WRONG_A_MINUTE", 1000)
    for n in range(passwords.WRONG_AN_HOUR):
        assert api.post(TAKE_PROOF[n % 4], WRONG).status_code == 400, n
    assert api.post(APP, RIGHT).status_code == 429


def test_a_change_that_is_repeated_after_a_conflict_of_transactions_is_none_of_another(
    api: Api, alice: User, monkeypatch: pytest.MonkeyPatch, rf: RequestFactory
) -> None:
    alice.token = Token.objects.get(user=alice)

    def fail(**entry: object) -> None:
        raise OperationalError

    with monkeypatch.context() as patched:
        patched.setattr(audit, "record", fail)
        with pytest.raises(OperationalError):
            passwords.change(rf.post("/"), alice, NEW)
    passwords.change(rf.post("/"), alice, NEW)
    alice.refresh_from_db()
    assert alice.check_password(NEW)


def test_a_new_password_takes_the_second_factor_of_a_token_as_well(api: Api, alice: User) -> None:
    _, codes = factories.authenticator_app(alice)
    assert wrong(api.post("/me/password", CHANGE)) == (400, "code", "required")
    assert api.post("/me/password", CHANGE | {"code": codes[0]}).status_code == 200


def test_codes_are_not_guessed_by_rest_and_the_sign_in_together(api: Api, alice: User) -> None:
    secret, codes = factories.authenticator_app(alice)
    for n in range(code_budget.WRONG_A_MINUTE):
        assert api.post(APP, RIGHT | {"code": f"00000{n}"}).status_code == 400
    held = api.post(APP, RIGHT | {"code": factories.app_code(secret)})
    assert (held.status_code, held.json()["code"]) == (429, "too_many_requests")
    client = Client()
    client.post("/login", RIGHT | {"username": "alice"})
    assert client.post("/login/code", {"code": factories.app_code(secret)}).status_code == 422
    assert api.post(APP, RIGHT | {"code": codes[0]}).status_code == 201, "recovery codes still work"


def test_an_app_is_set_up_by_its_code_and_the_response_has_the_recovery_codes(
    api: Api, alice: User, browser: Client
) -> None:
    begun = api.post(APP, RIGHT).json()
    assert begun["uri"].startswith("otpauth://totp/")
    body = {"app": begun["app"], **RIGHT}
    assert wrong(api.post(CONFIRM, body | {"app_code": "000000"})) == (400, "app_code", "wrong_code")
    code = factories.app_code(begun["secret"])
    assert wrong(api.post(CONFIRM, body | WRONG | {"app_code": code})) == (400, "password", "wrong_password")
    for app in ("0", "x", "²", "9" * 20):
        assert wrong(api.post(CONFIRM, body | {"app": app, "app_code": code}))[1:] == ("app_code", "too_late")
    done = api.post(CONFIRM, body | {"app_code": code})
    assert (done.status_code, len(done.json()["recovery_codes"])) == (200, two_factor.RECOVERY_CODES)
    assert browser.get("/me").status_code == 302, "sessions from before end"
    state = api.get(STATE).json()
    assert (state["on"], state["recovery_codes_left"], state["passkeys"]) == (True, 10, [])
    assert state["app_since"] is not None


def test_secrets_are_in_the_first_response_only(api: Api) -> None:
    begun = api.post(APP, RIGHT, Idempotency_Key="k1").json()
    again = api.post(APP, RIGHT, Idempotency_Key="k1").json()
    assert again == {"app": begun["app"], "secret": None, "uri": None}
    body = {"app": begun["app"], "app_code": factories.app_code(begun["secret"]), **RIGHT}
    assert api.post(CONFIRM, body, Idempotency_Key="k2").json()["recovery_codes"]
    assert api.post(CONFIRM, body, Idempotency_Key="k2").json() == {"recovery_codes": None}


@pytest.mark.parametrize("path", TAKE_PROOF)
def test_a_repeat_after_a_lost_answer_shows_its_one_time_code_again_and_is_no_failure(
    api: Api, alice: User, path: str
) -> None:
    secret, _ = factories.authenticator_app(alice)
    body = RIGHT | {"code": factories.app_code(secret)}
    first = api.post(path, body, Idempotency_Key="k1")
    assert first.status_code in (200, 201)
    for _ in range(code_budget.WRONG_A_MINUTE + 1):
        assert api.post(path, body, Idempotency_Key="k1").status_code == first.status_code
    assert not AuditEntry.objects.filter(action__endswith=".failure").exists()
    assert code_budget.spend(alice)


def test_a_repeat_of_a_changed_password_gives_the_earlier_one_and_is_no_failure(
    api: Api, browser: Client
) -> None:
    sent = [
        api.post("/me/password", CHANGE, Idempotency_Key="k1") for _ in range(passwords.WRONG_A_MINUTE + 2)
    ]
    assert {answer.status_code for answer in sent} == {200}
    other = api.post("/me/password", CHANGE | {"new_password": NEW + "!"}, Idempotency_Key="k1")
    assert other.status_code == 422, "of another request"
    assert not AuditEntry.objects.filter(action="password.failure").exists()


def test_a_refused_proof_with_a_key_is_counted_each_time(api: Api) -> None:
    for n in range(passwords.WRONG_A_MINUTE):
        assert api.post(APP, WRONG, Idempotency_Key="k1").status_code == 400
        assert AuditEntry.objects.filter(action="password.failure").count() == n + 1
    assert api.post(APP, WRONG, Idempotency_Key="k1").status_code == 429


def test_an_app_that_was_begun_without_the_second_factor_is_worth_nothing_once_there_is_one(
    api: Api, alice: User
) -> None:
    """Who found a token and the password begins an app; then the user adds a passkey."""
    begun = api.post(APP, RIGHT).json()
    factories.passkey(alice)
    body = {"app": begun["app"], "app_code": factories.app_code(begun["secret"]), **RIGHT}
    assert wrong(api.post(CONFIRM, body)) == (400, "app_code", "too_late")
    assert not alice.authenticator_apps.exists()


def test_a_session_gives_the_password_and_stays_when_a_factor_comes_or_goes(
    alice: User, browser: Client, settings: LazySettings
) -> None:
    other = Client()
    other.force_login(alice)
    assert wrong(send(browser, APP, WRONG)) == (400, "password", "wrong_password")
    begun = send(browser, APP, RIGHT).json()
    body = {"app": begun["app"], "app_code": factories.app_code(begun["secret"]), **RIGHT}
    assert send(browser, CONFIRM, body).status_code == 200
    settings.LUTHIER_TWO_FACTOR_REQUIRED = True
    assert (browser.get("/me").status_code, other.get("/me").status_code) == (200, 302)
    refused = send(browser, REMOVALS[0], RIGHT)
    assert (refused.status_code, refused.json()["code"]) == (409, "two_factor_required")
    settings.LUTHIER_TWO_FACTOR_REQUIRED = False
    assert send(browser, REMOVALS[0], RIGHT).json()["on"] is False
    assert browser.get("/me").status_code == 200


@pytest.mark.parametrize("path", REMOVALS)
def test_a_removal_ends_sessions(api: Api, alice: User, path: str) -> None:
    _, codes = factories.authenticator_app(alice)
    client = Client()
    client.force_login(alice)
    assert api.post(path, RIGHT | {"code": codes[0]}).json()["on"] is False
    assert client.get("/me").status_code == 302
    assert not two_factor.is_on(alice)
    assert not alice.recovery_codes.exists()


def test_a_passkey_is_renamed_and_removed_by_its_user_only(api: Api, alice: User, lab: Tenant) -> None:
    device = factories.passkey(alice)
    path = f"/me/two-factor/passkeys/{device.row.pk}"
    other = Api(factories.member(lab, "eve", password=factories.PASSWORD))
    assert other.patch(path, {"name": "mine"}).status_code == 404
    assert other.post(f"{path}/remove", RIGHT).status_code == 404
    seen = api.get(STATE).json()["passkeys"][0]["etag"]
    assert api.patch(path, {"name": "  blue \n key "}, If_Match=seen).json()["name"] == "blue key"
    assert api.patch(path, {"name": "red key"}, If_Match=seen).status_code == 412
    assert wrong(api.patch(path, {"name": "\n"}))[:2] == (400, "name")
    assert api.post(f"{path}/remove", RIGHT).status_code == 400
    assert api.get(STATE).json()["passkeys"][0]["name"] == "blue key"
    assert api.post(f"{path}/remove", RIGHT | {"code": device.codes[0]}).json()["passkeys"] == []


@pytest.mark.parametrize("limit", [{"role_ceiling": "researcher"}, {"tenant": True}])
def test_a_limited_token_neither_sees_nor_changes_how_its_user_signs_in(
    alice: User, lab: Tenant, limit: dict[str, Any]
) -> None:
    device = factories.passkey(alice)
    _, secret = Token.objects.create(
        user=alice, name="ci", **{k: lab if v is True else v for k, v in limit.items()}
    )
    limited, whole = Api(secret=secret), RIGHT | {"code": device.codes[0]}
    passkey = f"/me/two-factor/passkeys/{device.row.pk}"
    answers = [
        limited.get(STATE),
        limited.patch(passkey, {"name": "x"}),
        limited.post("/me/password", CHANGE | {"code": device.codes[0]}),
        limited.post(CONFIRM, {"app": "1", "app_code": "000000", **RIGHT}),
        *(limited.post(path, whole) for path in (*TAKE_PROOF, f"{passkey}/remove")),
    ]
    assert {answer.status_code for answer in answers} == {403}
    assert two_factor.factors_of(alice).codes_left == 10


def test_a_service_account_has_nothing_to_sign_in_with(alice: User, lab: Tenant) -> None:
    account_create(user=alice, tenant=lab, name="ci")
    _, secret = account_token_create(user=alice, tenant=lab, name="ci", token_name="t")
    program = Api(secret=secret)
    assert program.get(STATE).status_code == 403
    assert program.post(APP, RIGHT).status_code == 403


def test_a_user_without_a_password_does_it_in_a_fresh_session_only(lab: Tenant) -> None:
    erin = factories.member(lab, "erin")
    assert wrong(Api(erin).post(APP, RIGHT)) == (400, "password", "sign_in_again")
    assert wrong(Api(erin).post("/me/password", CHANGE)) == (400, "current_password", "no_password")
    client = Client()
    client.force_login(erin)
    assert send(client, APP, {}).status_code == 201
    grow_stale(client)
    assert wrong(send(client, APP, {})) == (400, "password", "sign_in_again")
    # The cookie of a fresh session beside a token is no proof of who sent the token.
    again = Client()
    again.force_login(erin)
    mixed = Api(erin)
    mixed.client = again
    assert wrong(mixed.post(APP, {})) == (400, "password", "sign_in_again")
    cache.clear()
