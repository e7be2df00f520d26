"""Many slow readers: they hold no connection to the database, and each user has only so many."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections

from jobs.models import Job
from jobs.states import State
from portal import streaming
from portal.asgi_handler import ThreadedHandler
from tenants.models import Token, User
from tests import factories
from tests.jobs.conftest import People
from tests.jobs.test_log_lines import store

pytestmark = pytest.mark.django_db(transaction=True)

WITHIN_S = 60
READERS = 40


class Reader:
    """One download. The server can send a part only when the test takes it, as to a client that reads slowly."""

    def __init__(self, application: ThreadedHandler, path: str, secret: str) -> None:
        scope = {
            "type": "http", "method": "GET", "path": f"/api/v1{path}", "query_string": b"", "http_version": "1.1",
            "headers": [(b"host", b"testserver"), (b"authorization", f"Bearer {secret}".encode())],
        }  # fmt: skip
        self._says: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._parts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._wanted = asyncio.Semaphore(0)
        self._says.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        self._serving = asyncio.create_task(application(scope, self._says.get, self._send))

    async def _send(self, part: dict[str, Any]) -> None:
        await self._wanted.acquire()
        self._parts.put_nowait(part)

    async def _take(self) -> dict[str, Any]:
        self._wanted.release()
        async with asyncio.timeout(WITHIN_S):
            return await self._parts.get()

    async def status(self) -> int:
        return int((await self._take())["status"])

    async def block(self) -> bytes:
        return bytes((await self._take())["body"])

    async def leave(self) -> None:
        self._says.put_nowait({"type": "http.disconnect"})
        async with asyncio.timeout(WITHIN_S):
            await self._serving


def token_of(user: User) -> str:
    return str(Token.objects.create(user=user, name="test", expiry=None)[1])


def sessions() -> int:
    """Other sessions of this database."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return int(cursor.fetchone()[0])


@pytest.fixture
def job(people: People) -> Job:
    """A job whose log has more blocks than are read ahead."""
    made = factories.job(owner=people.alice, state=State.PROCESSING)
    store(made, [b"x" * 99_999 + b"\n"] * 40)
    return made


def limit(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    for kind in (streaming._TABLES, streaming._BLOBS):
        monkeypatch.setattr(kind, "limits", replace(kind.limits, **limits))


async def test_slow_readers_hold_no_connection(
    people: People, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, per_user=READERS)
    secret = await sync_to_async(token_of)(people.alice)
    before = await sync_to_async(sessions)()
    application = ThreadedHandler()
    readers = [Reader(application, f"/jobs/{job.pk}/logs/raw", secret) for _ in range(READERS)]
    for reader in readers:
        assert await reader.status() == 200
        assert await reader.block()
    assert await sync_to_async(sessions)() - before <= 1
    for reader in readers:
        await reader.leave()
    await sync_to_async(connections.close_all)()


async def test_one_user_has_only_so_many_downloads_and_another_is_not_affected(
    people: People, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, per_user=2)
    application, path = ThreadedHandler(), f"/jobs/{job.pk}/logs/raw"
    alices, carols = [await sync_to_async(token_of)(user) for user in (people.alice, people.carol)]
    held = [Reader(application, path, alices) for _ in range(2)]
    assert [await reader.status() for reader in held] == [200, 200]

    refused = Reader(application, path, alices)
    assert await refused.status() == 429
    problem = json.loads(await refused.block())
    assert problem["code"] == "too_many_downloads"
    assert "Wait until one of them ends, or cancel one" in problem["detail"]
    other = Reader(application, path, carols)
    assert await other.status() == 200
    await other.leave()

    await held[0].leave()
    again = Reader(application, path, alices)
    assert await again.status() == 200, "a download that was left counts no more"
    for reader in (held[1], again):
        await reader.leave()
    await sync_to_async(connections.close_all)()


async def test_all_users_together_have_only_so_many_and_the_next_gets_503(
    people: People, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, in_all=1)
    application, path = ThreadedHandler(), f"/jobs/{job.pk}/logs/raw"
    alices, carols = [await sync_to_async(token_of)(user) for user in (people.alice, people.carol)]
    held = Reader(application, path, alices)
    assert await held.status() == 200
    refused = Reader(application, path, carols)
    assert await refused.status() == 503
    assert json.loads(await refused.block())["code"] == "downloads_busy"
    await held.leave()
    again = Reader(application, path, carols)
    assert await again.status() == 200
    await again.leave()
    await sync_to_async(connections.close_all)()
