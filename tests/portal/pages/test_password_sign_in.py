"""With passwords turned off: by what people sign in instead, and that no installation locks its last admin out."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.cache import cache
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from portal import single_sign_on
from portal.health import diagnosis
from portal.management.commands import prepare
from portal.settings.secret import SecretsKeys
from tenants import one_time
from tenants.errors import LastAdmin
from tenants.models import AuditEntry, AuthenticatorApp, OneTimePassword, User
from tenants.services.identities import Identity, identity_link, identity_of, identity_unlink, user_of
from tenants.services.sessions import sessions_of
from tenants.services.users import user_change, user_disable, user_reset
from tests import factories
from tests.markup import markup
from tests.stale_session import grow_stale

pytestmark = pytest.mark.django_db


@pytest.fixture
def off(settings: LazySettings) -> LazySettings:
    cache.clear()  # budgets
    settings.LUTHIER_OIDC_ISSUER = "https://id.example"
    settings.LUTHIER_PASSWORD_SIGN_IN = False
    return settings


@pytest.fixture
def linked(off: LazySettings) -> User:
    """An admin with a password, who has signed in by the provider as well."""
    user = factories.user("linked", is_superuser=True, password=factories.PASSWORD)
    return signs_in(identity_link(user=user, username="linked", subject="linked-there"))


def signs_in(user: User) -> User:
    """By the identity that is linked to the user."""
    return user_of(Identity("https://id.example", identity_of(user) or ""))


def give(client: Client, name: str, password: str) -> Any:
    return client.post("/login", {"username": name, "password": password})


def is_in(client: Client) -> bool:
    return client.get("/me").status_code == 200


def warnings() -> Any:
    """Those of `manage.py prepare`."""
    out = StringIO()
    call_command("prepare", "--no-demo", stdout=out)
    return json.loads(out.getvalue().splitlines()[0])["warnings"]


def test_no_password_signs_in_and_the_page_offers_what_does(alice: User, off: LazySettings) -> None:
    page = markup(Client().get("/login"))
    assert 'href="/login/sso"' in page
    assert 'href="/welcome"' in page
    assert 'name="password"' not in page
    client = Client()
    assert "Incorrect username or password." in markup(give(client, "alice", factories.PASSWORD))
    assert not is_in(client)


def test_sessions_that_a_password_began_count_no_longer(alice: User, off: LazySettings) -> None:
    off.LUTHIER_PASSWORD_SIGN_IN = True
    client = Client()
    give(client, "alice", factories.PASSWORD)
    assert is_in(client)
    off.LUTHIER_PASSWORD_SIGN_IN = False
    assert sessions_of(user=alice, owner=alice) == []
    assert not is_in(client)
    assert client.get("/api/v1/me").status_code == 401
    off.LUTHIER_PASSWORD_SIGN_IN = True
    assert not is_in(client), "what was refused came back to life"


@pytest.mark.parametrize(("passwords", "instead"), [(True, "your password"), (False, "a one-time password")])
def test_without_the_provider_the_page_names_what_signs_in(
    off: LazySettings, monkeypatch: pytest.MonkeyPatch, passwords: bool, instead: str
) -> None:
    def down(*_: object) -> None:
        raise single_sign_on.Unreachable

    off.LUTHIER_PASSWORD_SIGN_IN = passwords
    monkeypatch.setattr(single_sign_on, "begin", down)
    client = Client()
    assert f"or sign in with {instead}" in markup(client.get("/login/sso", follow=True))


def test_a_one_time_password_signs_in_once(linked: User, alice: User) -> None:
    secret = user_reset(user=linked, username="alice").secret
    client = Client()
    assert give(client, "alice", secret)["Location"] == "/"
    assert is_in(client)
    assert "Change password" not in markup(client.get("/me"))
    assert client.post("/me/password").status_code == 404
    assert AuditEntry.objects.get(action="login.success").details == {"by": "one-time password"}
    assert not OneTimePassword.objects.exists()
    again = Client()
    give(again, "alice", secret)
    assert not is_in(again)


def test_a_sign_in_forgets_no_one_time_password_but_its_own(
    linked: User, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, discard = user_reset(user=linked, username="alice").secret, one_time.discard

    def late(one_time_id: int) -> None:
        user_reset(user=linked, username="alice")
        discard(one_time_id)

    monkeypatch.setattr(one_time, "discard", late)
    client = Client()
    give(client, "alice", secret)
    assert OneTimePassword.objects.get(user=alice).used_at is None
    assert not is_in(client), "the reset ended what the earlier one began"


def test_who_has_no_password_that_counts_confirms_by_a_fresh_session(
    linked: User, alice: User, off: LazySettings, tmp_path: Path
) -> None:
    off.LUTHIER_SECRETS_KEYS = SecretsKeys((), tmp_path / "secrets_keys")
    client = Client()
    give(client, "alice", user_reset(user=linked, username="alice").secret)
    assert client.post("/me/two-factor/begin").status_code == 302
    AuthenticatorApp.objects.all().delete()
    grow_stale(client)
    assert client.post("/me/two-factor/begin")["Location"] == "/me/confirm?next=%2Fme%2Ftwo-factor"
    assert not AuthenticatorApp.objects.exists()
    assert "Ask a platform admin for a one-time password" in markup(client.get("/me/confirm"))


def test_the_last_admin_who_could_sign_in_stays_one(linked: User) -> None:
    factories.user("other", is_superuser=True, password=factories.PASSWORD, last_login=timezone.now())
    for change in (
        lambda: user_disable(user=linked, username="linked"),
        lambda: user_change(user=linked, username="linked", changes={"is_superuser": False}),
        lambda: identity_unlink(user=linked, username="linked"),
        lambda: identity_link(user=linked, username="linked", subject="may-never-come"),
    ):
        with pytest.raises(LastAdmin, match="let them sign in"):
            change()
    other = identity_link(user=linked, username="other", subject="mistyped")
    with pytest.raises(LastAdmin):  # a password, not this identity, has signed them in
        identity_unlink(user=linked, username="linked")
    signs_in(identity_link(user=linked, username="other", subject="other-there"))
    assert identity_link(user=linked, username="linked", subject="another").pk != other.pk
    identity_unlink(user=linked, username="linked")


def test_it_starts_with_a_warning_where_no_admin_can_sign_in(
    off: LazySettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prepare, "register_runtimes", lambda: None)
    assert warnings() == []  # there is no admin yet: `manage.py admin` makes one
    factories.user("boss", is_superuser=True, password=factories.PASSWORD, last_login=timezone.now())
    assert warnings() == [prepare.NO_WAY_IN]
    assert "`manage.py admin NAME --reset`" in caplog.text
    assert not diagnosis.sign_in().ready
    refused = Client()
    give(refused, "boss", factories.PASSWORD)
    assert not is_in(refused)
    out = StringIO()
    call_command("admin", "boss", "--reset", stdout=out)
    assert "and signs in." in out.getvalue()
    assert warnings() == []
    client = Client()
    assert give(client, "boss", out.getvalue().split()[4])["Location"] == "/"
    assert client.get("/admin-console/").status_code == 200


def test_two_factor_authentication_is_required_after_a_one_time_password_as_well(
    linked: User, alice: User, off: LazySettings, tmp_path: Path
) -> None:
    off.LUTHIER_TWO_FACTOR_REQUIRED = True
    off.LUTHIER_SECRETS_KEYS = SecretsKeys((), tmp_path / "secrets_keys")
    client = Client()
    secret = user_reset(user=linked, username="alice").secret
    assert give(client, "alice", secret)["Location"] == "/login/two-factor"
    assert not is_in(client)
    begun = client.get("/login/two-factor").context["begun"]
    client.post("/login/two-factor", {"code": factories.app_code(begun.secret)})
    assert is_in(client)
