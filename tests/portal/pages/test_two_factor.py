"""Signing in with a second factor: asked after the password, guessed in vain, required, lost and reset."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from axes.models import AccessAttempt
from django.conf import LazySettings
from django.core.cache import cache
from django.db import OperationalError, connection, transaction
from django.test import Client

from portal import code_budget, login_names, single_sign_on
from portal.live.identity import Credentials, who
from portal.settings.secret import SecretsKeys, new_secrets_key
from tenants import two_factor
from tenants.models import AuditEntry, Session, User
from tenants.services.identities import Identity, identity_link, identity_unlink
from tenants.services.users import user_disable, user_reset, user_two_factor_reset
from tests import factories
from tests.markup import markup
from tests.portal.api.conftest import Api
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db
PASSWORD = {"password": factories.PASSWORD}


@pytest.fixture(autouse=True)
def key_file(settings: LazySettings, tmp_path: Path) -> Path:
    cache.clear()  # budgets
    settings.LUTHIER_SECRETS_KEYS = SecretsKeys((), tmp_path / "secrets_keys")
    return tmp_path / "secrets_keys"


@pytest.fixture
def required(settings: LazySettings) -> LazySettings:
    settings.LUTHIER_TWO_FACTOR_REQUIRED = True
    return settings


def give_password(client: Client, to: str = "", name: str = "alice") -> Any:
    return client.post("/login", PASSWORD | {"username": name, "next": to})


def is_in(client: Client) -> bool:
    """Whether pages, REST or sockets take the browser for a user's; all three, or none."""
    cookie = client.cookies.get("luthier")
    found = {
        client.get("/me").status_code == 200,
        client.get("/api/v1/me").status_code == 200,
        who(Credentials(session_key=cookie.value if cookie else "")) is not None,
    }
    (answer,) = found
    return answer


def test_the_code_is_asked_after_the_password_and_nothing_is_open_before(alice: User) -> None:
    secret, _ = factories.authenticator_app(alice)
    client = Client()
    answer = give_password(client, "/help")
    assert (answer.status_code, answer["Location"]) == (302, "/login/code")
    assert not is_in(client)
    assert Session.objects.get().user is None
    before = client.session.session_key
    done = client.post("/login/code", {"code": factories.app_code(secret)})
    assert (done.status_code, done["Location"]) == (302, "/help")
    assert is_in(client)
    assert client.session.session_key != before
    assert client.session.get_expiry_age() > 13 * 86400
    entry = AuditEntry.objects.get(action="login.success")
    assert (entry.actor, entry.details) == (alice, {"second_factor": "authenticator app"})


def test_a_reset_password_asks_for_the_second_factor_of_before(alice: User, admin: User) -> None:
    secret, _ = factories.authenticator_app(alice)
    given = user_reset(user=admin, username="alice").secret
    client = Client()
    redeemed = client.post("/login", {"username": "alice", "password": given})
    assert redeemed["Location"] == "/welcome/password"
    assert not is_in(client), "a one-time password signs no one in"
    new = "one that no other has"
    client.post("/welcome/password", {"new_password1": new, "new_password2": new})
    for browser in (client, Client()):
        answer = browser.post("/login", {"username": "alice", "password": new})
        assert (answer.status_code, answer["Location"]) == (302, "/login/code")
        assert not is_in(browser)
    assert client.post("/login/code", {"code": factories.app_code(secret)}).status_code == 302
    assert is_in(client)


def test_without_a_second_factor_the_password_is_enough(alice: User) -> None:
    client = Client()
    assert give_password(client)["Location"] == "/"
    assert is_in(client)
    assert client.get("/login/code")["Location"] == "/login"


def test_a_recovery_code_signs_in_once_and_says_how_many_are_left(alice: User) -> None:
    _, codes = factories.authenticator_app(alice)
    client, again = Client(), Client()
    for each in (client, again):
        give_password(each)
    assert client.post("/login/code", {"code": codes[3]}).status_code == 302
    assert "You used a recovery code. 9 left" in markup(client.get("/me"))
    assert again.post("/login/code", {"code": codes[3]}).status_code == 422
    assert not is_in(again)


