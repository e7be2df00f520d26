"""When a service counts as ready: it has answered a request; an open port is not enough."""

import asyncio
import contextlib
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
        question = json.dumps({"op": "ping", "key": layout.node_key.read_text()}).encode() + b"\n"
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
    request = f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nX-Forwarded-Proto: https\r\n\r\n".encode()
    try:
        async with asyncio.timeout(ASK_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
        return int(head.split()[1]), json.loads(body or b"{}")
    except (OSError, TimeoutError, ValueError, IndexError):
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
