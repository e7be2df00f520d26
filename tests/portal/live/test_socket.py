"""The short way out of a websocket, over the real server and a real connection."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from portal import connections
from portal.connections import Http, OpenConnections
from portal.live.socket import (
    FRAGMENTS_MAX,
    Socket,
    authenticated,
    binary_frame,
    close_reason,
    direct_write,
    text_frame,
)

HANDSHAKE = (
    f"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\nSec-WebSocket-Version: 13\r\n\r\n"
).encode()
App = Callable[[Any, Any, Any], Awaitable[None]]
SIZES = [0, 1, 125, 126, 127, 65_535, 65_536, 200_000]


@contextlib.asynccontextmanager
async def serving(app: App, **more: Any) -> AsyncIterator[int]:
    """The port of this application behind uvicorn."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_level="error", lifespan="off", ws=Socket, **more
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await task


@contextlib.asynccontextmanager
async def served(app: App) -> AsyncIterator[ClientConnection]:
    """A connection to it."""
    async with serving(app) as port, connect(f"ws://127.0.0.1:{port}/", proxy=None, max_queue=1) as client:
        yield client


class Quiet:
    """An application that accepts and reads until the end. sockets: the server's side of each connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sockets: list[Socket] = []
        self.ended = asyncio.Event()
        made = Socket.connection_made

        def connection_made(socket: Socket, transport: Any) -> None:
            self.sockets.append(socket)
            made(socket, transport)

        monkeypatch.setattr(Socket, "connection_made", connection_made)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass
        self.ended.set()


@contextlib.asynccontextmanager
async def mute(port: int) -> AsyncIterator[asyncio.StreamWriter]:
    """A client that has opened a websocket and reads nothing any more."""
    here = socket.socket()
    here.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    here.setblocking(False)
    await asyncio.get_running_loop().sock_connect(here, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=here, limit=1024)
    writer.write(HANDSHAKE)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # the stubs have one for writing alone
    try:
        yield writer
    finally:
        writer.transport.abort()


def frame_of(kind: int, data: bytes = b"") -> bytes:
    """A short frame of a client, masked by zeros."""
    return bytes((kind, 0x80 | len(data))) + bytes(4) + data


async def test_pings_of_one_who_reads_no_answer_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    app, pings = Quiet(monkeypatch), frame_of(0x89, b"p" * 125) * 500
    async with serving(app) as port, mute(port) as client:
        for _ in range(500):  # 32 MiB of them, if all were taken
            client.write(pings)
            try:
                await asyncio.wait_for(client.drain(), 1)
            except TimeoutError:
                break
        else:
            raise AssertionError("all pings were taken")
        assert app.sockets[0].transport.get_write_buffer_size() < 2**20


async def test_one_who_reads_late_gets_all_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading continues once they are taken."""
    app = Quiet(monkeypatch)
    async with serving(app) as port, connect(f"ws://127.0.0.1:{port}/", proxy=None) as client:
        payload = os.urandom(60)
        answers = [await client.ping(payload + n.to_bytes(4)) for n in range(20_000)]
        await asyncio.wait_for(asyncio.gather(*answers), 60)
        await client.send("and a message")
        await client.close()
        await asyncio.wait_for(app.ended.wait(), 20)


async def test_one_who_reads_nothing_is_cut_off_once_the_connection_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waits to be sent would keep it open otherwise."""
    monkeypatch.setattr(Socket, "STALL_S", 0.5)
    app = Quiet(monkeypatch)
    async with serving(app, ws_ping_interval=0.2, ws_ping_timeout=0.2) as port, mute(port):
        while not app.sockets[0].writable.is_set() or app.sockets[0].transport.get_write_buffer_size() == 0:
            if not app.sockets[0].write_ready(binary_frame(b"b" * 60_000)):
                break
            await asyncio.sleep(0)
        await asyncio.wait_for(app.ended.wait(), 30)
        assert app.sockets[0].disconnected


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> OpenConnections:
    found = OpenConnections(total=1000, per_address=3)
    monkeypatch.setattr(connections, "OPEN", found)
    return found


class ByName:
    """An application that accepts everyone and knows those who send a name."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        event = await receive()
        if event.get("text") == "name":
            authenticated(scope)
            await send({"type": "websocket.send", "text": "welcome"})
            await receive()
        elif event["type"] == "websocket.receive":
            await send({"type": "websocket.close", "code": 4401})