def test_a_wrong_code_is_recorded_and_spends_from_the_budgets_of_passwords(
    alice: User, settings: LazySettings
) -> None:
    settings.AXES_ENABLED, settings.AXES_FAILURE_LIMIT = True, 3
    _, codes = factories.authenticator_app(alice)
    client = Client()
    give_password(client)
    refused = client.post("/login/code", {"code": "a wrong recovery code"})
    assert (refused.status_code, "Incorrect code." in markup(refused)) == (422, True)
    entry = AuditEntry.objects.get(action="login.failure")
    assert (entry.target, entry.details) == ("alice", {"known_name": True, "by": "code"})
    assert AccessAttempt.objects.get().username == login_names.hashed("alice")
    statuses = [client.post("/login/code", {"code": "wrong again"}).status_code for _ in range(3)]
    assert statuses == [422, 429, 429]
    assert client.post("/login/code", {"code": codes[0]}).status_code == 429
    assert give_password(Client()).status_code == 429, "the address has one budget"
    other = Client(REMOTE_ADDR="10.0.0.8")
    assert give_password(other).status_code == 302, "no one else is locked out"
    assert other.post("/login/code", {"code": codes[0]}).status_code == 302


def test_codes_of_an_app_are_not_guessed_from_many_addresses(alice: User) -> None:
    secret, codes = factories.authenticator_app(alice)
    client = Client()
    give_password(client)
    for n in range(code_budget.WRONG_A_MINUTE):
        assert client.post("/login/code", {"code": f"00000{n}"}, REMOTE_ADDR=f"10.0.0.{n}").status_code == 422
    held = client.post("/login/code", {"code": factories.app_code(secret)}, REMOTE_ADDR="10.0.1.1")
    assert (held.status_code, "Too many wrong codes" in markup(held)) == (422, True)
    assert client.post("/login/code", {"code": codes[0]}).status_code == 302, "recovery codes still work"


def test_right_codes_spend_nothing(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_budget, "WRONG_A_MINUTE", 1)
    monkeypatch.setattr(code_budget, "WRONG_AN_HOUR", 1)
    secret, _ = factories.authenticator_app(alice)
    for _ in range(2):
        alice.authenticator_apps.update(last_step=0)
        client = Client()
        give_password(client)
        assert client.post("/login/code", {"code": factories.app_code(secret)}).status_code == 302


def test_a_second_setup_at_the_sign_in_replaces_no_app(alice: User, required: LazySettings) -> None:
    mine, other = Client(), Client()
    give_password(other)
    theirs = alice.authenticator_apps.get().pk
    factories.authenticator_app(alice)  # which drops theirs
    assert not alice.authenticator_apps.filter(pk=theirs).exists()
    session = other.session
    session["awaits_code"] |= {"app": two_factor.app_begin(alice)}  # as if both had begun at the same time
    session.save()
    begun = other.get("/login/two-factor").context["begun"]
    refused = other.post("/login/two-factor", {"code": factories.app_code(begun.secret)})
    assert (refused.status_code, "comes too late" in markup(refused)) == (422, True)
    assert not is_in(other)
    assert give_password(mine)["Location"] == "/login/code"


@pytest.mark.parametrize("change", ["password", "disabled", "reset"])
def test_a_code_is_too_late_once_the_password_counts_no_longer(alice: User, admin: User, change: str) -> None:
    secret, _ = factories.authenticator_app(alice)
    client = Client()
    give_password(client)
    if change == "disabled":
        user_disable(user=admin, username="alice")
    elif change == "reset":
        user_two_factor_reset(user=admin, username="alice")
    else:
        alice.set_unusable_password()
        alice.save()
    answer = client.post("/login/code", {"code": factories.app_code(secret)})
    assert answer["Location"] == "/login"
    assert not is_in(client)
    assert "no longer counts" in markup(client.get("/login"))


def test_an_app_is_set_up_with_the_password_and_a_code(alice: User, signed_in: SignIn) -> None:
    browser, other = signed_in(alice), signed_in(alice)
    refused = browser.post("/me/two-factor/begin", {"password": "not this one"})
    assert (refused.status_code, "This is not your password." in markup(refused)) == (422, True)
    assert browser.post("/me/two-factor/begin", PASSWORD).status_code == 302
    page = browser.get("/me/two-factor")
    assert '<svg class="qr"' in markup(page)
    assert "<style" not in page.content.decode()
    assert '<svg class="qr"' not in markup(other.get("/me/two-factor")), "another session sees the secret"
    secret = page.context["begun"].secret
    wrong = browser.post("/me/two-factor/confirm", {"code": factories.app_code(secret, steps=9)})
    assert (wrong.status_code, "current code" in markup(wrong)) == (422, True)
    done = browser.post("/me/two-factor/confirm", {"code": factories.app_code(secret)}, follow=True)
    codes = re.findall(r"\b(?:\w{4}-){6}\w{4}\b", done.context["given"]["text"])
    assert len(codes) == 10
    assert "Shown once" in markup(done)
    assert codes[0] not in browser.get("/me/two-factor").content.decode()
    assert is_in(browser)
    assert not is_in(other)
    assert two_factor.check(alice, codes[0]) == "recovery code"


