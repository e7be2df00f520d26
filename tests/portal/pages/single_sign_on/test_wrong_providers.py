"""What a provider, or who is between, may do wrong."""

from __future__ import annotations

import io
import re
import time
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import jwt
import pytest
import requests
from cryptography.hazmat.primitives.asymmetric import rsa
from django.conf import LazySettings
from django.test import Client

from portal import single_sign_on
from tenants.models import User
from tenants.services.identities import Identity, identity_link
from tests import factories
from tests.identity_provider.process import CLIENT_SECRET, IdentityProvider
from tests.markup import markup
from tests.portal.pages.single_sign_on.conftest import said, signed_in

pytestmark = pytest.mark.django_db
WHO = {"iss": "https://id.example", "sub": "erin"}
FOREIGN_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def test_keys_may_rotate_at_any_time(provider: IdentityProvider, erin: User) -> None:
    for _ in range(2):
        provider.set(rotate=True)
        client = Client()
        provider.sign_in(client)
        assert signed_in(client) == "erin"


@pytest.mark.parametrize(
    "forged",
    ["unsigned", "shared secret", "foreign key", "unknown key", "audience", "issuer", "azp", "empty"],
)
def test_a_token_that_the_provider_did_not_make_for_us_is_refused(
    provider: IdentityProvider, erin: User, monkeypatch: pytest.MonkeyPatch, forged: str
) -> None:
    """As a proxy between the two machines would have to make it."""
    exchange = single_sign_on.Protocol.get_access_token_data

    def forging(self: Any, *args: Any, **more: Any) -> Any:
        data = exchange(self, *args, **more)
        return data | {"id_token": forge(data["id_token"], forged)}

    monkeypatch.setattr(single_sign_on.Protocol, "get_access_token_data", forging)
    client = Client()
    assert "did not confirm who you are" in said(provider.sign_in(client))
    assert signed_in(client) is None


def test_userinfo_about_another_person_is_refused(
    provider: IdentityProvider, erin: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_sign_on.Protocol, "_fetch_user_info", lambda self, token: {"sub": "bob"})
    client = Client()
    assert "did not confirm who you are" in said(provider.sign_in(client))
    assert signed_in(client) is None


@pytest.mark.parametrize(
    ("in_token", "in_userinfo", "email"),
    [
        ({"email": "victim@x.org"}, {"email": "erin@x.org", "email_verified": True}, "erin@x.org"),
        ({"email": "erin@x.org", "email_verified": True}, {"email": "victim@x.org"}, "erin@x.org"),
        ({"email_verified": True}, {"email": "victim@x.org"}, ""),
        ({"email": "victim@x.org", "email_verified": False}, {"email_verified": True}, ""),
    ],
)
def test_an_address_is_verified_by_the_document_that_has_it(
    provider: IdentityProvider,
    monkeypatch: pytest.MonkeyPatch,
    in_token: Any,
    in_userinfo: Any,
    email: str,
) -> None:
    found = []
    monkeypatch.setattr(single_sign_on.Protocol, "_decode_id_token", lambda *_: WHO | in_token)
    monkeypatch.setattr(single_sign_on.Protocol, "_fetch_user_info", lambda *_: {"sub": "erin"} | in_userinfo)
    from_claims = Identity.from_claims
    monkeypatch.setattr(Identity, "from_claims", lambda claims: found.append(from_claims(claims)) or found[0])
    provider.sign_in(Client())
    assert found[0].email == email


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("_fetch_user_info", []),
        ("_fetch_user_info", None),
        ("get_access_token_data", {"access_token": "x", "expires_in": 1e30}),
    ],
)
def test_an_odd_answer_is_refused_with_a_sentence(
    provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch, method: str, answer: Any
) -> None:
    monkeypatch.setattr(single_sign_on.Protocol, method, lambda *_, **__: answer)
    assert "did not confirm who you are" in said(provider.sign_in(Client()))


@pytest.mark.parametrize("subject", ["a\0b", "\ud800", "", "x" * 256])
def test_a_subject_that_no_row_can_hold_is_refused(subject: str) -> None:
    with pytest.raises(ValueError, match="subject"):
        Identity.from_claims(WHO | {"sub": subject})


