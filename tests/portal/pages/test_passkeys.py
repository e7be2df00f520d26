"""Passkeys on the profile and at the sign-in: who may add one, what it takes to sign in, and what is said elsewhere."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from axes.models import AccessAttempt
from django.conf import LazySettings
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from portal import login_names
from portal.settings.secret import SecretsKeys
from tenants import two_factor
from tenants.models import AuditEntry, PasskeyChallenge, User
from tests import factories
from tests.markup import markup
from tests.passkey_device import Device
from tests.portal.pages.conftest import SignIn
from tests.portal.pages.test_two_factor import PASSWORD, is_in

pytestmark = pytest.mark.django_db
HERE = {"HTTP_HOST": "localhost"}
"""Where browsers have passkeys, also over http."""


@pytest.fixture(autouse=True)
def key_file(settings: LazySettings, tmp_path: Path) -> None:
    cache.clear()  # budgets
    settings.ALLOWED_HOSTS = ["*"]
    settings.LUTHIER_SECRETS_KEYS = SecretsKeys((), tmp_path / "secrets_keys")


def give_password(client: Client, to: str = "") -> Any:
    return client.post("/login", PASSWORD | {"username": "alice", "next": to}, **HERE)


def challenge(client: Client, path: str = "/login/passkey", **fields: str) -> Any:
    answer = client.post(path, fields, **HERE)
    assert answer.status_code == 200, answer.content
    return answer.json()


def add(client: Client, device: Device, **fields: str) -> Any:
    options = challenge(client, "/me/two-factor/passkeys/begin", **PASSWORD)
    fields = {"passkey": device.create(options)} | fields
    return client.post("/me/two-factor/passkeys/add", fields, follow=True, **HERE)


def test_a_passkey_is_asked_after_the_password_and_signs_in(alice: User) -> None:
    device, client = factories.passkey(alice), Client()
    assert give_password(client, "/help")["Location"] == "/login/code"
    assert not is_in(client)
    page = markup(client.get("/login/code", **HERE))
    assert 'data-passkey="/login/passkey" hidden' in page
    assert "One of your recovery codes" in page, "there is no app"
    answer = device.get(challenge(client))
    before = client.session.session_key
    done = client.post("/login/code", {"passkey": answer}, REMOTE_ADDR="10.0.0.8", **HERE)
    assert (done.status_code, done["Location"], is_in(client)) == (302, "/help", True)
    assert client.session.session_key != before
    assert client.session["proved"] == {"by": "password", "second": "passkey"}
    entry = AuditEntry.objects.get(action="login.success")
    assert (entry.details, entry.address) == ({"second_factor": "passkey"}, "10.0.0.8")


def test_codes_work_beside_a_passkey(alice: User) -> None:
    codes = factories.passkey(alice).codes
    secret, renewed = factories.authenticator_app(alice, beside=True)
    for code in (factories.app_code(secret), renewed[0]):
        client = Client()
        give_password(client)
        assert "6 digits from your authenticator app, or one" in markup(client.get("/login/code", **HERE))
        assert client.post("/login/code", {"code": code}).status_code == 302
    assert codes != renewed


def test_an_answer_signs_in_once_and_in_the_browser_that_asked(alice: User) -> None:
    device, client, thief = factories.passkey(alice), Client(), Client()
    device.count = None
    for each in (client, thief):
        give_password(each)
    answer = device.get(challenge(client))
    refused = thief.post("/login/code", {"passkey": answer}, **HERE)
    assert (refused.status_code, "done before" in markup(refused), is_in(thief)) == (422, True, False)
    challenge(thief)
    assert thief.post("/login/code", {"passkey": answer}, **HERE).status_code == 422
    assert client.post("/login/code", {"passkey": answer}, **HERE).status_code == 302
    again = Client()
    give_password(again)
    challenge(again)
    assert again.post("/login/code", {"passkey": answer}, **HERE).status_code == 422
    assert not is_in(again)


def test_without_the_password_there_is_no_challenge(alice: User) -> None:
    factories.passkey(alice)
    answer = Client().post("/login/passkey", **HERE)
    assert (answer.status_code, answer["Location"]) == (302, "/login")
    assert not PasskeyChallenge.objects.exists()
    assert Client().post("/login/code", {"passkey": "{}"}, **HERE)["Location"] == "/login"


def test_a_refused_passkey_is_recorded_and_spends_from_the_budget_of_passwords(
    alice: User, settings: LazySettings
) -> None:
    settings.AXES_ENABLED, settings.AXES_FAILURE_LIMIT = True, 2
    factories.passkey(alice)
    client = Client()
    give_password(client)
    challenge(client)
    refused = client.post("/login/code", {"passkey": "{}"}, **HERE)
    assert (refused.status_code, "was not accepted" in markup(refused)) == (422, True)
    entry = AuditEntry.objects.get(action="login.failure")
    assert entry.details == {"known_name": True, "by": "passkey"}
    assert AccessAttempt.objects.get().username == login_names.hashed("alice")
    late = client.post("/login/code", {"passkey": "{}"}, **HERE)
    assert (late.status_code, "took too long" in markup(late)) == (422, True)
    assert AuditEntry.objects.filter(action="login.failure").count() == 1, "that was no guess"
    statuses = []
    for _ in range(2):
        challenge(client)
        statuses.append(client.post("/login/code", {"passkey": "{}"}, **HERE).status_code)
    assert statuses == [429, 429]


def test_challenges_have_a_budget_and_do_not_pile_up(alice: User) -> None:
    factories.passkey(alice)
    bob = factories.user("bob")
    old = timezone.now() - timedelta(hours=1)
    PasskeyChallenge.objects.create(user=bob, text="left", adds=False, created_at=old)
    client = Client()
    give_password(client)
    answers = [client.post("/login/passkey", **HERE) for _ in range(21)]
    assert [answer.status_code for answer in answers] == [200] * 20 + [422]
    assert answers[-1].content.startswith(b"Too many requests for a passkey. Wait a minute")
    assert PasskeyChallenge.objects.count() == 1, (
        "each takes the place of the one before, and bob's is too old"
    )


@pytest.mark.parametrize("by", ["passkey", "code"])
def test_a_password_that_is_changed_before_the_factor_is_looked_at_lets_no_one_in(
    alice: User, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """A change and a sign-in take the user's row in turn, so one that waited for a change begins no session."""
    device, client = factories.passkey(alice), Client()
    give_password(client)
    [recovery, *_] = two_factor.codes_renew(alice)
    answer = {"passkey": device.get(challenge(client))} if by == "passkey" else {"code": recovery}
    lock = two_factor.locked

    def waits_for_a_change(user: User) -> None:
        changed = User.objects.get(pk=user.pk)
        changed.set_password("another password")
        changed.save()
        lock(user)

    monkeypatch.setattr(two_factor, "locked", waits_for_a_change)
    done = client.post("/login/code", answer, **HERE)
    assert (done.status_code, done["Location"]) == (302, "/login")
    assert not is_in(client)
    assert alice.recovery_codes.filter(used_at=None).count() == 10, "nothing was used up"