async def test_a_websocket_counts_for_its_address_until_its_user_is_known(opened: OpenConnections) -> None:
    async with serving(ByName(), http=Http) as port, contextlib.AsyncExitStack() as held:
        where = f"ws://127.0.0.1:{port}/"
        clients = [await held.enter_async_context(connect(where, proxy=None)) for _ in range(3)]
        assert opened._by_address["127.0.0.1"] == 3
        with pytest.raises(InvalidStatus, match="503"):
            await connect(where, proxy=None)
        assert opened.admit("another", "10.0.0.9")
        await clients[0].send("name")
        assert await clients[0].recv() == "welcome"
        assert opened._by_address["127.0.0.1"] == 2
        await held.enter_async_context(connect(where, proxy=None))


async def test_a_refused_stranger_who_answers_no_close_frame_is_gone_soon(
    opened: OpenConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Socket, "REFUSED_S", 0.1)
    async with serving(ByName(), http=Http) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HANDSHAKE)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(frame_of(0x81, b"anything"))
        assert (await reader.readexactly(2))[0] == 0x88
        async with asyncio.timeout(8):  # less than the ten seconds that uvicorn waits
            assert await reader.read() == (4401).to_bytes(2)
        writer.close()
        while opened._address_of:
            await asyncio.sleep(0.01)


async def test_a_message_of_very_many_fragments_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Quiet(monkeypatch)
    async with serving(app) as port, connect(f"ws://127.0.0.1:{port}/", proxy=None) as client:
        client.transport.write(frame_of(0x01, b"x") + frame_of(0x00) * FRAGMENTS_MAX)
        await asyncio.wait_for(client.wait_closed(), 20)
        assert client.close_code == 1009
        await asyncio.wait_for(app.ended.wait(), 20)
    async with serving(app) as port, connect(f"ws://127.0.0.1:{port}/", proxy=None) as client:
        await client.send([b"piece"] * 500)
        await client.close()
        assert client.close_code == 1000


async def test_frames_of_every_size_arrive_whole_and_in_order_beside_those_that_are_sent() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        write = direct_write(scope)
        await receive()
        assert not write(text_frame(b"too early"))
        await send({"type": "websocket.accept"})
        for size in SIZES:
            while not write(text_frame(b"t" * size)):
                await asyncio.sleep(0.001)
            await send({"type": "websocket.send", "text": f"sent {size}"})
            while not write(binary_frame(b"b" * size)):
                await asyncio.sleep(0.001)
        await send({"type": "websocket.close"})
        assert not write(text_frame(b"too late"))

    async with served(app) as client:
        got = [message async for message in client]

    assert got == [one for size in SIZES for one in ("t" * size, f"sent {size}", b"b" * size)]


async def test_a_reader_who_takes_nothing_fills_no_memory() -> None:
    body = os.urandom(50_000).hex().encode()
    refused, taken = asyncio.Event(), 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal taken
        write = direct_write(scope)
        await receive()
        await send({"type": "websocket.accept"})
        while write(text_frame(body)):
            taken += 1
            await asyncio.sleep(0)
        refused.set()
        await send({"type": "websocket.send", "text": "last"})
        await send({"type": "websocket.close"})

    async with served(app) as client:
        await asyncio.wait_for(refused.wait(), 20)
        got = [message async for message in client]

    assert got == [body.decode()] * taken + ["last"]


async def test_a_reason_of_any_length_and_alphabet_arrives_with_its_code() -> None:
    """Of a longer one the server would send no close frame, and the client would not learn the code."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        reason = close_reason("not '" + "😀" * 40 + "\ud800'")
        await send({"type": "websocket.close", "code": 4400, "reason": reason})

    async with served(app) as client:
        await client.wait_closed()
        assert (client.close_code, client.close_reason) == (4400, "not '" + "😀" * 29)

    assert close_reason("x" * 123) == "x" * 123
    assert close_reason("half \ud800") == "half ?"


def test_a_connection_that_is_closing_takes_nothing_for_it_would_be_lost() -> None:
    socket = Socket.__new__(Socket)
    socket.writable = asyncio.Event()
    socket.writable.set()
    socket.handshake_complete, socket.close_sent, socket.disconnected = True, False, False
    socket.transport = transport = Mock(spec=asyncio.Transport)
    transport.is_closing.return_value = False
    assert socket.write_ready(text_frame(b"open"))
    transport.is_closing.return_value = True
    assert not socket.write_ready(text_frame(b"closing"))
    transport.write.assert_called_once_with(text_frame(b"open"))