def test_recovery_codes_are_renewed_and_the_app_is_removed_with_the_password_only(
    alice: User, signed_in: SignIn
) -> None:
    factories.authenticator_app(alice)
    browser = signed_in(alice)
    for act in ("codes", "remove"):
        assert browser.post(f"/me/two-factor/{act}", {"password": "wrong"}).status_code == 422
    assert two_factor.is_on(alice)
    shown = browser.post("/me/two-factor/codes", PASSWORD, follow=True).context["given"]["text"].split()
    assert (len(shown), two_factor.check(alice, shown[0])) == (10, "recovery code")
    assert browser.post("/me/two-factor/remove", PASSWORD).status_code == 302
    assert not two_factor.is_on(alice)
    assert give_password(Client())["Location"] == "/"


def test_a_form_that_is_sent_again_claims_nothing_that_was_undone(alice: User, signed_in: SignIn) -> None:
    browser = signed_in(alice)
    browser.post("/me/two-factor/begin", PASSWORD)
    secret = browser.get("/me/two-factor").context["begun"].secret
    forms = {
        "confirm": {"code": factories.app_code(secret), "form_key": "k1"},
        "codes": PASSWORD | {"form_key": "k2"},
    }
    for name, form in forms.items():
        for _ in range(2):  # a repeat whose first answer was lost
            done = browser.post(f"/me/two-factor/{name}", form, follow=True)
            assert len(done.context["given"]["text"].split()) == 10
    assert browser.session["proved"]["second"] == "authenticator app"
    browser.post("/me/two-factor/remove", PASSWORD)
    for name, form in forms.items():
        done = browser.post(f"/me/two-factor/{name}", form, follow=True)
        assert done.context["given"] is None, "codes that no longer work"
        assert "authentication is on" not in markup(done)
    assert browser.session["proved"]["second"] == ""


def test_where_it_is_required_who_has_none_reaches_its_setup_alone(
    alice: User, required: LazySettings
) -> None:
    client = Client()
    assert give_password(client, "/help")["Location"] == "/login/two-factor"
    assert not is_in(client)
    assert client.get("/login/code")["Location"] == "/login/two-factor", "the dialog asks here what is due"
    page = client.get("/login/two-factor")
    secret = page.context["begun"].secret
    assert client.post("/login/two-factor", {"code": "000 00"}).status_code == 422
    assert not is_in(client)
    done = client.post("/login/two-factor", {"code": factories.app_code(secret)}, follow=True)
    assert is_in(client)
    assert len(done.context["given"]["text"].split()) == 10
    assert 'href="/help"' in markup(done)
    refused = client.post("/me/two-factor/remove", PASSWORD)
    assert (refused.status_code, two_factor.is_on(alice)) == (422, True)


def test_where_it_is_required_sessions_from_before_are_worth_nothing(
    alice: User, settings: LazySettings
) -> None:
    client = Client()
    give_password(client)
    assert is_in(client)
    settings.LUTHIER_TWO_FACTOR_REQUIRED = True
    assert not is_in(client)


def test_an_api_token_is_not_affected(alice: User, required: LazySettings) -> None:
    assert Api(alice).get("/me").status_code == 200


def test_the_next_sign_in_says_that_an_admin_reset_it(alice: User, admin: User, signed_in: SignIn) -> None:
    factories.authenticator_app(alice)
    browser = signed_in(admin)
    assert "Authenticator app since" in markup(browser.get("/admin-console/users/alice"))
    done = browser.post("/admin-console/users/alice/two-factor-reset", follow=True)
    assert "signs in without a second factor" in markup(done)
    client = Client()
    assert give_password(client)["Location"] == "/"
    said = "A platform admin removed your two-factor authentication on "
    assert said in markup(client.get("/me"))
    client.post("/logout")
    give_password(client)
    assert said not in markup(client.get("/me")), "shown twice"


