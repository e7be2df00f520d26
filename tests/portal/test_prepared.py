"""Statements that a connection repeats are prepared, mean what they meant, and leave every transaction as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.backends.postgresql.base import DatabaseWrapper
from django.test.utils import CaptureQueriesContext
from psycopg2.extras import Json

from jobs.models import Job
from jobs.states import EventCode, State
from portal.database import prepared
from portal.database.prepared import AFTER, MOST

pytestmark = pytest.mark.django_db(transaction=True)

NAIVE = datetime(2026, 1, 2, 3)  # noqa: DTZ001  # psycopg2 writes it as another type
VALUES = [
    *(None, True, 7, -7, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, -(2**63), 2**63),
    *(1.5, -0.25, 1e300, float("inf"), float("nan"), Decimal("12.50"), "", "it's 100 %", "7"),
    *(datetime(2026, 1, 2, 3, tzinfo=UTC), NAIVE, date(2026, 1, 2), timedelta(days=-1, seconds=2.5)),
    *(
        UUID(int=5),
        b"\x00\xff",
        ["a", None, "it's"],
        [1, 2],
        [1, 2**40],
        [2**40, None],
        [1.5, None],
        [1, 2.5],
    ),
    *([True, False], [], [None], [[1], [2]], [UUID(int=5)], [datetime(2026, 1, 2, tzinfo=UTC)]),
    *(
        Json({"a": "it's %s"}),
        State.QUEUED,
        [State.QUEUED, EventCode.MOVED],
        Decimal(2),
        Decimal("-2"),
        Decimal("2E+3"),
    ),
]


def shown(value: Any) -> str:
    """Of one of them, the same in every process."""
    return repr(value.adapted if isinstance(value, Json) else value)


@pytest.fixture
def own() -> Iterator[DatabaseWrapper]:
    """A fresh connection in autocommit, as a request has."""
    with closing(connection.copy()) as fresh:
        yield fresh


def ask(own: DatabaseWrapper, statement: str, values: Any) -> Any:
    with own.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchone()


def names(own: DatabaseWrapper) -> set[str]:
    """The statements that the server keeps for this connection."""
    with own.cursor() as cursor:
        cursor.execute("SELECT name FROM pg_prepared_statements")
        return {name for (name,) in cursor.fetchall()}


@pytest.mark.parametrize("value", VALUES, ids=shown)
def test_a_value_means_prepared_what_it_means_written_out(own: DatabaseWrapper, value: Any) -> None:
    statement = "SELECT pg_typeof(%s)::text, %s IS NULL, (%s)::text, '100 %%'"
    found = [
        ask(own, statement, [value] * 3) for _ in range(AFTER + 8)
    ]  # more than it plans with their values
    assert set(found) == {found[0]}, "the first ones are not prepared"


def test_most_kinds_of_values_are_prepared(own: DatabaseWrapper) -> None:
    plain = [value for value in VALUES if prepared._types([value]) is None]
    assert [repr(value) for value in plain] == [
        repr(value)
        for value in (2**63, float("inf"), float("nan"), [1, 2.5], [[1], [2]], Decimal(2), Decimal("-2"))
    ]


def test_a_number_is_not_cut_to_the_type_of_its_neighbor(own: DatabaseWrapper) -> None:
    statement = "SELECT extract(epoch FROM make_interval(secs => 2 * %(lease_s)s))::float8"
    assert {ask(own, statement, {"lease_s": 7.25}) for _ in range(AFTER + 2)} == {(14.5,)}
    assert names(own)


def test_it_is_prepared_when_it_comes_often_and_once_for_each_kind_of_value(own: DatabaseWrapper) -> None:
    for _ in range(AFTER - 1):
        ask(own, "SELECT %s + 1", [1])
    assert not names(own)
    ask(own, "SELECT %s + 1", [1])
    assert len(names(own)) == 1
    for number in range(10):
        assert ask(own, "SELECT %s + 1", [number]) == (number + 1,)
    assert len(names(own)) == 1
    assert [ask(own, "SELECT %s + 1", [0.5]) for _ in range(AFTER)][-1] == (Decimal("1.5"),)
    assert len(names(own)) == 2


def test_named_values_come_in_any_order_and_more_than_once(own: DatabaseWrapper) -> None:
    statement = "SELECT %(b)s || %(a)s || %(b)s || '%%'"
    assert {ask(own, statement, {"a": "-", "b": "x", "c": 1}) for _ in range(AFTER + 1)} == {("x-x%",)}
    assert names(own)
    with pytest.raises(KeyError):
        ask(own, statement, {"a": "-"})


@pytest.mark.parametrize(
    "statement",
    ["SELECT %s; SELECT 2", "SHOW work_mem", "SET LOCAL work_mem = %s", "TABLE jobs_job", "COMMENT ON TABLE x IS %s"],
)  # fmt: skip
def test_what_is_not_one_statement_about_rows_is_left_alone(statement: str) -> None:
    assert prepared._shape(statement) is None


def test_one_whose_types_postgresql_cannot_see_leaves_the_transaction_as_it_was(own: DatabaseWrapper) -> None:
    statement = "SELECT coalesce(%s, %s), CAST(%s AS text) FROM generate_series(1, 1) WHERE %s IS NULL"
    own.set_autocommit(False)
    with own.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE kept (n int)")
        for number in range(AFTER + 2):
            cursor.execute("INSERT INTO kept VALUES (%s)", [number])
            cursor.execute(statement, [None, "x", "y", None])
            assert cursor.fetchone() == ("x", "y")
        cursor.execute("SELECT count(*) FROM kept")
        assert cursor.fetchone() == (AFTER + 2,)
    own.rollback()


def test_a_failing_statement_fails_as_before_and_the_connection_goes_on(own: DatabaseWrapper) -> None:
    for _ in range(AFTER):
        ask(own, "SELECT 1 / %s", [1])
    with pytest.raises(DatabaseError, match="division by zero"):
        ask(own, "SELECT 1 / %s", [0])
    assert ask(own, "SELECT 1 / %s", [1]) == (1,)
    for _ in range(AFTER + 1):
        with pytest.raises(DatabaseError, match="no_such_table"):
            ask(own, "SELECT n FROM no_such_table WHERE n = %s", [1])


def test_a_rollback_undoes_rows_and_keeps_what_is_prepared() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE kept (n int)")
    try:
        for _ in range(AFTER + 2):
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("INSERT INTO kept VALUES (%s)", [1])
                transaction.set_rollback(True)
        assert len(names(connection)) == 1
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("INSERT INTO kept VALUES (%s)", [2])
            assert cursor.rowcount == 1
            cursor.execute("SELECT array_agg(n) FROM kept")
            assert cursor.fetchone() == ([2],)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE kept")


def test_one_connection_keeps_so_many_and_forgets_the_one_unused_for_longest(own: DatabaseWrapper) -> None:
    for number in range(MOST + 5):
        for _ in range(AFTER):
            ask(own, f"SELECT %s + {number}", [1])
    assert len(names(own)) == MOST
    assert names(own) == set(own.connection.statements.names.values())
    assert ask(own, "SELECT %s + 0", [1]) == (1,)


def test_a_migration_that_changes_what_a_statement_returns_costs_one_error(own: DatabaseWrapper) -> None:
    with own.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE kept AS SELECT 1 AS n")
        for _ in range(AFTER + 1):
            cursor.execute("SELECT n FROM kept WHERE n = %s", [1])
        cursor.execute("ALTER TABLE kept ALTER n TYPE bigint")
        with pytest.raises(DatabaseError, match="cached plan"):
            cursor.execute("SELECT n FROM kept WHERE n = %s", [1])
        for _ in range(AFTER + 1):
            cursor.execute("SELECT n FROM kept WHERE n = %s", [1])
            assert cursor.fetchone() == (1,)


def test_a_connection_begins_afresh_now_and_then_also_in_the_server(
    own: DatabaseWrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tables grow, and plans of when they were small stay."""
    monkeypatch.setattr(prepared, "RENEWED_S", 0.0)
    for _ in range(AFTER):
        ask(own, "SELECT %s + 1", [1])
    before = names(own)
    assert len(before) == 1
    for _ in range(AFTER):
        assert ask(own, "SELECT %s + 1", [1]) == (2,)
    assert len(names(own)) == 1
    assert not names(own) & before


