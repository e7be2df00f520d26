"""Statements that a connection repeats are prepared: PostgreSQL parses them once, and plans most of them once.

psycopg2 writes the values into each statement, so to the server each is a new one. Here, a statement that a connection
has run AFTER times is given to the server by PREPARE, and from then on only named, with its values. What the values
mean stays what it was: each place gets the type that psycopg2's literal would have had. (But a number in ORDER BY or
GROUP BY is a column's position only if it is written out. None of ours is a value.)

Prepared statements are a session's, and a pool in transaction mode gives each transaction another one: behind a pool
nothing is prepared. docs/adr/0149-statements-that-repeat-are-prepared.md
"""

from __future__ import annotations

import logging
import math
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any
from uuid import UUID

import psycopg2
from psycopg2 import errors, extensions
from psycopg2.extras import Json

logger = logging.getLogger(__name__)

AFTER = 5
"""A statement is prepared when it comes for so many times."""
MOST = 100
"""Statements of one connection that are prepared, or counted; those used longest ago make room. As psycopg 3 has it."""
MOST_VALUES = 200
"""A statement with more is not prepared: of each length of a list it would be another one, and large."""
RENEWED_S = 60.0
"""Then a connection begins afresh: a plan for a table that was small is none for one that has grown, and PostgreSQL
looks only when it has analyzed the table again."""
PLACE = re.compile(r"%(?:\((\w+)\))?s|%%")
PREPARABLE = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b")
SAVEPOINT = "before_prepare"

OWN_SESSION = "SELECT pg_backend_pid()"

_met_pool = False
"""This process met a pool that was not recognized: its clients have the process numbers of sessions."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A statement without its values. text: with $1, $2, …; names: of its values, in this order, if they have any."""

    text: str
    places: int
    names: tuple[str, ...] | None


@dataclass(slots=True)
class Statements:
    """Those of one connection, by what the caller writes and the types of the values. names: "" for one that PostgreSQL
    cannot prepare, as it does not see the type of a value. mark: in the names, as through a pool that was not
    recognized a session may have those of other connections. is_direct: no pool is in between; None: not known yet.
    until: by the monotonic clock, when the names end."""

    counts: OrderedDict[tuple[str, str], int] = field(default_factory=OrderedDict)
    names: OrderedDict[tuple[str, str], str] = field(default_factory=OrderedDict)
    made: int = 0
    mark: str = field(default_factory=lambda: secrets.token_hex(4))
    is_direct: bool | None = None
    until: float = 0.0

    def comes_often(self, key: tuple[str, str]) -> bool:
        """Count it."""
        count = self.counts.pop(key, 0) + 1
        self.counts[key] = count
        if len(self.counts) > MOST:
            self.counts.popitem(last=False)
        return count >= AFTER

    def keep(self, key: tuple[str, str], name: str) -> str:
        """The name of the one that makes room for it; "" if none must."""
        self.counts.pop(key, None)
        self.names[key] = name
        return self.names.popitem(last=False)[1] if len(self.names) > MOST else ""

    def forget(self) -> None:
        """The names mean nothing any more. A new one is never one of these."""
        self.counts.clear()
        self.names.clear()


class Connection(extensions.connection):
    """A connection whose cursors prepare what they run often."""

    def __init__(self, *of: Any, **options: Any) -> None:
        super().__init__(*of, **options)
        self.statements = Statements()