def test_a_copied_passkey_is_refused_and_recorded(alice: User) -> None:
    device, client = factories.passkey(alice), Client()
    alice.passkeys.update(sign_count=7)
    give_password(client)
    refused = client.post("/login/code", {"passkey": device.get(challenge(client))}, **HERE)
    assert "as if it was copied" in markup(refused)
    assert "aria-invalid" not in markup(refused), "the code is not what was wrong"
    assert not is_in(client)
    assert AuditEntry.objects.get(action="login.failure").details["copied"] is True


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("10.0.0.8", "Passkeys don't work at an IP address."),
        ("luthier.example.org", "Passkeys need an https address"),
    ],
)
def test_where_there_are_no_passkeys_the_pages_say_so(
    alice: User, signed_in: SignIn, host: str, said: str
) -> None:
    factories.passkey(alice)
    browser, client = signed_in(alice), Client()
    page = markup(browser.get("/me/two-factor", HTTP_HOST=host)).replace("&#x27;", "'")
    assert said in page
    assert "data-passkey=" not in page
    refused = browser.post("/me/two-factor/passkeys/begin", PASSWORD, HTTP_HOST=host)
    assert (refused.status_code, said in refused.content.decode()) == (422, True)
    give_password(client)
    page = markup(client.get("/login/code", HTTP_HOST=host)).replace("&#x27;", "'")
    assert said in page
    assert "data-passkey=" not in page


