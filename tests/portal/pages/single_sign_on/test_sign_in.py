"""A sign-in by the provider: how it begins, where it leads, how often it may be tried."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from allauth.socialaccount.models import SocialAccount
from django.conf import LazySettings
from django.test import Client

from portal.pages import single_sign_on as pages
from tenants.models import AuditEntry, Session, User
from tenants.sessions import row_key
from tests import factories
from tests.identity_provider.process import IdentityProvider
from tests.markup import markup
from tests.portal.pages.single_sign_on.conftest import said, signed_in

pytestmark = pytest.mark.django_db


def test_a_linked_person_signs_in_by_code_pkce_state_and_nonce(
    provider: IdentityProvider, erin: User
) -> None:
    client = Client(headers={"User-Agent": "Mozilla/5.0 (X11; Linux) Firefox/140"}, REMOTE_ADDR="10.0.0.7")
    asked = parse_qs(urlsplit(client.get("/login/sso")["Location"]).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert {"state", "nonce", "code_challenge"} <= set(asked)
    assert all(len(asked[name][0]) >= 22 for name in ("state", "nonce")), "of 64 letters: 128 bits"
    before = client.session.session_key
    arrived = provider.sign_in(client, next="/help")
    assert (arrived.status_code, arrived["Location"]) == (302, "/help")
    assert signed_in(client) == "erin"
    session = Session.objects.get(pk=row_key(client.session))
    assert session.pk != before
    assert (session.user, session.address) == (erin, "10.0.0.7")
    assert "Firefox" in session.agent
    assert (session.expire_date - session.started_at).days >= 13
    entry = AuditEntry.objects.get(action="login.success")
    assert (entry.actor, entry.address) == (erin, "10.0.0.7")
    assert entry.details == {"by": "single sign-on", "browser": "Firefox on Linux"}
    stored = {"issuer": provider.issuer, "subject": "erin", "groups": []}
    kept = SocialAccount.objects.get().extra_data
    assert kept == stored | {"signed_in_at": kept["signed_in_at"]}


def test_the_login_page_offers_it_beside_the_password(provider: IdentityProvider, alice: User) -> None:
    page = markup(Client().get("/login", {"next": "/help?q=a&b=c"}))
    assert "Sign in with Example ID" in page
    assert 'href="/login/sso?next=%2Fhelp%3Fq%3Da%26b%3Dc"' in page
    done = Client().post("/login", {"username": "alice", "password": factories.PASSWORD})
    assert (done.status_code, done["Location"]) == (302, "/")


def test_without_a_provider_there_is_no_such_page() -> None:
    assert Client().get("/login/sso").status_code == 404
    assert Client().get("/login/sso/callback").status_code == 404
    assert "/login/sso" not in markup(Client().get("/login"))


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example/x", "javascript:alert(1)"])
def test_it_leads_to_no_other_site(provider: IdentityProvider, erin: User, target: str) -> None:
    assert provider.sign_in(Client(), next=target)["Location"] == "/"


def test_a_password_login_after_a_sign_on_that_was_begun_lasts_as_long_as_any(
    provider: IdentityProvider, alice: User
) -> None:
    client = Client()
    client.get("/login/sso")
    client.post("/login", {"username": "alice", "password": factories.PASSWORD})
    session = Session.objects.get(pk=row_key(client.session))
    assert (session.expire_date - session.started_at).days >= 13


def test_an_address_has_a_budget(provider: IdentityProvider) -> None:
    statuses = [Client().get("/login/sso/callback").status_code for _ in range(pages.TRIES_A_MINUTE + 1)]
    assert statuses == [302] * pages.TRIES_A_MINUTE + [429]
    assert Client().get("/login/sso").status_code == 429
    assert Client(REMOTE_ADDR="10.0.0.8").get("/login/sso").status_code == 302


def test_neither_log_nor_page_repeats_code_token_or_secret(
    provider: IdentityProvider, erin: User, caplog: pytest.LogCaptureFixture, settings: LazySettings
) -> None:
    client = Client()
    back = urlsplit(provider.authorize(client.get("/login/sso")["Location"]))
    code = parse_qs(back.query)["code"][0]
    settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"][0]["secret"] = "the-wrong-secret"
    text = said(client.get(f"{back.path}?{back.query}"))
    assert "did not confirm" in text
    everything = text + " ".join(str(record.__dict__) for record in caplog.records)
    assert "the provider did not exchange the code" in everything
    assert code not in everything
    assert "the-wrong-secret" not in everything
