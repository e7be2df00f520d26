"""When a service counts as ready: it has answered a request; an open port is not enough."""

import asyncio
import contextlib
import http.client
import json
from collections.abc import Awaitable, Callable
from typing import Any

from portal.settings.embedded import Layout
from portal.supervisor import postgres

ASK_S = 3


def postgres_answers(layout: Layout) -> Callable[[], Awaitable[bool]]:
    """Connects, and makes sure that our database exists."""

    async def ready() -> bool:
        import psycopg2

        try:
            await asyncio.to_thread(postgres.ensure_database, layout)
        except psycopg2.OperationalError:
            return False
        return True

    return ready


def valkey_answers(layout: Layout) -> Callable[[], Awaitable[bool]]:
    async def ready() -> bool:
        _, password = layout.valkey_password.read_text().split()
        connecting = asyncio.open_unix_connection(str(layout.valkey_socket))
        return await _ask(connecting, f"AUTH {password}\r\n".encode()) == b"+OK"

    return ready


def node_daemon_answers(layout: Layout) -> Callable[[], Awaitable[bool]]:
    async def ready() -> bool:
        try:
            key = layout.node_key.read_text()
        except OSError:
            return False
        question = json.dumps({"op": "ping", "key": key}).encode() + b"\n"
        answer = await _ask(asyncio.open_unix_connection(str(layout.node_socket)), question)
        return answer is not None and b'"ok"' in answer

    return ready


def page_answers(port: int, path: str) -> Callable[[], Awaitable[bool]]:
    async def ready() -> bool:
        return (await fetch(port, path))[0] == 200

    return ready


async def always() -> bool:
    return True


async def fetch(port: int, path: str) -> tuple[int, dict[str, Any]]:
    """Status and JSON body of a page of ours; (0, {}) when there is no answer."""

    def get() -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ASK_S)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"X-Forwarded-Proto": "https", "Connection": "close"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")

    try:
        return await asyncio.wait_for(asyncio.to_thread(get), ASK_S)
    except (OSError, TimeoutError, ValueError, http.client.HTTPException):
        return 0, {}


async def _ask(
    opening: Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]], question: bytes
) -> bytes | None:
    """The first line of the answer, None when nothing listens."""
    try:
        async with asyncio.timeout(ASK_S):
            reader, writer = await opening
            with contextlib.closing(writer):
                writer.write(question)
                return (await reader.readline()).strip()
    except (OSError, TimeoutError):
        return None