def test_at_another_address_it_is_said_where_the_passkeys_work(alice: User) -> None:
    factories.passkey(alice, origin="https://luthier.example.org")
    client = Client()
    give_password(client)
    page = markup(client.get("/login/code", **HERE))
    assert "Your passkeys work at luthier.example.org only." in page
    assert "data-passkey=" not in page
    assert client.post("/login/passkey", **HERE).status_code == 422


def test_behind_a_proxy_the_origin_is_https_without_its_port(
    alice: User, signed_in: SignIn, settings: LazySettings
) -> None:
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    browser, device = signed_in(alice), Device("https://luthier.example.org")
    proxy = {"HTTP_HOST": "Luthier.example.org:443", "HTTP_X_FORWARDED_PROTO": "https"}
    options = browser.post("/me/two-factor/passkeys/begin", PASSWORD, **proxy).json()
    done = browser.post("/me/two-factor/passkeys/add", {"passkey": device.create(options)}, **proxy)
    assert done.status_code == 302
    assert alice.passkeys.get().host == "luthier.example.org"


def test_adding_takes_the_password_and_the_first_one_ends_other_sessions(
    alice: User, signed_in: SignIn
) -> None:
    browser, other = signed_in(alice), signed_in(alice)
    refused = browser.post("/me/two-factor/passkeys/begin", {"password": "not this one"}, **HERE)
    assert (refused.status_code, refused.content) == (422, b"This is not your password.")
    assert not PasskeyChallenge.objects.exists()
    unasked = browser.post("/me/two-factor/passkeys/add", {"passkey": "{}"}, **HERE)
    assert (unasked.status_code, "took too long" in markup(unasked)) == (422, True)
    done = add(browser, Device(), name="YubiKey", form_key="k1")
    assert len(done.context["given"]["text"].split()) == 10
    assert "Two-factor authentication is on" in markup(done)
    assert (is_in(browser), is_in(other)) == (True, False)
    assert browser.session["proved"]["second"] == "passkey"
    page = markup(browser.get("/me/two-factor", **HERE))
    assert "YubiKey" in page
    assert "not used yet" in page
    other = signed_in(alice)
    done = add(browser, Device())
    assert done.context["given"] is None, "the codes of the first one stay"
    assert is_in(other), "it has shown what was due"


def test_a_form_that_is_sent_again_adds_one(alice: User, signed_in: SignIn) -> None:
    browser = signed_in(alice)
    options = challenge(browser, "/me/two-factor/passkeys/begin", **PASSWORD)
    form = {"passkey": Device().create(options), "form_key": "k1"}
    for _ in range(2):
        done = browser.post("/me/two-factor/passkeys/add", form, follow=True, **HERE)
        assert len(done.context["given"]["text"].split()) == 10
    assert alice.passkeys.count() == 1


def test_a_challenge_of_another_session_adds_nothing(alice: User, signed_in: SignIn) -> None:
    browser, other = signed_in(alice), signed_in(alice)
    answer = Device().create(challenge(browser, "/me/two-factor/passkeys/begin", **PASSWORD))
    assert other.post("/me/two-factor/passkeys/add", {"passkey": answer}, **HERE).status_code == 422
    assert not alice.passkeys.exists()


def test_a_passkey_is_renamed_and_with_the_password_removed(alice: User, signed_in: SignIn) -> None:
    row, browser = factories.passkey(alice).row, signed_in(alice)
    at = f"/me/two-factor/passkeys/{row.pk}"
    refused = browser.post(f"{at}/rename", {"name": " "}, **HERE)
    assert (refused.status_code, "This is required." in markup(refused)) == (422, True)
    done = browser.post(f"{at}/rename", {"name": "<YubiKey>"}, follow=True, **HERE)
    assert "&lt;YubiKey&gt;" in markup(done)
    refused = browser.post(f"{at}/remove", {"password": "wrong"}, **HERE)
    assert (refused.status_code, "This is not your password." in markup(refused)) == (422, True)
    assert two_factor.is_on(alice)
    browser.post(f"{at}/remove", PASSWORD, REMOTE_ADDR="10.0.0.9", **HERE)
    assert not two_factor.is_on(alice)
    assert browser.session["proved"]["second"] == ""
    removed = AuditEntry.objects.get(action="passkey.remove")
    assert (removed.actor, removed.address, removed.details) == (alice, "10.0.0.9", {"passkey": "<YubiKey>"})


