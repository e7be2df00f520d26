"""Sockets as browsers and programs open them, against the real store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.db import connections
from django.test import Client

from jobs.models import Job
from jobs.states import State
from portal.live import guard
from portal.live.routing import websocket_application
from portal.live.socket import CONNECTION, REASON_MAX
from tenants.models import User
from tests import factories

Open = Callable[..., Any]
"""What `socket_of` is: a coroutine function that opens one more socket."""
ORIGIN = "http://testserver"
WITHIN_S = 60.0
"""Seconds that a busy machine may take for what usually takes milliseconds; no test waits that long."""


def cookie_of(user: User) -> str:
    """A fresh session of this person."""
    client = Client()
    client.force_login(user)
    return client.cookies[settings.SESSION_COOKIE_NAME].value


class Socket:
    """One open socket; what arrives is kept per channel."""

    def __init__(
        self, headers: list[tuple[bytes, bytes]], path: str = "/ws/v1/live", query: bytes = b""
    ) -> None:
        scope = {
            "type": "websocket",
            "path": path,
            "query_string": query,
            "headers": headers,
            "subprotocols": [],
            "extensions": {
                CONNECTION: {"write": lambda frame: False, "authenticated": lambda: self.known.append(path)}
            },
        }
        self.known: list[str] = []
        self.passed_over: list[dict[str, Any]] = []
        self.wire = ApplicationCommunicator(websocket_application, scope)

    async def open(self) -> Socket:
        await self.wire.send_input({"type": "websocket.connect"})
        assert (await self.wire.receive_output(WITHIN_S))["type"] == "websocket.accept"
        return self

    async def sub(self, ch: str, after: int | None = None) -> None:
        await self.say({"op": "sub", "ch": ch} | ({} if after is None else {"after": after}))

    async def say(self, frame: Any) -> None:
        text = frame if isinstance(frame, str) else json.dumps(frame)
        await self.wire.send_input({"type": "websocket.receive", "text": text})

    async def next(self, within_s: float = WITHIN_S, **having: Any) -> dict[str, Any]:
        """The next frame that has these keys with these values (...: any value); others wait for their turn."""

        def fits(frame: dict[str, Any]) -> bool:
            return all(key in frame and value in (..., frame[key]) for key, value in having.items())

        for frame in self.passed_over:
            if fits(frame):
                self.passed_over.remove(frame)
                return frame
        deadline = time.monotonic() + within_s
        while True:
            # receive_output would end the application when it times out.
            left = max(0.01, deadline - time.monotonic())
            message = await asyncio.wait_for(self.wire.output_queue.get(), left)
            if message["type"] == "websocket.close":
                assert len(message.get("reason", "").encode()) <= REASON_MAX, "the server would send no code"
                raise ConnectionClosed(message["code"])
            frame = json.loads(message["text"])
            if fits(frame):
                return dict(frame)
            self.passed_over.append(frame)

    async def items(self, ch: str, upto: int) -> list[dict[str, Any]]:
        """Items of a channel until number upto; fails on a hole or a double."""
        found: list[dict[str, Any]] = []
        last: int | None = None
        while last is None or last < upto:
            frame = await self.next(ch=ch, items=...)
            assert last is None or frame["from"] == last + 1, (last, frame["from"])
            last = frame["to"]
            found += frame["items"]
        return found

    async def closed(self) -> int:
        try:
            while True:
                await self.next()
        except ConnectionClosed as closed:
            return closed.code

    async def close(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError, asyncio.CancelledError):
            await self.wire.send_input({"type": "websocket.disconnect", "code": 1000})
            await self.wire.wait(WITHIN_S)


class ConnectionClosed(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@pytest.fixture
async def socket_of() -> AsyncIterator[Open]:
    """Open sockets by person, by token or by headers; all are closed in the end."""
    opened: list[Socket] = []

    async def open_one(user: User | None = None, *, token: str = "", **more: Any) -> Socket:
        headers = [(b"host", b"testserver")]
        if user is not None:
            cookie = await sync_to_async(cookie_of)(user)
            headers.append((b"cookie", f"{settings.SESSION_COOKIE_NAME}={cookie}".encode()))
            headers.append((b"origin", more.pop("origin", ORIGIN).encode()))
        if token:
            headers.append((b"authorization", f"Bearer {token}".encode()))
        headers += more.pop("headers", [])
        made = Socket(headers, **more)
        opened.append(made)
        return await made.open()

    yield open_one
    for one in opened:
        await one.close()


@pytest.fixture(autouse=True)
def hosts(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.ALLOWED_HOSTS = ["testserver"]
    monkeypatch.setattr(guard, "CHECK_S", 0.2)


@pytest.fixture(autouse=True)
async def connections_closed(transactional_db: None) -> AsyncIterator[None]:
    """Close what the test's own sync calls opened in asgiref's thread, or the database cannot be dropped."""
    yield
    await sync_to_async(connections.close_all)()


@pytest.fixture
def alice(transactional_db: None) -> User:
    return factories.member(factories.tenant("vision-lab"), "alice")


@pytest.fixture
def bob(transactional_db: None) -> User:
    return factories.member(factories.tenant("nlp-research"), "bob")


@pytest.fixture
def job(alice: User) -> Job:
    return factories.job(owner=alice, state=State.PROCESSING)