def test_odd_documents_are_refused_with_a_sentence(
    provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A discovery document that is a list, keys that are null, and userinfo that is not JSON but a signed token."""
    get = requests.Session.get
    client = Client()
    for path, body in ((".well-known", b"[]"), ("/jwks", b"null"), ("/me", b"eyJ.e30.x")):

        def answered(self: Any, url: str, path: str = path, body: bytes = body, **more: Any) -> Any:
            response = get(self, url, **more)
            if path in url:
                response._content = body
            return response

        with monkeypatch.context() as patched:
            patched.setattr(requests.Session, "get", answered)
            started = client.get("/login/sso")
            if path == ".well-known":
                assert "did not confirm who you are" in said(started)
                continue
            back = urlsplit(provider.authorize(started["Location"]))
            assert "did not confirm who you are" in said(client.get(f"{back.path}?{back.query}"))


@pytest.mark.parametrize(("skew_s", "works"), [(-50, True), (50, True), (90, False), (-700, False)])
def test_clocks_may_differ_by_a_minute(
    provider: IdentityProvider, erin: User, skew_s: int, works: bool
) -> None:
    provider.set(skew_s=skew_s)
    client = Client()
    response = provider.sign_in(client)
    assert (signed_in(client) == "erin") is works
    if not works:
        assert "differ by more than a minute" in said(response)


def test_a_person_who_cancels_returns_to_the_login(provider: IdentityProvider) -> None:
    provider.set(account=None)
    assert "was canceled" in said(provider.sign_in(Client()))


@pytest.mark.parametrize(("account", "text"), [(None, "was canceled"), ("erin", "to link it")])
def test_who_fails_once_still_gets_where_they_wanted_to_go(
    provider: IdentityProvider, admin: User, account: str | None, text: str
) -> None:
    provider.set(account=account)
    client = Client()
    refused = provider.sign_in(client, next="/help?q=a")
    assert text in said(refused)
    assert refused["Location"] == "/login?next=%2Fhelp%3Fq%3Da"
    factories.user("erin")
    identity_link(user=admin, username="erin", subject="erin")
    provider.set(account="erin")
    link = re.search(r'href="/login/sso\?next=([^"]*)"', markup(client.get(refused["Location"])))
    assert link
    assert provider.sign_in(client, next=unquote(link[1]))["Location"] == "/help?q=a"
    provider.set(account=None)
    foreign = provider.sign_in(Client(), next="https://evil.example/")
    assert foreign["Location"] == "/login", "an address of another site is not kept"


def test_a_return_counts_once_and_only_in_the_browser_that_started(
    provider: IdentityProvider, erin: User
) -> None:
    client = Client()
    back = urlsplit(provider.authorize(client.get("/login/sso")["Location"]))
    address = f"{back.path}?{back.query}"
    assert "another browser" in said(Client().get(address))
    assert client.get(address)["Location"] == "/"
    client.logout()
    assert "another browser" in said(client.get(address))
    assert "another browser" in said(client.get("/login/sso/callback"))


def test_a_nonce_of_another_login_is_refused(
    provider: IdentityProvider, erin: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    address = client.get("/login/sso")["Location"]
    nonce = parse_qs(urlsplit(address).query)["nonce"][0]
    back = urlsplit(provider.authorize(address.replace(nonce, "stolen")))
    assert "did not confirm" in said(client.get(f"{back.path}?{back.query}"))
    assert signed_in(client) is None


def test_an_issuer_that_names_itself_otherwise_is_refused(
    provider: IdentityProvider, settings: LazySettings
) -> None:
    settings.LUTHIER_OIDC_ISSUER = "https://login.example.org"
    assert "did not confirm" in said(Client().get("/login/sso"))


def test_no_redirect_of_the_provider_is_followed(
    provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could lead to a service that only the platform reaches, or carry the client's secret away."""
    asked = []

    def moved(self: Any, request: Any, **more: Any) -> requests.Response:
        asked.append(request.url)
        response = requests.Response()
        response.status_code, response.request, response.url = 302, request, request.url
        response.headers["Location"] = "http://inner.example/"
        response.raw, response._content = io.BytesIO(), b""
        return response

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", moved)
    assert "did not confirm who you are" in said(Client().get("/login/sso"))
    assert len(asked) == 1


@pytest.mark.filterwarnings("ignore:The RSA key is 1024 bits long")
@pytest.mark.parametrize(("bits", "fits"), [(1024, False), (2048, True)])
def test_a_short_key_of_the_provider_is_refused(
    provider: IdentityProvider, erin: User, monkeypatch: pytest.MonkeyPatch, bits: int, fits: bool
) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=bits)
    exchange = single_sign_on.Protocol.get_access_token_data
    known: dict[str, str] = {}

    def signed(self: Any, *args: Any, **more: Any) -> Any:
        data = exchange(self, *args, **more)
        header = jwt.get_unverified_header(data["id_token"])
        claims = jwt.decode(data["id_token"], options={"verify_signature": False})
        known["kid"] = header["kid"]
        return data | {"id_token": jwt.encode(claims, key, algorithm="RS256", headers={"kid": header["kid"]})}

    def published(data: Any) -> Any:
        shown = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": known["kid"]}
        return jwt.PyJWKSet([shown | {"alg": "RS256"}])

    monkeypatch.setattr(single_sign_on.Protocol, "get_access_token_data", signed)
    monkeypatch.setattr(jwt.PyJWKSet, "from_dict", published)
    client = Client()
    provider.sign_in(client)
    assert (signed_in(client) == "erin") is fits


