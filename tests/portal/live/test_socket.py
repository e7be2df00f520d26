"""The short way out of a websocket, over the real server and a real connection."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from unittest.mock import Mock

import uvicorn
from websockets.asyncio.client import ClientConnection, connect

from portal.live.socket import Socket, binary_frame, close_reason, direct_write, text_frame

App = Callable[[Any, Any, Any], Awaitable[None]]
SIZES = [0, 1, 125, 126, 127, 65_535, 65_536, 200_000]


@contextlib.asynccontextmanager
async def served(app: App) -> AsyncIterator[ClientConnection]:
    """A connection to this application behind uvicorn."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off", ws=Socket)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with connect(f"ws://127.0.0.1:{port}/", proxy=None, max_queue=1) as client:
        yield client
    server.should_exit = True
    await serving


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
