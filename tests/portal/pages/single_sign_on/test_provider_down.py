"""A provider that does not respond: what people see, and what the doctor finds."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from urllib.parse import urlsplit

import pytest
from django.conf import LazySettings
from django.test import Client

from portal import provider_connections, single_sign_on
from portal.health import diagnosis
from tenants.models import User
from tests import factories
from tests.identity_provider.process import IdentityProvider
from tests.markup import markup
from tests.portal.pages.single_sign_on.conftest import said

pytestmark = pytest.mark.django_db


@pytest.fixture
def down(provider: IdentityProvider, settings: LazySettings) -> None:
    apps = settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"]
    apps[0]["settings"]["server_url"] = "http://127.0.0.1:9"


def test_the_login_page_says_so_and_passwords_work(down: None, alice: User) -> None:
    client = Client()
    assert client.get("/login").status_code == 200
    refused = client.get("/login/sso", {"next": "/help"})
    assert refused["Location"] == "/login?next=%2Fhelp"
    page = markup(client.get(refused["Location"]))
    assert "Example ID does not respond. Try again, or sign in with your password." in page
    assert "Your session ended" not in page
    done = client.post("/login", {"username": "alice", "password": factories.PASSWORD, "next": "/help"})
    assert done["Location"] == "/help"


def test_it_may_go_down_while_a_person_is_there(
    provider: IdentityProvider, settings: LazySettings, erin: User
) -> None:
    client = Client()
    back = urlsplit(provider.authorize(client.get("/login/sso")["Location"]))
    apps = settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"]
    apps[0]["settings"]["server_url"] = "http://127.0.0.1:9"
    assert "does not respond" in said(client.get(f"{back.path}?{back.query}"))


def test_one_that_hangs_takes_few_threads(
    provider: IdentityProvider,
) -> None:
    taken = [single_sign_on._free.acquire() for _ in range(single_sign_on.AT_ONCE)]
    try:
        assert "responds slowly" in said(Client().get("/login/sso"))
    finally:
        for _ in taken:
            single_sign_on._free.release()
    assert "does not" not in Client().get("/login/sso")["Location"]


@pytest.mark.parametrize(
    "head",
    ["HTTP/1.1 200 OK\r\nContent-Length: 99999", "HTTP/1.1 200 OK\r\nConnection: close", "HTTP/1.0 200 OK"],
)
def test_one_that_sends_a_byte_now_and_then_is_cut_off(
    head: str, provider: IdentityProvider, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_connections, "LONGEST_S", 0.5)
    with dripping(head) as port:
        apps = settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"]
        apps[0]["settings"]["server_url"] = f"http://127.0.0.1:{port}"
        assert "Example ID" in said(Client().get("/login/sso"))
    assert single_sign_on._free.acquire(blocking=False), "its place is free again"
    single_sign_on._free.release()


@contextmanager
def dripping(head: str) -> Iterator[int]:
    """The port of a server whose answers never end."""
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(head.encode() + b"\r\n\r\n")
            while not over.wait(0.05):
                connection.sendall(b" ")

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)


def test_the_doctor_reads_the_provider_and_names_the_setting(
    provider: IdentityProvider, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = diagnosis.single_sign_on()
    assert (found.reason, found.warnings, found.found) == ("", (), provider.issuer)
    settings.LUTHIER_OIDC_ISSUER = f"{provider.issuer}/"
    found = diagnosis.single_sign_on()
    assert found.reason.endswith(f"names another issuer: {provider.issuer}")
    assert "LUTHIER_OIDC_ISSUER" in found.remedy
    settings.LUTHIER_OIDC_ISSUER = "http://127.0.0.1:9"
    assert "127.0.0.1:9" in diagnosis.single_sign_on().reason
    assert diagnosis.single_sign_on().remedy.startswith("Passwords work meanwhile.")
    settings.LUTHIER_PASSWORD_SIGN_IN = False
    assert diagnosis.single_sign_on().remedy.startswith("One-time passwords work meanwhile.")
    for methods in ("null", "7", "{}"):
        document = f'{{"issuer": "http://127.0.0.1:9", "code_challenge_methods_supported": {methods}}}'
        answer = BytesIO(document.encode())
        monkeypatch.setattr(diagnosis, "urlopen", lambda *_, answer=answer, **__: answer)
        assert "PKCE" in diagnosis.single_sign_on().warnings[0]
    settings.LUTHIER_OIDC_ISSUER = None
    assert diagnosis.single_sign_on().reason == ""


@pytest.mark.parametrize(
    ("claims", "by_password", "warns"),
    [
        ('["sub"]', False, True),
        ('["sub"]', True, False),
        ('["auth_time"]', False, False),
        ("null", False, False),
    ],
)
def test_the_doctor_warns_of_a_provider_by_which_no_one_can_confirm(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch, claims: str, by_password: bool, warns: bool
) -> None:
    settings.LUTHIER_OIDC_ISSUER = "https://id.example.org"
    settings.LUTHIER_PASSWORD_SIGN_IN = by_password
    document = f'{{"issuer": "https://id.example.org", "claims_supported": {claims}}}'
    monkeypatch.setattr(diagnosis, "urlopen", lambda *_, **__: BytesIO(document.encode()))
    assert (diagnosis.NO_AUTH_TIME in diagnosis.single_sign_on().warnings) is warns
