"""A session that is not fresh asks for all factors before how someone signs in is changed, and loses nothing typed."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.cache import cache
from django.test import Client

from portal.settings.secret import SecretsKeys
from tenants import two_factor
from tenants.models import AuditEntry, Tenant, Token, User
from tenants.roles import Role
from tests import factories
from tests.markup import markup
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
