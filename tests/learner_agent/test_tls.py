"""Requests by TLS: whom they trust, and what they share."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.frames import CloseCode

from learner_agent import wire
from learner_agent.settings import ShipperSettings
from learner_agent.shipper import connection, tls
from learner_agent.shipper.http import Client, Unreachable
from learner_agent.spool import Spool
from tests.certificates import self_signed

CERTIFICATE = b"-----BEGIN CERTIFICATE-----"


class Handler(BaseHTTPRequestHandler):
    """Takes a file, and answers everything with an empty object."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return self_signed(tmp_path)


@pytest.fixture
def url(certificate: Path) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of this machine's authorities: none at first."""
    path = tmp_path / "authorities.pem"
    path.touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    return path


def trust(authorities: Path, certificate: Path) -> None:
    content = certificate.read_bytes()
    authorities.write_bytes(content[content.index(CERTIFICATE) :])


def test_an_authority_that_is_added_counts_without_a_new_process(
    url: str, certificate: Path, authorities: Path
) -> None:
    client = Client(url, "secret")

    def send() -> None:
        with certificate.open("rb") as source:
            asyncio.run(client.put_file(f"{url}/part?signed", {}, source, 0, 10))
        assert asyncio.run(client.json("/agent/v1/job")) == {}

    with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
        send()
    with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(client.json("/agent/v1/job"))
    trust(authorities, certificate)
    send()
    authorities.write_bytes(b"")
    with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
        send()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[ssl.SSLContext]:
    """The contexts that are made, of which each reads the authorities."""
    contexts: list[ssl.SSLContext] = []
    make = ssl.create_default_context

    def watched(*_: object) -> ssl.SSLContext:
        contexts.append(make())
        return contexts[-1]

    monkeypatch.setattr(ssl, "create_default_context", watched)
    monkeypatch.setattr(ssl, "_create_default_https_context", watched)
    return contexts


def test_the_authorities_are_read_once_for_many_requests(
    url: str, certificate: Path, authorities: Path, made: list[ssl.SSLContext]
) -> None:
    trust(authorities, certificate)
    client = Client(url, "secret")
    for _ in range(3):
        asyncio.run(client.json("/agent/v1/job"))
        with certificate.open("rb") as source:
            asyncio.run(client.put_file(f"{url}/part?signed", {}, source, 0, 10))
    assert made == [tls.context()]
    assert made[0].verify_mode == ssl.CERT_REQUIRED
    assert made[0].check_hostname


def test_the_socket_reads_them_once_for_many_connections(
    tmp_path: Path,
    certificate: Path,
    authorities: Path,
    made: list[ssl.SSLContext],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "FIRST_BACKOFF_S", 0.0)
    trust(authorities, certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    codes = iter((CloseCode.GOING_AWAY, CloseCode.GOING_AWAY, wire.CloseCode.FENCED))

    async def end(socket: ServerConnection) -> None:
        await socket.close(next(codes))

    async def connect() -> None:
        async with serve(end, "127.0.0.1", 0, ssl=context) as server:
            base = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            settings = ShipperSettings(*[tmp_path] * 6, None, base, "secret", "job", 1, 0)
            await connection.Connection(settings, Spool(tmp_path / "spool"), lambda _: None).run()

    with pytest.raises(connection.Fenced):
        asyncio.run(connect())
    assert made == [tls.context()]
