"""A client's address: X-Forwarded-For counts from the proxies that the installation names alone."""

from __future__ import annotations

import os
import subprocess
import sys
from ipaddress import ip_network
from typing import Any

import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from portal.forwarded import LOGGED, ForwardedProto
from portal.settings import values

PROGRAM = """
import asyncio
from portal import asgi

async def seen(scope, receive, send):
    print(scope["client"][0])

asgi.known_clients.app = seen
scope = {"type": "http", "client": ("127.0.0.1", 5), "headers": [(b"x-forwarded-for", b"6.6.6.6, 10.0.0.9")]}
asyncio.run(asgi.application(scope, None, None))
"""

PROTO = """
import asyncio
from portal import asgi

async def seen(scope, receive, send):
    print(scope["client"][0], b"x-forwarded-proto" in dict(scope["headers"]))

asgi.known_clients.app = seen
for peer in ("8.8.8.8", "10.0.0.9"):
    scope = {"type": "http", "client": (peer, 5), "headers": [(b"x-forwarded-proto", b"https")]}
    asyncio.run(asgi.application(scope, None, None))
"""


async def client_of(peer: str, forwarded: str, *trusted: str) -> str:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["client"][0])

    scope: Any = {"type": "http", "client": (peer, 5), "headers": [(b"x-forwarded-for", forwarded.encode())]}
    networks = [str(network) for network in values.networks(",".join(trusted))]
    await ProxyHeadersMiddleware(app, networks)(scope, None, None)  # type: ignore[arg-type]
    return str(seen[0])


async def test_the_last_address_that_is_no_proxys_is_the_clients() -> None:
    assert await client_of("127.0.0.1", "6.6.6.6") == "127.0.0.1"
    assert await client_of("127.0.0.1", "6.6.6.6", "127.0.0.1") == "6.6.6.6"
    assert await client_of("10.0.0.5", "6.6.6.6, 7.7.7.7, 10.0.9.9", "10.0.0.0/16") == "7.7.7.7"
    assert await client_of("8.8.8.8", "6.6.6.6", "10.0.0.0/16") == "8.8.8.8"


@pytest.mark.parametrize(("trusted", "address"), [("", "127.0.0.1"), ("127.0.0.1", "10.0.0.9")])
def test_the_application_trusts_whom_its_setting_names(trusted: str, address: str) -> None:
    env = os.environ | {"DJANGO_SETTINGS_MODULE": "portal.settings.test", "LUTHIER_TRUSTED_PROXIES": trusted}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=100
    )
    assert done.stdout.strip() == address, done.stderr


async def proto_of(peer: str | None, *trusted: str) -> bytes | None:
    seen: list[bytes | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(scope["headers"]).get(b"x-forwarded-proto"))

    headers = [(b"host", b"x"), (b"X-Forwarded-Proto", b"https"), (b"x-forwarded-proto", b"https")]
    client = (peer, 5) if peer else None
    scope = {"type": "http", "client": client, "headers": headers}
    await ForwardedProto(app, values.networks(",".join(trusted)))(scope, None, None)
    return seen[0]


async def test_a_client_past_the_proxy_cannot_claim_https() -> None:
    """With named proxies only they can; without, none from the internet can."""
    for stranger in ("8.8.8.8", "2001:db8::5", "172.32.0.1", "::ffff:8.8.8.8", "not an address"):
        assert await proto_of(stranger) is None, stranger
        assert await proto_of(stranger, "10.0.0.5") is None, stranger
    for inner in (
        "127.0.0.1",
        "10.9.9.9",
        "::1",
        "::ffff:192.168.3.4",
        "100.64.0.7",
        "169.254.1.1",
        "fe80::1%eth0",
    ):
        assert await proto_of(inner) == b"https", inner
        assert await proto_of(inner, "10.0.0.5") is None, inner
    assert await proto_of("10.0.0.5", "10.0.0.5") == b"https"
    assert await proto_of(None, "10.0.0.5") == b"https", "a Unix socket"


async def test_a_proxy_that_is_not_named_is_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    """All its requests are redirected or refused, and nothing else would say why."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        pass

    async def ask(peer: str, *headers: tuple[bytes, bytes]) -> None:
        await forwarded({"type": "http", "client": (peer, 5), "headers": headers}, None, None)

    forwarded = ForwardedProto(app, values.networks("10.0.0.5"))
    https = (b"x-forwarded-proto", b"https")
    for peer in ("10.0.0.6", "10.0.0.6", "10.0.0.5"):
        await ask(peer, https)
    await ask("10.0.0.7")
    assert [getattr(each, "peer", "") for each in caplog.records] == ["10.0.0.6"]
    assert "LUTHIER_TRUSTED_PROXIES" in caplog.text
    for n in range(2 * LOGGED):
        await ask(f"8.8.8.{n}", https)
    assert len(caplog.records) == LOGGED


def test_the_application_takes_no_word_of_a_stranger_for_tls() -> None:
    """The whole of portal.asgi."""
    env = os.environ | {"DJANGO_SETTINGS_MODULE": "portal.settings.test", "LUTHIER_TRUSTED_PROXIES": ""}
    done = subprocess.run([sys.executable, "-c", PROTO], env=env, capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["8.8.8.8", "False", "10.0.0.9", "True"], done.stderr


def test_networks_are_read_and_a_host_name_is_refused() -> None:
    assert values.networks("10.0.0.5, fd00::/8") == (ip_network("10.0.0.5"), ip_network("fd00::/8"))
    with pytest.raises(ValueError, match=r"'proxy\.example' is no address"):
        values.networks("10.0.0.5,proxy.example")