def test_the_app_is_removed_from_beside_a_passkey_with_the_password(alice: User, signed_in: SignIn) -> None:
    factories.authenticator_app(alice)
    browser = signed_in(alice)
    assert "Remove the app" not in markup(browser.get("/me/two-factor", **HERE)), "it is the only one"
    factories.passkey(alice)
    page = markup(browser.get("/me/two-factor", **HERE))
    assert page.index("Set up another app") < page.index("Remove the app"), "Enter would remove it"
    refused = browser.post("/me/two-factor/app/remove", {"password": "wrong"}, **HERE)
    assert (refused.status_code, "This is not your password." in markup(refused)) == (422, True)
    done = browser.post("/me/two-factor/app/remove", PASSWORD, follow=True, **HERE)
    assert "Authenticator app removed." in markup(done)
    assert two_factor.factors_of(alice).app_since is None
    assert two_factor.factors_of(alice).codes_left == 10


@pytest.mark.parametrize("what", ["passkey", "app", "all"])
def test_who_removes_a_factor_ends_sessions_that_were_begun_with_it(
    alice: User, signed_in: SignIn, what: str
) -> None:
    row = factories.passkey(alice).row
    factories.authenticator_app(alice, beside=True)
    browser, other = signed_in(alice), signed_in(alice)
    path = {"passkey": f"passkeys/{row.pk}/remove", "app": "app/remove", "all": "remove"}[what]
    browser.post(f"/me/two-factor/{path}", {"password": "wrong"}, **HERE)
    assert is_in(other)
    done = browser.post(f"/me/two-factor/{path}", PASSWORD, follow=True, **HERE)
    assert "All other sessions were signed out." in markup(done)
    assert (is_in(browser), is_in(other)) == (True, False)
    entry = AuditEntry.objects.get(action="session.end")
    assert (entry.actor, entry.target, entry.details) == (alice, "alice", {"sessions": 1})


def test_the_last_one_stays_where_it_is_required(alice: User, settings: LazySettings) -> None:
    device, client = factories.passkey(alice), Client()
    settings.LUTHIER_TWO_FACTOR_REQUIRED = True
    give_password(client)
    client.post("/login/code", {"passkey": device.get(challenge(client))}, **HERE)
    assert is_in(client), "a passkey is a second factor"
    refused = client.post(f"/me/two-factor/passkeys/{device.row.pk}/remove", PASSWORD, **HERE)
    assert (refused.status_code, "requires two-factor" in markup(refused)) == (422, True)
    assert two_factor.is_on(alice)


def test_where_one_is_required_a_passkey_is_set_up_at_the_sign_in(
    alice: User, settings: LazySettings
) -> None:
    settings.LUTHIER_TWO_FACTOR_REQUIRED = True
    client, late = Client(), Client()
    for each in (client, late):
        assert give_password(each, "/help")["Location"] == "/login/two-factor"
    give_password(client, "/help")  # of two setups the later one counts
    assert "Add a passkey instead" in markup(client.get("/login/two-factor", **HERE))
    theirs = Device().create(challenge(client))
    done = client.post("/login/two-factor", {"passkey": theirs}, follow=True, **HERE)
    assert is_in(client)
    assert len(done.context["given"]["text"].split()) == 10
    assert 'href="/help"' in markup(done)
    assert not alice.authenticator_apps.filter(confirmed_at__isnull=False).exists()


def test_a_second_setup_at_the_sign_in_adds_nothing_beside_a_factor(
    alice: User, settings: LazySettings
) -> None:
    settings.LUTHIER_TWO_FACTOR_REQUIRED = True
    client = Client()
    give_password(client)
    answer = Device().create(challenge(client))
    factories.passkey(alice)
    assert client.post("/login/passkey", **HERE).status_code == 422
    client.post("/login/two-factor", {"passkey": answer}, **HERE)
    assert not is_in(client)
    assert alice.passkeys.count() == 1


def test_an_admins_reset_removes_passkeys(alice: User, admin: User, signed_in: SignIn) -> None:
    factories.passkey(alice)
    browser = signed_in(admin)
    assert "1 passkey, 10 recovery codes left" in markup(browser.get("/admin-console/users/alice"))
    browser.post("/admin-console/users/alice/two-factor-reset")
    client = Client()
    assert give_password(client)["Location"] == "/"
    assert not alice.passkeys.exists()
