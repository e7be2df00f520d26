"""A session that is not fresh asks for all factors before how someone signs in is changed, and loses nothing typed."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.sessions.backends.base import UpdateError
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from portal import passwords
from portal.settings.secret import SecretsKeys
from tenants import two_factor
from tenants.models import AuditEntry, Session, Tenant, Token, User
from tenants.roles import Role
from tenants.services.sessions import sessions_end
from tenants.sessions import FRESH, PROVED_AT
from tests import factories
from tests.markup import markup
from tests.passkey_device import Device
from tests.stale_session import grow_stale

pytestmark = pytest.mark.django_db
PAGE = "/me/confirm"
PASSWORD = {"password": factories.PASSWORD}
HERE = {"HTTP_HOST": "localhost"}


@pytest.fixture(autouse=True)
def key_file(settings: LazySettings, tmp_path: Path) -> None:
    cache.clear()  # budgets
    settings.ALLOWED_HOSTS = ["*"]
    settings.LUTHIER_SECRETS_KEYS = SecretsKeys((), tmp_path / "secrets_keys")


def stale(user: User) -> Client:
    client = Client()
    client.force_login(user)
    grow_stale(client)
    return client


def asked(answer: Any) -> bool:
    return answer.status_code == 302 and answer["Location"].partition("?")[0] == PAGE


def send_held(client: Client) -> Any:
    """The form that was held, as the page sends it."""
    page = client.get(PAGE).content.decode()
    (action,) = re.findall(r'<form method="post" action="([^"]+)"', page)
    fields = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', page)
    return client.post(
        html.unescape(action), {name: html.unescape(value) for name, value in fields}, follow=True
    )


def test_ending_sessions_takes_the_password_again_and_then_happens(alice: User) -> None:
    here, there = stale(alice), Client()
    there.force_login(alice)
    Token.objects.create(user=alice, name="laptop")
    assert asked(here.post("/me/sign-out-others", {"tokens": "yes"}))
    assert there.get("/me").status_code == 200
    assert Token.objects.filter(user=alice).exists()
    assert "to continue with: End all other sessions" in markup(here.get(PAGE))
    wrong = here.post(PAGE, {"password": "not this one"})
    assert (wrong.status_code, "is not your password" in markup(wrong)) == (422, True)
    assert asked(here.post("/me/sign-out-others", {"tokens": "yes"})), "a wrong password proves nothing"
    before = here.session.session_key
    assert asked(here.post(PAGE, PASSWORD))
    assert here.session.session_key != before, "who has copied the session has proved nothing"
    assert there.get("/me").status_code == 200, "not before it is sent"
    assert "1 other session ended, 1 API token revoked." in markup(send_held(here))
    assert there.get("/me").status_code == 302
    assert here.post("/me/sign-out-others").headers["Location"] == "/me", "fresh from now on"
    entry = AuditEntry.objects.get(action="session.confirm")
    assert (entry.actor, entry.address, entry.details) == (alice, "127.0.0.1", {"by": "password"})


def test_one_session_is_ended_so_too(alice: User) -> None:
    here, there = stale(alice), Client()
    there.force_login(alice)
    rows = here.get("/me").context["sessions"]
    other = next(row["session"].id for row in rows if not row["session"].current)
    assert asked(here.post(f"/me/sessions/{other}/end"))
    here.post(PAGE, PASSWORD)
    assert "Session ended." in markup(send_held(here))
    assert there.get("/me").status_code == 302


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/admin-console/users/alice/edit", {"email": "mallory@example.org"}),
        ("/admin-console/users/alice/reset", {}),
        ("/admin-console/users/alice/two-factor-reset", {}),
        ("/admin-console/users/alice/disable", {}),
        ("/admin-console/users/alice/enable", {}),
        ("/admin-console/users/alice/sessions", {}),
        ("/admin-console/users/alice/identity", {"subject": "248289761001"}),
        ("/admin-console/new-user", {"username": "mallory", "is_superuser": "on"}),
    ],
)
def test_an_admin_who_changes_how_someone_signs_in_gives_it_too(
    alice: User, path: str, fields: dict[str, str], settings: LazySettings
) -> None:
    settings.LUTHIER_OIDC_ISSUER = "https://id.example.org"
    browser = stale(factories.user("admin", is_superuser=True, password=factories.PASSWORD))
    factories.authenticator_app(alice)
    before, entries = User.objects.order_by("pk").values(), AuditEntry.objects.count()
    was = list(before)
    assert asked(browser.post(path, fields))
    assert list(before.all()) == was
    assert AuditEntry.objects.count() == entries
    browser.post(PAGE, PASSWORD)
    done = send_held(browser)
    assert done.status_code == 200
    assert AuditEntry.objects.exclude(action="session.confirm").count() > entries or path.endswith("enable")
    if "email" in fields:
        assert User.objects.get(username="alice").email == fields["email"], "nothing typed is lost"


def test_who_may_not_use_a_form_is_not_asked_either(alice: User) -> None:
    assert stale(alice).post("/admin-console/users/alice/reset").status_code == 404


def test_with_a_second_factor_it_is_shown_too(alice: User) -> None:
    secret, codes = factories.authenticator_app(alice)
    here = stale(alice)
    assert asked(here.post("/me/sign-out-others"))
    here.post(PAGE, PASSWORD)
    assert asked(here.post("/me/sign-out-others")), "the password alone is not enough"
    assert here.post(PAGE, {"code": "000000"}).status_code == 422
    assert AuditEntry.objects.filter(action="code.failure").exists()
    assert asked(here.post(PAGE, {"code": factories.app_code(secret)}))
    assert "0 other sessions ended." in markup(send_held(here))
    details = {"by": "password", "second_factor": "authenticator app"}
    assert AuditEntry.objects.get(action="session.confirm").details == details
    grow_stale(here)
    here.post(PAGE, PASSWORD)
    here.post(PAGE, {"code": codes[0]})
    assert here.post("/me/sign-out-others").headers["Location"] == "/me"
    assert two_factor.factors_of(alice).codes_left == 9


def test_a_passkey_is_shown_as_well(alice: User) -> None:
    device, here = factories.passkey(alice), stale(alice)
    assert here.post(f"{PAGE}/passkey", **HERE).status_code == 422, "the password comes first"
    here.post(PAGE, PASSWORD, **HERE)
    assert f'data-passkey="{PAGE}/passkey" hidden' in markup(here.get(PAGE, **HERE))
    assert here.post(PAGE, {"passkey": "{}"}, **HERE).status_code == 422
    assert asked(here.post("/me/sign-out-others", **HERE))
    answer = device.get(here.post(f"{PAGE}/passkey", **HERE).json())
    here.post(PAGE, {"passkey": answer}, **HERE)
    assert here.post("/me/sign-out-others", **HERE)["Location"] == "/me"


def test_factors_are_changed_after_all_of_them(alice: User, lab: Tenant) -> None:
    """The forms take the password each time; the second factor, too, if it was not shown within ten minutes. So does
    what makes a token, which is asked for nothing more."""
    secret, _ = factories.authenticator_app(alice)
    here = stale(alice)
    change = {"old_password": factories.PASSWORD, "new_password1": "a brand new passphrase"}
    attempts = {
        "/me/password": change | {"new_password2": change["new_password1"]},
        **{f"/me/two-factor/{each}": PASSWORD for each in ("begin", "app/remove", "remove", "codes")},
        "/t/vision-lab/tokens/new": PASSWORD | {"name": "laptop", "role": "viewer", "days": "30"},
    }
    for path, fields in attempts.items():
        assert asked(here.post(path, fields)), path
    assert here.post("/me/two-factor/passkeys/begin", PASSWORD, **HERE).status_code == 422
    assert asked(here.get("/me/two-factor"))
    assert not Token.objects.exists()
    assert 'name="password"' not in markup(here.get("/t/vision-lab/tokens")), (
        "its page asks before it shows it"
    )
    assert here.get("/t/vision-lab/tokens/new?account=ci")["Location"] == (
        f"{PAGE}?next=%2Ft%2Fvision-lab%2Ftokens%2Fnew%3Faccount%3Dci"
    )
    assert 'name="old_password"' not in markup(here.get("/me"))
    assert two_factor.factors_of(alice).codes_left == 10
    here.get(PAGE, {"next": "/me/two-factor"})
    here.post(PAGE, PASSWORD)
    here.post(PAGE, {"code": factories.app_code(secret)})
    assert here.get(PAGE)["Location"] == "/me/two-factor"
    assert here.post("/t/vision-lab/tokens/new", attempts["/t/vision-lab/tokens/new"]).status_code == 302
    assert Token.objects.count() == 1
    assert here.post("/me/two-factor/remove", PASSWORD)["Location"] == "/me/two-factor"
    assert not two_factor.is_on(alice)


def test_the_page_of_a_first_factor_is_not_in_the_way(alice: User) -> None:
    """The password is all that the user has, and the form takes it."""
    here = stale(alice)
    assert here.get("/me/two-factor").status_code == 200
    assert here.post("/me/two-factor/begin", PASSWORD)["Location"] == "/me/two-factor#set-up"


def test_a_session_that_is_ended_meanwhile_stays_so(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was ended after the password of the request was checked."""
    here, check = stale(alice), passwords.check

    def meanwhile(user: User, password: str, **more: Any) -> None:
        check(user, password, **more)
        sessions_end(user=user, owner=user)

    monkeypatch.setattr(passwords, "check", meanwhile)
    here.post(PAGE, PASSWORD)
    assert not Session.objects.filter(user=alice).exists()
    assert not AuditEntry.objects.filter(action="session.confirm").exists()
    assert here.get("/me")["Location"] == "/login?next=/me"