def test_in_a_failed_transaction_nothing_is_forgotten(
    own: DatabaseWrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(AFTER):
        ask(own, "SELECT 1 / %s", [1])
    own.set_autocommit(False)
    with pytest.raises(DatabaseError, match="division by zero"):
        ask(own, "SELECT 1 / %s", [0])
    monkeypatch.setattr(own.connection.statements, "until", 0.0, raising=False)
    with pytest.raises(DatabaseError, match="current transaction is aborted"):
        ask(own, "SELECT 1 / %s", [1])
    own.rollback()
    assert ask(own, "SELECT 1 / %s", [1]) == (1,)
    own.rollback()


def test_long_lists_are_not_prepared_and_too_many_values_are_refused_each_time(own: DatabaseWrapper) -> None:
    places = ", ".join(["%s"] * (prepared.MOST_VALUES + 1))
    for _ in range(AFTER + 2):
        assert ask(own, f"SELECT 1 WHERE 7 IN ({places})", [7] * (prepared.MOST_VALUES + 1)) == (1,)
        with pytest.raises(TypeError):
            ask(own, "SELECT %s", [1, 2])
    assert not names(own)


def test_what_is_captured_of_queries_is_the_statement(own: DatabaseWrapper) -> None:
    with CaptureQueriesContext(own) as captured:
        for _ in range(AFTER + 2):
            ask(own, "SELECT %s || 'x'", ["it's"])
    assert names(own)
    assert {query["sql"] for query in captured.captured_queries} == {"SELECT 'it''s' || 'x'"}


def test_behind_a_pool_nothing_is_prepared(own: DatabaseWrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "OWN_SESSION", "SELECT pg_backend_pid() + 1")
    for _ in range(AFTER + 3):
        assert ask(own, "SELECT %s + 1", [1]) == (2,)
    assert not names(own)


def test_a_pool_that_was_not_recognized_costs_one_error(
    own: DatabaseWrapper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prepared, "_met_pool", False)
    for _ in range(AFTER):
        ask(own, "SELECT %s + 1", [1])
    ask(own, "SELECT 1", None)
    with own.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")  # as if the transaction had another session
    with pytest.raises(DatabaseError, match="does not exist"):
        ask(own, "SELECT %s + 1", [1])
    assert "leads through a pool" in caplog.text
    for _ in range(AFTER + 2):
        assert ask(own, "SELECT %s + 1", [1]) == (2,)
    assert not names(own)


def test_rows_of_the_models_are_read_and_written_as_before() -> None:
    """By the ORM and with values of all its kinds, in a transaction each."""
    for number in range(AFTER + 3):
        Job.objects.filter(pk=f"none-{number}").update(
            spec={"n": number}, running_s=0.5, tags=["a"], name="it's"
        )
        assert not Job.objects.filter(name=f"it's {number}", created_at__gt=datetime.now(UTC)).exists()
    assert connection.connection.statements.names
