"""Connections on which a client keeps the server waiting, over real ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from ipaddress import ip_network
from typing import Any

import pytest
import uvicorn

from portal import connections
from portal.connections import Http, OpenConnections

App = Callable[[Any, Any, Any], Awaitable[None]]
LINE_MAX = 65_536
LARGE = 32 * 1024 * 1024
"""More than the kernel's buffers of both ends hold."""


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> OpenConnections:
    found = OpenConnections(total=1000, per_address=100)
    monkeypatch.setattr(connections, "OPEN", found)
    return found


async def hello(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"5")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello"})


@contextlib.asynccontextmanager
async def served(app: App = hello, **limits: Any) -> AsyncIterator[int]:
    """The port of a server with these limits."""
    protocol = type("Limited", (Http,), limits)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off", http=protocol)
    config.timeout_keep_alive = 1
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    server.force_exit = True
    await serving


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LINE_MAX)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def until(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not claim():
            await asyncio.sleep(0.01)


REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HALF_OPEN = [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n", b"\r\n"]


async def test_of_60_half_open_connections_none_is_left_after_the_deadline(opened: OpenConnections) -> None:
    async with served(HEAD_S=0.5) as port, contextlib.AsyncExitStack() as held:
        for n in range(60):
            reader, writer = await held.enter_async_context(connected(port))
            if n % 2:  # after a whole request, too
                writer.write(REQUEST)
                await reader.readuntil(b"hello")
            writer.write(HALF_OPEN[n // 2 % len(HALF_OPEN)])
        await until(lambda: len(opened._address_of) == 0)
        assert not opened._by_address


async def test_a_head_that_comes_byte_by_byte_is_cut_off_at_the_same_deadline() -> None:
    async with served(HEAD_S=0.3) as port:
        async with connected(port) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\n")
            trickle = asyncio.create_task(_trickle(writer))
            async with asyncio.timeout(20):
                answer = await reader.readline()
            trickle.cancel()
        assert answer.startswith(b"HTTP/1.1 408 ")


async def _trickle(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"X-A: b\r\n")
        await asyncio.sleep(0.02)


async def test_an_endless_head_is_refused() -> None:
    async with served(HEAD_BYTES=4096) as port, connected(port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nX-Endless: " + b"x" * 10_000)
        assert (await reader.readline()).startswith(b"HTTP/1.1 431 ")


async def test_a_deadline_ends_with_the_head_and_begins_again_with_the_next() -> None:
    release = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await hello(scope, receive, send)

    async with served(slow, HEAD_S=0.2) as port, connected(port) as (reader, writer):
        for _ in range(2):
            release.clear()
            writer.write(REQUEST)
            await asyncio.sleep(0.4)  # longer than the deadline: our own time does not count
            release.set()
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 ")


async def test_a_reader_who_takes_nothing_is_cut_off(opened: OpenConnections) -> None:
    ended = asyncio.Event()

    async def large(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", str(LARGE).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(LARGE // 65_536):
            await send({"type": "http.response.body", "body": bytes(65_536), "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        ended.set()

    async with served(large, STALL_S=0.3) as port, connected(port) as (_, writer):
        writer.write(REQUEST)
        await until(lambda: len(opened._address_of) == 1)
        await until(lambda: len(opened._address_of) == 0)
        await asyncio.wait_for(ended.wait(), 20)  # the response under way has ended, too


@pytest.mark.parametrize(
    ("first", "second", "admitted"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:3::9", False),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", True),
        ("::ffff:10.0.0.7", "10.0.0.7", False),
        ("::ffff:10.1.0.7", "::ffff:10.1.0.7", True),  # a proxy
        ("2001:db8:9::1", "2001:db8:9::1", True),  # a proxy
        ("2001:db8:9::2", "2001:db8:9::3", False),  # others of its network
        ("", "", True),  # a Unix socket
    ],
)
def test_an_ipv6_network_is_one_address(first: str, second: str, admitted: bool) -> None:
    proxies = (ip_network("10.1.0.0/16"), ip_network("2001:db8:9::1/128"))
    some = OpenConnections(total=10, per_address=1, exempt=proxies)
    assert some.admit("first", first)
    assert some.admit("second", second) == admitted
    for name in ("first", "second"):
        some.release(name)
    assert not some._by_address


async def test_one_address_gets_503_above_its_share_and_others_are_served(opened: OpenConnections) -> None:
    opened.per_address = 3
    async with served() as port, contextlib.AsyncExitStack() as held:
        for _ in range(3):
            await held.enter_async_context(connected(port))
        await until(lambda: len(opened._address_of) == 3)
        async with connected(port) as (reader, _):
            assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
        assert opened.admit("another", "10.0.0.9")
        opened.exempt = (ip_network("127.0.0.0/8"),)
        async with connected(port) as (reader, writer):
            writer.write(REQUEST)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


def test_websockets_of_known_users_count_for_the_total_only() -> None:
    some = OpenConnections(total=3, per_address=1)
    assert some.admit("first", "10.0.0.1")
    assert not some.admit("second", "10.0.0.1")
    some.is_known("first")
    assert some.admit("second", "10.0.0.1")
    assert some.admit("third", "10.0.0.2")
    assert not some.admit("fourth", "10.0.0.3")
    for name in ("first", "first", "second", "third", "unknown"):
        some.release(name)
    assert not some._address_of
    assert not some._by_address