def test_a_reset_ends_sessions(alice: User, admin: User, signed_in: SignIn) -> None:
    factories.authenticator_app(alice)
    browser = signed_in(alice)
    user_two_factor_reset(user=admin, username="alice")
    assert not is_in(browser)


def test_with_a_lost_key_the_page_says_so_and_takes_a_recovery_code(alice: User, key_file: Path) -> None:
    secret, codes = factories.authenticator_app(alice)
    key_file.write_text(new_secrets_key())
    client = Client()
    give_password(client)
    page = markup(client.post("/login/code", {"code": factories.app_code(secret)}))
    assert "cannot be decrypted" in page
    assert client.post("/login/code", {"code": codes[0]}).status_code == 302


class TestAfterSingleSignOn:
    """The provider has a second factor of its own, so ours is asked only where a setting says so."""

    @pytest.fixture
    def erin(self, admin: User, settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> User:
        """Whose identity the provider confirms at each return."""
        settings.LUTHIER_OIDC_ISSUER = "https://id.example"
        identity = Identity("https://id.example", "erin")
        found = single_sign_on.Found(identity, "/help", time.time(), None)
        monkeypatch.setattr(single_sign_on, "finish", lambda request: found)
        return identity_link(user=admin, username=factories.user("erin").get_username(), subject="erin")

    def test_it_is_not_asked_by_default_also_where_it_is_required(
        self, erin: User, required: LazySettings
    ) -> None:
        factories.authenticator_app(erin)
        client = Client()
        assert client.get("/login/sso/callback")["Location"] == "/help"
        assert is_in(client)
        required.LUTHIER_TWO_FACTOR_AFTER_SSO = True
        assert not is_in(client)

    def test_with_the_setting_it_is_asked_and_set_up_where_it_is_required(
        self, erin: User, settings: LazySettings
    ) -> None:
        settings.LUTHIER_TWO_FACTOR_AFTER_SSO = True
        client = Client()
        assert client.get("/login/sso/callback")["Location"] == "/help"
        settings.LUTHIER_TWO_FACTOR_REQUIRED = True
        assert Client().get("/login/sso/callback")["Location"] == "/login/two-factor"
        secret, _ = factories.authenticator_app(erin)
        assert client.get("/login/sso/callback")["Location"] == "/login/code"
        assert not is_in(client)
        done = client.post("/login/code", {"code": factories.app_code(secret)})
        assert (done["Location"], is_in(client)) == ("/help", True)
        entry = AuditEntry.objects.filter(action="login.success").latest("id")
        assert entry.details == {"by": "single sign-on", "second_factor": "authenticator app"}

    def test_a_code_is_too_late_once_the_identity_was_unlinked(
        self, erin: User, admin: User, settings: LazySettings
    ) -> None:
        settings.LUTHIER_TWO_FACTOR_AFTER_SSO = True
        secret, _ = factories.authenticator_app(erin)
        client = Client()
        client.get("/login/sso/callback")
        identity_unlink(user=admin, username="erin")
        answer = client.post("/login/code", {"code": factories.app_code(secret)})
        assert (answer["Location"], is_in(client)) == ("/login", False)

    def test_a_code_is_too_late_once_another_identity_was_linked(
        self, erin: User, admin: User, settings: LazySettings
    ) -> None:
        settings.LUTHIER_TWO_FACTOR_AFTER_SSO = True
        secret, _ = factories.authenticator_app(erin)
        client = Client()
        client.get("/login/sso/callback")
        identity_link(user=admin, username="erin", subject="another")
        answer = client.post("/login/code", {"code": factories.app_code(secret)})
        assert (answer["Location"], is_in(client)) == ("/login", False)


@pytest.mark.django_db(transaction=True)
def test_a_sign_in_holds_the_user_until_its_session_is_there(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password given while a second factor was turned on left a session without one."""
    held: list[bool] = []

    def turn_on() -> None:
        try:
            with transaction.atomic():
                User.objects.select_for_update(nowait=True, no_key=True).get(pk=alice.pk)
            held.append(False)
        except OperationalError:
            held.append(True)
        finally:
            connection.close()

    def meanwhile(_: User) -> bool:
        thread = threading.Thread(target=turn_on)
        thread.start()
        thread.join()
        return False

    monkeypatch.setattr(two_factor, "is_on", meanwhile)
    assert give_password(Client()).status_code == 302
    assert held == [True]
    assert Session.objects.filter(user=alice).exists()
