"""Hand-written SQL for the few queries and inserts that every request makes.

The ORM compiles each statement again on every call, which costs more than running it. The models stay the only source
of columns, and queries return model instances.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache, lru_cache
from typing import Any, Generic, TypeVar

from django.db import connection, models
from django.db.models.expressions import DatabaseDefault
from django.db.models.sql import Query

M = TypeVar("M", bound=models.Model)
PLAIN = frozenset({str, int, float, bool})


class Rows(Generic[M]):
    """One model in a SELECT: its columns under an alias, and the instance made from them. without: names of fields that
    are read only if they are asked for."""

    def __init__(self, model: type[M], alias: str, *, without: Collection[str] = ()) -> None:
        fields = [field for field in model._meta.concrete_fields if field.name not in without]
        self._model = model
        self._names = [field.attname for field in fields]
        self._readers = [
            (n, field.from_db_value) for n, field in enumerate(fields) if hasattr(field, "from_db_value")
        ]
        self.columns = ", ".join(f"{alias}.{_quoted(field)}" for field in fields)
        self.width = len(fields)

    def made(self, found: Sequence[Any]) -> M:
        values = list(found)
        for n, read in self._readers:
            values[n] = read(values[n], None, connection)
        return self._model.from_db(connection.alias, self._names, values)


def insert(*rows: models.Model) -> None:
    """Write new rows, each of another table, with one statement; values that the database computes are filled in.

    Does what Model.save does, without signals.
    """
    steps: list[str] = []
    values: list[Any] = []
    decided: list[tuple[models.Model, Any]] = []
    for n, row in enumerate(rows):
        columns, places = [], []
        for name, field, column in _given(type(row)):
            value = getattr(row, name)
            if not isinstance(value, DatabaseDefault):
                place, sent = _place(type(row), field, value)
                columns.append(column)
                places.append(place)
                values += sent
        returned = [row._meta.pk, *row._meta.db_returning_fields]
        decided += [(row, field) for field in returned]
        steps.append(
            f"new{n} AS (INSERT INTO {row._meta.db_table} ({', '.join(columns)}) VALUES ({', '.join(places)})"
            f" RETURNING {', '.join(_quoted(field) for field in returned)})"
        )
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH {', '.join(steps)} SELECT * FROM {', '.join(f'new{n}' for n in range(len(rows)))}", values
        )
        found = cursor.fetchone()
    for (row, field), value in zip(decided, found, strict=True):
        read = getattr(field, "from_db_value", None)
        setattr(row, field.attname, read(value, None, connection) if read else value)
    for row in rows:
        row._state.adding, row._state.db = False, connection.alias


def insert_all(rows: Sequence[models.Model]) -> None:
    """Write new rows of one table with one statement. What the database computes, such as their ids, is not filled in.
    Does what QuerySet.bulk_create does, without signals."""
    if not rows:
        return
    given = _given(type(rows[0]))
    places: list[str] = []
    values: list[Any] = []
    for row in rows:
        of_row = []
        for name, field, _ in given:
            value = getattr(row, name)
            if isinstance(value, DatabaseDefault):
                of_row.append("DEFAULT")
            else:
                place, sent = _place(type(row), field, value)
                of_row.append(place)
                values += sent
        places.append(f"({', '.join(of_row)})")
    columns = ", ".join(column for _, _, column in given)
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {rows[0]._meta.db_table} ({columns}) VALUES {', '.join(places)}", values)


@cache
def _given(model: type[models.Model]) -> list[tuple[str, Any, str]]:
    """Attribute, field and column of all that an insert may give; the database numbers the rows itself."""
    fields = [field for field in model._meta.concrete_fields if field is not model._meta.auto_field]
    return [(field.attname, field, _quoted(field)) for field in fields]


def _place(model: type[models.Model], field: Any, value: Any) -> tuple[str, Sequence[Any]]:
    """The placeholder of a value in the statement, and the parameters sent for it."""
    # The driver sends most of a job's sixty columns as they are; get_db_prep_save for each would cost more than that.
    if value is None or (type(value) in PLAIN and not isinstance(field, models.JSONField)):
        return "%s", [value]
    if hasattr(value, "resolve_expression"):
        return _compiled(model, value)
    return "%s", [field.get_db_prep_save(value, connection)]


@lru_cache(64)
def _compiled(model: type[models.Model], value: Any) -> tuple[str, Sequence[Any]]:
    """SQL and values of an expression; cached, because it is a constant such as "now plus 5 s"."""
    query = Query(model)
    resolved = value.resolve_expression(query, allow_joins=False, for_save=True)
    return query.get_compiler(connection=connection).compile(resolved)


def _quoted(field: Any) -> str:
    return f'"{field.column}"'