class Cursor(extensions.cursor):
    """Runs statements as psycopg2's own does, prepared where that saves the server work."""

    connection: Connection

    def execute(self, query: Any, vars: Any = None) -> None:
        """As psycopg2's; a statement that cannot be prepared is run as it is. Raises what it raises."""
        known = self.connection.statements
        if not vars or type(query) is not str or self.name or known.is_direct is False or _met_pool:
            return super().execute(query, vars)
        shape = _shape(query)
        values = None if shape is None else _in_order(shape, vars)
        types = None if values is None else _types(values)
        if shape is None or values is None or types is None:
            return super().execute(query, vars)
        if known.names and time.monotonic() > known.until:
            self._begin_afresh()
        key = (query, types)
        if key in known.names:
            known.names.move_to_end(key)
        elif known.comes_often(key):
            self._prepare(key, shape)
        if not (name := known.names.get(key)):
            return super().execute(query, vars)
        try:
            return super().execute(_call(name, len(values)), values)
        except errors.InvalidSqlStatementName:
            known.forget()
            _note_pool()
            raise
        except errors.FeatureNotSupported:  # a migration changed a column that it returns
            known.until = 0.0
            raise

    def _begin_afresh(self) -> None:
        """Forget what is prepared, here and in the server; not within a transaction that has failed."""
        if self.connection.info.transaction_status != extensions.TRANSACTION_STATUS_INERROR:
            self.connection.statements.forget()
            super().execute("DEALLOCATE ALL")

    def _prepare(self, key: tuple[str, str], shape: Shape) -> None:
        """Prepare it, or note that it cannot be; whatever happens, the transaction stays as it was."""
        known = self.connection.statements
        if known.is_direct is None:
            super().execute(OWN_SESSION)
            known.is_direct = is_direct(self)
        if not known.is_direct:
            return
        known.made += 1  # whatever comes of it: no name is given twice
        name = f"luthier_{known.mark}_{known.made}"
        statement = f"PREPARE {name} ({key[1]}) AS {shape.text}"
        status = self.connection.info.transaction_status
        alone = self.connection.autocommit and status == extensions.TRANSACTION_STATUS_IDLE
        after = [] if alone else [f"RELEASE SAVEPOINT {SAVEPOINT}"]
        try:
            super().execute(statement if alone else f"SAVEPOINT {SAVEPOINT}; {statement}")
        except psycopg2.ProgrammingError:
            name = ""
            if not alone:
                after.insert(0, f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
        if not known.names:
            known.until = time.monotonic() + RENEWED_S
        if last := known.keep(key, name):
            after.append(f"DEALLOCATE {last}")
        if after:
            super().execute("; ".join(after))


def is_direct(cursor: extensions.cursor) -> bool:
    """Of a cursor that has run OWN_SESSION: whether its session is its connection's alone. A pool gives its clients
    process numbers of its own."""
    (process,) = cursor.fetchone() or (None,)
    return bool(process == cursor.connection.info.backend_pid)


def _note_pool() -> None:
    global _met_pool
    if not _met_pool:
        logger.warning(
            "a prepared statement is gone: DATABASE_URL leads through a pool; nothing is prepared now"
        )
    _met_pool = True


@lru_cache(1000)
def _shape(query: str) -> Shape | None:
    """None for what is not prepared: anything but one statement that reads or writes rows."""
    if not PREPARABLE.match(query) or ";" in query:
        return None
    places = [found for found in PLACE.finditer(query) if found[0] != "%%"]
    names = tuple(found[1] for found in places if found[1])
    if names and len(names) != len(places):
        return None
    numbers = iter(range(1, len(places) + 1))
    text = PLACE.sub(lambda found: "%" if found[0] == "%%" else f"${next(numbers)}", query)
    return Shape(text, len(places), names or None)


def _in_order(shape: Shape, given: Any) -> list[Any] | None:
    """The values in the order of their places; None for too many, or if they do not fit, which psycopg2 says better."""
    try:
        values = list(given) if shape.names is None else [given[name] for name in shape.names]
    except (KeyError, TypeError):
        return None
    return values if len(values) == shape.places <= MOST_VALUES else None


def _types(values: Sequence[Any]) -> str | None:
    """The types of the values, for PREPARE; None if one is of a kind that is not prepared. This is asked of all that is
    run, so what follows from the values' classes alone is looked up at once."""
    known = _kinds(tuple(map(type, values)))
    if known is None:
        return None
    types, open_places = known
    if not open_places:
        return types[0]
    return _filled(types, tuple([_type(values[n]) for n in open_places]))


@lru_cache(1000)
def _kinds(kinds: tuple[type, ...]) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
    """Of values of these classes: what is known of their types, between the places where the value itself decides; and
    these places. None if one is not prepared."""
    parts, open_places, last = [], [], ""
    for n, kind in enumerate(kinds):
        found = BY_KIND[kind] if kind in BY_KIND else _of_subclass(kind)
        if found is None:
            return None
        last += ", " if n else ""
        if callable(found):
            parts.append(last)
            open_places.append(n)
            last = ""
        else:
            last += found
    return (*parts, last), tuple(open_places)


@lru_cache(1000)
def _filled(parts: tuple[str, ...], found: tuple[str | None, ...]) -> str | None:
    if None in found:
        return None
    return "".join([part + (one or "") for part, one in zip(parts, (*found, ""), strict=True)])


def _type(value: Any) -> str | None:
    """What PostgreSQL takes psycopg2's literal of this value for: "unknown" where its place decides."""
    kind = type(value)
    found = BY_KIND[kind] if kind in BY_KIND else _of_subclass(kind)  # type: ignore[arg-type]  # it is hashable
    return found(value) if callable(found) else found


@cache
def _of_subclass(kind: type) -> str | None:
    return "unknown" if issubclass(kind, str | Json) else None  # psycopg2 quotes a StrEnum as the text it is


def _array(values: list[Any]) -> str | None:
    """The type of a list: of what is in it, if that is all of one kind."""
    kinds = {type(value) for value in values if value is not None}
    if not kinds:
        return "unknown"
    if all(issubclass(kind, str) for kind in kinds):
        return "text[]"
    if len(kinds) > 1 or kinds == {list}:
        return None
    types = {_type(value) for value in values if value is not None}
    if types == {"integer", "bigint"}:
        types = {"bigint"}
    return f"{types.pop()}[]" if len(types) == 1 and None not in types else None


def _integer(value: int) -> str | None:
    if -(2**31) <= value < 2**31:
        return "integer"
    return "bigint" if -(2**63) <= value < 2**63 else None


def _float(value: float) -> str | None:
    return "numeric" if math.isfinite(value) else None


def _decimal(value: Decimal) -> str | None:
    """Not of a whole one, which psycopg2 writes as an integer."""
    return "numeric" if value.is_finite() and not str(value).lstrip("-").isdecimal() else None


def _moment(value: datetime) -> str:
    return "timestamp" if value.tzinfo is None else "timestamptz"


BY_KIND: Mapping[type, str | Callable[[Any], str | None]] = {
    type(None): "unknown",
    str: "unknown",
    bool: "boolean",
    int: _integer,
    float: _float,
    Decimal: _decimal,
    datetime: _moment,
    date: "date",
    timedelta: "interval",
    UUID: "uuid",
    bytes: "bytea",
    list: _array,
}


@lru_cache(1000)
def _call(name: str, count: int) -> str:
    return f"EXECUTE {name}({', '.join(['%s'] * count)})"
