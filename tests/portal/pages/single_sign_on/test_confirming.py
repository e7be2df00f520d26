"""Users who have no password here confirm at the provider that it is them: it asks again, and says so."""

from __future__ import annotations

import re
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.conf import LazySettings
from django.contrib.messages import get_messages
from django.test import Client

from portal import single_sign_on
from tenants.models import AuditEntry, User
from tenants.sessions import FRESH, PROVED_AT
from tests import factories
from tests.identity_provider.process import IdentityProvider
from tests.markup import markup
from tests.portal.pages.single_sign_on.conftest import signed_in

pytestmark = pytest.mark.django_db
PAGE, AGAIN = "/me/confirm", "/me/confirm/sso"


@pytest.fixture
def browser(provider: IdentityProvider, erin: User) -> Client:
    client = Client()
    assert provider.sign_in(client)["Location"] == "/"
    return client


def confirm(provider: IdentityProvider, client: Client) -> Any:
    back = urlsplit(provider.authorize(client.get(AGAIN)["Location"]))
    return client.get(f"{back.path}?{back.query}")


def is_let_in(client: Client) -> bool:
    return bool(client.post("/me/sign-out-others")["Location"] == "/me")


def test_a_provider_that_only_knows_its_user_makes_no_fresh_session(
    provider: IdentityProvider, browser: Client
) -> None:
    assert not is_let_in(browser), "when it asked is not known"
    assert "Confirm with Example ID" in markup(browser.get(PAGE))
    asked = parse_qs(urlsplit(browser.get(AGAIN)["Location"]).query)
    assert (asked["prompt"], asked["max_age"]) == (["login"], ["0"])
    before = browser.session.session_key
    assert confirm(provider, browser)["Location"] == PAGE
    assert "Confirmed" in markup(browser.get(PAGE))
    assert is_let_in(browser)
    assert browser.session.session_key != before
    assert browser.session.get_expiry_age() > 13 * 86400
    assert AuditEntry.objects.get(action="session.confirm").details == {"by": "single sign-on"}


def test_where_it_says_when_it_asked_a_sign_in_is_a_proof(
    provider: IdentityProvider, erin: User, settings: LazySettings
) -> None:
    settings.LUTHIER_OIDC_MAX_AGE_S = 3600  # the provider then says it
    client = Client()
    provider.sign_in(client)
    assert is_let_in(client)
    assert client.session[PROVED_AT] <= time.time()


def test_someone_else_there_confirms_nothing(
    provider: IdentityProvider, browser: Client, admin: User
) -> None:
    provider.set(account="mallory")
    assert confirm(provider, browser)["Location"] == PAGE
    assert not is_let_in(browser)
    assert signed_in(browser) == "erin"
    entry = AuditEntry.objects.get(action="login.failure")
    assert (entry.target, entry.details["reason"]) == ("erin", "another identity")


def test_a_return_without_a_new_proof_confirms_nothing(
    provider: IdentityProvider, browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unasked(*given: Any, **more: Any) -> Any:
        away = begin(*given, **more)
        away["Location"] = re.sub(r"&(prompt|max_age)=\w+", "", away["Location"])
        return away

    begin = single_sign_on.begin
    monkeypatch.setattr(single_sign_on, "begin", unasked)
    texts = [str(message) for message in get_messages(confirm(provider, browser).wsgi_request)]
    assert "did not ask again who you are" in texts[-1]
    assert "a one-time password of a platform admin instead" in texts[-1], "erin has no password here"
    assert not is_let_in(browser)


def test_a_return_that_is_too_late_confirms_nothing(
    provider: IdentityProvider, browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def long_ago(claims: dict[str, Any]) -> float:
        return time.time() - FRESH.total_seconds()

    asked = single_sign_on.Asked
    monkeypatch.setattr(single_sign_on, "Asked", lambda user, at: asked(user, at - 3600))
    monkeypatch.setattr(single_sign_on, "_asked_at", long_ago)
    assert "This took too long." in str(list(get_messages(confirm(provider, browser).wsgi_request))[-1])
    assert not is_let_in(browser)
    assert not AuditEntry.objects.filter(action="session.confirm").exists()


def test_two_tabs_may_confirm_at_once(provider: IdentityProvider, browser: Client) -> None:
    """Neither return is taken for a sign-in, which would end this session."""
    begun = browser.session["signed_in"]
    backs = [urlsplit(provider.authorize(browser.get(AGAIN)["Location"])) for _ in range(2)]
    for back in backs:
        assert browser.get(f"{back.path}?{back.query}")["Location"] == PAGE
        assert browser.session["signed_in"] == begun
    assert AuditEntry.objects.filter(action="session.confirm").count() == 2
    assert is_let_in(browser)


def test_a_canceled_one_leads_back_to_the_page(provider: IdentityProvider, browser: Client) -> None:
    provider.set(account=None)
    back = confirm(provider, browser)
    assert back["Location"] == PAGE
    assert "was canceled" in str(list(get_messages(back.wsgi_request))[-1])
    assert signed_in(browser) == "erin"


def test_the_second_factor_is_asked_after_it_where_it_is_at_the_sign_in(
    provider: IdentityProvider, browser: Client, erin: User, settings: LazySettings
) -> None:
    secret, _ = factories.authenticator_app(erin)
    settings.LUTHIER_TWO_FACTOR_AFTER_SSO = True
    confirm(provider, browser)
    assert not is_let_in(browser)
    browser.post(PAGE, {"code": factories.app_code(secret)})
    assert is_let_in(browser)


def test_another_site_starts_none(browser: Client) -> None:
    sent = browser.get(AGAIN, headers={"Sec-Fetch-Site": "cross-site"})
    assert sent["Location"] == PAGE


def test_who_is_not_linked_is_not_sent_there(provider: IdentityProvider, alice: User) -> None:
    client = Client()
    client.force_login(alice)
    assert client.get(AGAIN)["Location"] == PAGE