def test_a_second_factor_that_was_turned_on_meanwhile_is_asked_for(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, locked = stale(alice), two_factor.locked

    def after_another(user: User) -> None:
        monkeypatch.setattr(two_factor, "locked", locked)
        factories.authenticator_app(user)
        locked(user)

    monkeypatch.setattr(two_factor, "locked", after_another)
    here.post(PAGE, PASSWORD)
    assert here.get(PAGE).context["asks"] == "second"


def test_a_request_with_the_key_of_before_takes_nothing_from_the_browser(alice: User) -> None:
    """Another tab sent it before the browser knew of the new one: its answer may arrive after that."""
    here, other, late = stale(alice), Client(), Client()
    other.cookies["luthier"] = late.cookies["luthier"] = here.session.session_key
    under_way = late.session
    assert under_way.get(PROVED_AT)
    here.post(PAGE, PASSWORD)
    answer = other.get("/me")
    assert (answer.status_code, answer["Location"]) == (302, "/login?next=/me"), "it opens nothing"
    assert "luthier" not in answer.cookies
    assert "Clear-Site-Data" not in answer
    under_way["kept"] = "yes"
    with pytest.raises(UpdateError):
        under_way.save()
    assert other.get("/me").status_code == 302, "what has read it before brings it not back"
    assert here.get("/me").status_code == 200
    assert len(here.get("/me").context["sessions"]) == 1
    Session.objects.filter(user=None).update(expire_date=timezone.now())
    assert "luthier" in other.get("/me").cookies, "after a minute it is like any that is not there"


def test_who_has_lost_the_answer_with_the_new_key_signs_in_with_the_one_of_before(alice: User) -> None:
    here, before = stale(alice), Client()
    before.cookies["luthier"] = here.session.session_key
    here.post(PAGE, PASSWORD)
    assert before.get("/me").status_code == 302
    begun = before.session
    begun["by a provider"] = "state"
    begun.save()
    assert begun.session_key != before.cookies["luthier"].value, "it is a session of its own"
    answer = before.post("/login", {"username": "alice", **PASSWORD})
    assert answer.status_code == 302, answer.content
    assert before.get("/me").status_code == 200
    assert here.get("/me").status_code == 200, "and the other goes on"


def test_of_two_confirmations_at_once_none_signs_the_browser_out(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other, check = stale(alice), Client(), passwords.check
    other.cookies["luthier"] = here.session.session_key

    def meanwhile(user: User, password: str, **more: Any) -> None:
        monkeypatch.setattr(passwords, "check", check)
        check(user, password, **more)
        here.post(PAGE, PASSWORD)

    monkeypatch.setattr(passwords, "check", meanwhile)
    answer = other.post(PAGE, PASSWORD)
    assert answer.status_code == 302, "it was shown that it is them"
    assert "luthier" not in answer.cookies
    assert "Clear-Site-Data" not in answer
    assert here.get("/me").status_code == 200
    assert AuditEntry.objects.filter(action="session.confirm").count() == 1


def test_cancel_does_not_lead_back_to_the_question(alice: User) -> None:
    factories.authenticator_app(alice)
    here = stale(alice)
    assert asked(here.get("/me/two-factor"))
    here.get("/me/confirm?next=/me/two-factor")
    assert here.get(PAGE, {"cancel": "yes"})["Location"] == "/me"


def test_a_held_form_has_no_password_and_no_code(lab: Tenant, settings: LazySettings) -> None:
    """Its page was opened while passwords signed in."""
    erin = factories.member(lab, "erin", role=Role.RESEARCHER)
    here = stale(erin)
    form = {"name": "laptop", "role": "viewer", "days": "30", "password": "hunter2hunter2", "code": "123456"}
    assert asked(here.post("/t/vision-lab/tokens/new", form))
    held = here.session["confirms_for"]["held"]
    assert [name for name, _ in held["fields"]] == ["name", "role", "days"]


def test_a_code_that_comes_too_late_is_no_wrong_password(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    factories.authenticator_app(alice)
    here = stale(alice)
    here.post(PAGE, PASSWORD)
    session = here.session
    session["confirmed_first"] |= {"at": 0}
    session.save()
    for _ in range(passwords.WRONG_A_MINUTE + 1):
        assert "This took too long." in markup(here.post(PAGE, {"code": "123456"}, follow=True))
    assert not AuditEntry.objects.filter(action="password.failure").exists()
    assert asked(here.post(PAGE, PASSWORD))


def test_a_form_is_not_held_for_good(alice: User) -> None:
    here = stale(alice)
    for end in ("late", "cancel"):
        assert asked(here.post("/me/sign-out-others", headers={"Referer": "http://testserver/me?a=b"}))
        if end == "cancel":
            assert 'href="/me/confirm?cancel=yes"' in markup(here.get(PAGE))
            assert here.get(PAGE, {"cancel": "yes"})["Location"] == "/me?a=b"
        else:
            session = here.session
            session["confirms_for"] |= {"at": 0}
            session.save()
        here.post(PAGE, PASSWORD)
        answer = here.get(PAGE)
        assert answer.status_code == 302, "to the page of the form, or the profile"
        assert answer["Location"] == {"late": "/me?a=b", "cancel": "/me"}[end]
        said = "was kept for 10 minutes only, so nothing was changed" in markup(here.get("/me"))
        assert said == (end == "late")
        grow_stale(here)


def test_after_the_second_factor_a_session_is_fresh_for_all_of_the_time(alice: User) -> None:
    secret, _ = factories.authenticator_app(alice)
    here = stale(alice)
    here.post(PAGE, PASSWORD)
    session = here.session
    session["confirmed_first"] |= {"at": session["confirmed_first"]["at"] - FRESH.total_seconds() + 60}
    session.save()
    before = time.time()
    here.post(PAGE, {"code": factories.app_code(secret)})
    assert here.session[PROVED_AT] >= before


def begin_app(client: Client) -> dict[str, str]:
    """The form that ends the set-up of an app."""
    client.post("/me/two-factor/begin", PASSWORD)
    secret = client.get("/me/two-factor").context["begun"].secret
    return {"code": factories.app_code(secret), "form_key": "k1"}


def begin_passkey(client: Client) -> dict[str, str]:
    options = client.post("/me/two-factor/passkeys/begin", PASSWORD, **HERE).json()
    return {"passkey": Device().create(options), "form_key": "k1"}


SET_UPS = pytest.mark.parametrize(
    ("begin", "path"),
    [(begin_app, "/me/two-factor/confirm"), (begin_passkey, "/me/two-factor/passkeys/add")],
    ids=["app", "passkey"],
)


@SET_UPS
def test_a_first_factor_makes_a_session_as_fresh_as_the_password_for_it(
    alice: User, begin: Callable[[Client], dict[str, str]], path: str
) -> None:
    here = stale(alice)
    form, session = begin(here), here.session
    session["set_up_proved_at"] -= 300
    session.save()
    for _ in range(2):
        assert here.post(path, form, **HERE)["Location"] == "/me/two-factor"
        assert here.session[PROVED_AT] == session["set_up_proved_at"]
    assert two_factor.is_on(alice)
    grow_stale(here)
    here.post(path, form, **HERE)
    assert asked(here.post("/me/sign-out-others")), "a form that is sent again proves nothing"


@SET_UPS
def test_a_first_factor_that_comes_late_takes_the_password_again(
    alice: User, begin: Callable[[Client], dict[str, str]], path: str
) -> None:
    here = stale(alice)
    form, session = begin(here), here.session
    session["set_up_proved_at"] -= FRESH.total_seconds()
    session.save()
    assert asked(here.post(path, form, **HERE))
    assert not two_factor.is_on(alice)
    here.post(PAGE, PASSWORD)
    assert here.post(path, form, **HERE)["Location"] == "/me/two-factor"
    assert two_factor.is_on(alice)


def test_the_page_says_whose_form_it_holds(alice: User) -> None:
    """The form is sent with it, and so refused once another user has signed in with the browser."""
    here = stale(alice)
    here.post("/me/sign-out-others")
    here.post(PAGE, PASSWORD)
    assert 'class="login-page" tabindex="-1" data-user="alice"' in markup(here.get(PAGE))


def test_it_leads_to_no_other_site(alice: User) -> None:
    here = Client()
    here.force_login(alice)
    for target in ("https://evil.example/x", "//evil.example", "javascript:alert(1)", ""):
        assert here.get(PAGE, {"next": target}, follow=True).redirect_chain[-1][0] == "/me"


def test_without_a_password_a_form_that_makes_a_token_is_held(lab: Tenant) -> None:
    """One whose password is in the form itself does not come here."""
    erin = factories.member(lab, "erin", role=Role.RESEARCHER)
    here, form = stale(erin), {"name": "laptop", "role": "viewer", "days": "30"}
    assert asked(here.post("/t/vision-lab/tokens/new", form))
    assert "You have no password here." in markup(here.get(PAGE))
    assert here.post(PAGE, {"password": "x"}).status_code == 422
    assert not Token.objects.exists()