@pytest.mark.parametrize(
    ("claims", "fits"),
    [
        ({"acr": "two-factor", "auth_time": 1000}, True),
        ({"acr": "hardware", "auth_time": 1000 - 300}, True),
        ({"acr": "password", "auth_time": 1000}, False),
        ({"auth_time": 1000}, False),
        ({"acr": ["two-factor"], "auth_time": 1000}, False),
        ({"acr": "two-factor"}, False),
        ({"acr": "two-factor", "auth_time": "1000"}, False),
        ({"acr": "two-factor", "auth_time": True}, False),
        ({"acr": "two-factor", "auth_time": 1000 - 300 - 61}, False),
    ],
)
def test_how_and_when_a_person_signed_in_at_the_provider_counts(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch, claims: dict[str, Any], fits: bool
) -> None:
    settings.LUTHIER_OIDC_ACR, settings.LUTHIER_OIDC_MAX_AGE_S = ("two-factor", "hardware"), 300
    monkeypatch.setattr(time, "time", lambda: 1000)
    if fits:
        single_sign_on._require_strength(claims)
        return
    with pytest.raises(single_sign_on.TokenInvalid):
        single_sign_on._require_strength(claims)


def test_the_provider_is_asked_for_them_and_one_that_does_not_confirm_signs_no_one_in(
    provider: IdentityProvider, erin: User, settings: LazySettings
) -> None:
    settings.LUTHIER_OIDC_ACR, settings.LUTHIER_OIDC_MAX_AGE_S = ("two-factor", "hardware"), 300
    client = Client()
    asked = parse_qs(urlsplit(client.get("/login/sso")["Location"]).query)
    assert (asked["acr_values"], asked["max_age"]) == (["two-factor hardware"], ["300"])
    assert "did not confirm who you are" in said(provider.sign_in(client))
    assert signed_in(client) is None


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_starts_no_sign_in(provider: IdentityProvider, site: str) -> None:
    sent = Client().get("/login/sso?next=/help", headers={"Sec-Fetch-Site": site})
    assert sent["Location"] == "/login?next=%2Fhelp", "where its user decides"
    for own in ("same-origin", "none"):
        begun = Client().get("/login/sso", headers={"Sec-Fetch-Site": own})
        assert not begun["Location"].startswith("/login"), own


def forge(token: str, how: str) -> str:
    """The claims of a token in another one."""
    header = jwt.get_unverified_header(token)
    claims = jwt.decode(token, options={"verify_signature": False})
    if how == "unsigned":
        return jwt.encode(claims, None, algorithm="none", headers={"kid": header["kid"]})
    if how == "shared secret":
        return jwt.encode(claims, CLIENT_SECRET, algorithm="HS256", headers={"kid": header["kid"]})
    if how == "empty":
        return ""
    kid = "unknown" if how == "unknown key" else header["kid"]
    changed = {
        "audience": {"aud": "other"},
        "issuer": {"iss": "https://other.example"},
        "azp": {"azp": "other"},
    }
    return jwt.encode(claims | changed.get(how, {}), FOREIGN_KEY, algorithm="RS256", headers={"kid": kid})
