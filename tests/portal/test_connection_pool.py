"""A process's connections serve one request or task after the other, and never a broken one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from django.db import ProgrammingError, connection

from portal.celery import keep_connections
from portal.database import connection_pool

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _keeping() -> Iterator[None]:
    connection.ensure_connection()  # the test's own is none of those that come and go
    connection_pool.set_size(1)
    yield
    connection_pool.set_size(0)


def serve(request: str = "SELECT pg_backend_pid()") -> int:
    """What one request does: connect, ask, close. Returns the process of PostgreSQL that answered."""
    with closing(connection.copy()) as own, own.cursor() as cursor:
        cursor.execute(request)
        return int(cursor.fetchone()[0])


def test_the_next_request_gets_the_connection_of_the_last_one() -> None:
    assert serve() == serve()


def test_a_worker_keeps_the_connections_that_celery_closes_between_tasks() -> None:
    connection_pool.set_size(0)
    keep_connections()
    assert serve() == serve()


def test_two_at_once_have_two_and_one_too_many_is_closed() -> None:
    first = connection.copy()
    with closing(first), first.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        mine = cursor.fetchone()[0]
        other = serve()
    assert other != mine
    assert serve() == other


def test_a_connection_that_the_server_ended_is_not_used_again() -> None:
    before = serve()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [before])
    assert serve() != before


def test_what_was_closed_within_a_transaction_ends_with_it() -> None:
    own = connection.copy()
    own.set_autocommit(False)
    with own.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        before = cursor.fetchone()[0]
    own.close()
    assert serve() != before


def test_a_request_that_met_an_error_keeps_nothing() -> None:
    before = serve()
    with pytest.raises(ProgrammingError):
        serve("SELECT nothing")
    assert serve() != before


def test_an_unused_connection_is_given_back_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "IDLE_S", 0.05)
    before = serve()
    deadline = time.monotonic() + 20
    while alive(before):
        assert time.monotonic() < deadline, "the unused connection was not closed"
        time.sleep(0.02)


def test_nothing_is_kept_unless_the_process_asked_for_it() -> None:
    connection_pool.set_size(0)
    assert serve() != serve()


def alive(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid])
        return bool(cursor.fetchone()[0])
