"""What every response says to browsers, whatever made it, and the cookies of an installation with https."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from asgiref.testing import ApplicationCommunicator
from django.conf import LazySettings
from django.test import Client
from django.utils import timezone

from portal import connections
from portal.asgi_handler import ThreadedHandler
from tenants.models import User
from tests import factories

ROOT = Path(__file__).resolve().parents[2]
YEAR_S = 31_536_000
RULES = ("default-src 'self'", "object-src 'none'", "base-uri 'none'", "frame-ancestors 'none'")
HTTPS = """
import json
import django
django.setup(set_prefix=False)
from django.conf import settings
from django.test import Client
from portal.pages.message_storage import MessageCookie
answer = Client(headers={"Host": "luthier.example.org"}).get("/login", secure=True)
api = Client(headers={"Host": "luthier.example.org", "Authorization": "Bearer lut_x"}).get("/api/v1/me")
csrf = answer.cookies[settings.CSRF_COOKIE_NAME]
print(json.dumps({
    "names": [settings.SESSION_COOKIE_NAME, settings.CSRF_COOKIE_NAME, MessageCookie.cookie_name],
    "set": list(answer.cookies),
    "csrf": [csrf["secure"], csrf["samesite"], csrf["path"], csrf["domain"]],
    "session": [settings.SESSION_COOKIE_SECURE, settings.SESSION_COOKIE_SAMESITE, settings.SESSION_COOKIE_PATH,
                settings.SESSION_COOKIE_DOMAIN or "", settings.SESSION_COOKIE_HTTPONLY],
    "hsts": answer["Strict-Transport-Security"],
    "api": [api.status_code, api.json()["code"]],
    "plain": Client(headers={"Host": "luthier.example.org"}).get("/login").headers.get("Location"),
}))
"""


def shown(headers: dict[str, str]) -> None:
    for rule in RULES:
        assert rule in headers["Content-Security-Policy"]
    assert "unsafe-eval" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers, "no other origin reads anything"


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/login", "/api/v1/me", "/static/favicon.svg", "/never-was", "/readyz"])
def test_every_response_restricts_what_a_browser_makes_of_it(path: str) -> None:
    answer = Client().get(path, headers={"Origin": "https://evil.example"})
    answer.getvalue()  # closes a file that is sent
    shown({**answer.headers})
    kind = answer["Content-Type"]
    assert kind.startswith(("application/", "image/")) or kind.endswith("; charset=utf-8"), kind


@pytest.mark.parametrize(
    ("path", "size", "status"), [("/healthz", 0, 200), ("/login", 10**9, 413), ("/api/v1/me", 10**9, 413)]
)
def test_so_does_what_passes_no_middleware(path: str, size: int, status: int) -> None:
    scope = {"type": "http", "method": "POST" if size else "GET", "path": path, "query_string": b"",
             "headers": [(b"host", b"localhost"), (b"content-length", str(size).encode())]}  # fmt: skip

    async def ask() -> dict[str, str]:
        sender = ApplicationCommunicator(ThreadedHandler(), scope)
        await sender.send_input({"type": "http.request", "body": b"", "more_body": bool(size)})
        start = await sender.receive_output(20)
        await sender.send_input({"type": "http.disconnect"})
        await sender.wait(20)
        assert start["status"] == status
        return {name.decode(): value.decode() for name, value in start["headers"]}

    shown(asyncio.run(ask()))


def test_over_https_no_cookie_is_another_hosts_and_nothing_goes_without_tls(tmp_path: Path) -> None:
    settings = {"LUTHIER_PUBLIC_URL": "https://luthier.example.org", "LUTHIER_DATA": str(tmp_path),
                "DJANGO_SETTINGS_MODULE": "portal.settings.base"}  # fmt: skip
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "DATABASE_URL")}
    done = subprocess.run(
        [sys.executable, "-c", HTTPS],
        cwd=ROOT,
        env=kept | settings,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert all(name.startswith("__Host-") for name in seen["names"] + seen["set"]), seen
    assert seen["csrf"] == [True, "Lax", "/", ""]
    assert seen["session"] == [True, "Lax", "/", "", True]
    assert int(seen["hsts"].split(";")[0].removeprefix("max-age=")) >= YEAR_S
    assert "includeSubDomains" in seen["hsts"]
    assert seen["plain"] == "https://luthier.example.org/login"
    assert seen["api"] == [403, "https_required"], "not redirected: a token was sent in the clear"


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/login", "/me", "/", "/static/favicon.svg", "/healthz", "/api/v1/me"])
def test_no_response_echoes_a_request(path: str) -> None:
    browser = Client(raise_request_exception=False)
    browser.force_login(factories.user())
    answer = browser.generic("TRACE", path, headers={"X-Marker": "echoed"})
    assert answer.status_code == 405
    assert b"echoed" not in answer.getvalue()


def test_so_does_a_refusal_before_a_request_is_read(settings: LazySettings) -> None:
    settings.SECURE_HSTS_SECONDS = YEAR_S
    made = connections._refusal("503 Service Unavailable", "Later.")
    for refusal in (connections.CROWDED, connections.TOO_LARGE, connections.TOO_SLOW, made):
        head = refusal.split(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
        headers = dict(line.split(": ", 1) for line in head)
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["strict-transport-security"] == f"max-age={YEAR_S}; includeSubDomains"


@pytest.mark.django_db
def test_signing_out_clears_what_the_browser_keeps() -> None:
    browser = Client()
    browser.force_login(factories.user())
    assert browser.post("/logout")["Clear-Site-Data"] == '"storage"'


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/me", "/api/v1/me"])
@pytest.mark.parametrize("end", ["of its row", "of the password", "of its days"])
def test_a_session_that_ended_in_another_way_leaves_nothing_in_the_browser_either(
    end: str, path: str
) -> None:
    """With the response by which the browser loses the session's key: the next request does not have it."""
    user, browser = factories.user(), Client()
    browser.force_login(user)
    assert "Clear-Site-Data" not in browser.get(path)
    if end == "of its row":
        user.sessions.all().delete()
    elif end == "of the password":
        user.set_password("another-long-password")
        user.save()
    else:
        user.sessions.update(started_at=timezone.now() - timedelta(days=15))
    answer = browser.get(path)
    assert answer.status_code in (302, 401)
    assert answer["Clear-Site-Data"] == '"storage"'


@pytest.mark.django_db
def test_the_sign_in_page_clears_what_a_session_left_whose_key_the_browser_has_dropped() -> None:
    """As browsers do when a session reaches its age. Who has a session is not there, in whichever tab."""
    assert Client().get("/login")["Clear-Site-Data"] == '"storage"'
    assert "Clear-Site-Data" not in Client().get("/healthz")


@pytest.mark.django_db
def test_the_browser_of_a_disabled_user_keeps_nothing() -> None:
    user, browser = factories.user(), Client()
    browser.force_login(user)
    User.objects.filter(pk=user.pk).update(is_active=False)
    assert browser.get("/me")["Clear-Site-Data"] == '"storage"'


@pytest.mark.django_db
@pytest.mark.parametrize(
    "path", ["/me", "/", "/login", "/help", "/cluster", "/no-such-page", "/t/vision-lab/usage.csv"]
)
def test_browsers_store_no_page_and_no_table(path: str) -> None:
    browser = Client()
    browser.force_login(factories.member(factories.tenant("vision-lab"), "alice"))
    assert "no-store" in browser.get(path)["Cache-Control"]
