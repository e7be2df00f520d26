"""Work of the event loop in threads: its context, its connection, and what happens when that breaks."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator

import pytest
from django.db import OperationalError, connection

from portal.database.threads import DatabaseThreads

pytestmark = pytest.mark.django_db(transaction=True)
name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="none")


@pytest.fixture
def threads() -> Iterator[DatabaseThreads]:
    made = DatabaseThreads(1, "test")
    yield made
    made.close()


def backend() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def fail() -> None:
    raise OperationalError("the server closed the connection")


async def test_work_sees_the_callers_context_and_does_not_change_it(threads: DatabaseThreads) -> None:
    def change() -> str:
        before = name.get()
        name.set("work")
        return before

    name.set("caller")
    assert [await threads.run(change) for _ in range(2)] == ["caller", "caller"]
    assert name.get() == "caller"


async def test_a_thread_keeps_its_connection_until_it_breaks(threads: DatabaseThreads) -> None:
    first = await threads.run(backend)
    assert await threads.run(backend) == first
    with pytest.raises(OperationalError):
        await threads.run(fail)
    assert await threads.run(backend) != first


async def test_a_released_connection_is_closed_after_each_work() -> None:
    threads = DatabaseThreads(1, "test", release=True)
    assert await threads.run(backend)
    assert await threads.run(lambda: connection.connection is None)


async def test_work_beyond_the_number_of_threads_waits_in_order(threads: DatabaseThreads) -> None:
    order: list[int] = []
    await asyncio.gather(*(threads.run(order.append, n) for n in range(20)))
    assert order == list(range(20))
