"""JSON of responses and live frames: the one format of times, and serializers that list the fields of a response once.

DRF's fields give the OpenAPI schema, `render` gives the JSON.

DRF's own `to_representation` copies every field for every object and asks each one how to convert its value, which
costs ten times as much as the fields of a job themselves (docs/adr/0023-response-fields-are-listed-once.md). `render`
compiles the list of fields into plain getters, once per class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import orjson
from rest_framework import serializers

Getter = Callable[..., Any]


def rfc3339(at: datetime | None) -> str | None:
    """A time as every response and frame has it: RFC 3339, UTC, milliseconds."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z") if at else None


def json_bytes(value: Any) -> bytes:
    """Values as JSON. Times become RFC 3339 in UTC with milliseconds, floats that are not finite become null."""
    return dumps(value, _json_value, orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_NON_STR_KEYS)


def dumps(value: Any, default: Callable[[Any], Any], option: int = 0) -> bytes:
    """orjson's, but an integer that 64 bits do not hold becomes a float.

    PostgreSQL writes a stored 1e30, such as the loss of a model that diverges, with all its digits and no point.
    """
    try:
        return orjson.dumps(value, default=default, option=option)
    except orjson.JSONEncodeError as error:
        if "64-bit" not in str(error):
            raise
    return orjson.dumps(_of_64_bits(value), default=default, option=option)


def _of_64_bits(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _of_64_bits(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_of_64_bits(one) for one in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return float(str(value))  # of an int, float() raises above 1.8e308
    return value


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON form")


class TimestampField(serializers.DateTimeField):
    """RFC 3339 in UTC with milliseconds. A timestamp in a request without an offset is UTC."""


class ReadSerializer(serializers.Serializer[Any]):
    """The fields of a response, listed once.

    A field's value comes from the static method `get_<field>(row, context)` if the class has one, otherwise from the
    row's attribute of that name, or from `source`: a dotted path, null where a part of it is null. A nested serializer
    renders that value, with many=True each of its elements. A field whose JSON name is a Python keyword is declared
    with a trailing underscore: `from_`. A field with required=False is left out while it is None.
    """

    _plan: _Plan | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        strip_underscores(cls)
        cls._plan = None

    @classmethod
    def render(cls, row: Any, context: Any = None) -> dict[str, Any]:
        """The JSON object of a row: any object with the fields' values, or a dict that has them all.

        context: passed on to the get_… methods and to nested serializers. Raises AttributeError for a missing value.
        """
        plan = cls._plan
        if plan is None:
            plan = cls._plan = _compiled(cls)
        if type(row) is dict:
            if not plan.timestamps and not plan.computed:
                return {name: row[name] for name in plan.plain if name in row or name not in plan.optional}
            row = SimpleNamespace(**row)
        body = plan.empty.copy()
        body.update(zip(plan.plain, plan.read_plain(row), strict=True))
        for name, read in plan.timestamps:
            at = read(row)
            body[name] = at if type(at) is str else rfc3339(at)  # some rows have formatted ones
        for name, get in plan.computed:
            body[name] = get(row, context)
        for name in plan.optional:
            if body[name] is None:
                del body[name]
        return body


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a row is read: plain values all at once, which is several times as fast as one by one."""

    empty: dict[str, Any]  # every field in order, with None
    plain: tuple[str, ...]
    read_plain: Getter  # (row) -> the values of plain
    timestamps: tuple[tuple[str, Getter], ...]  # (row) -> value
    computed: tuple[tuple[str, Getter], ...]  # (row, context) -> value
    optional: tuple[str, ...]


def strip_underscores(cls: type[serializers.Serializer[Any]]) -> None:
    """Let a field that is declared as `from_` have the name `from`."""
    declared: dict[str, Any] = cls._declared_fields
    cls._declared_fields = {name.rstrip("_"): field for name, field in declared.items()}


def _compiled(cls: type[ReadSerializer]) -> _Plan:
    fields = cls._declared_fields
    plain: dict[str, str] = {}
    timestamps: list[tuple[str, Getter]] = []
    computed: list[tuple[str, Getter]] = []
    for name, field in fields.items():
        path = field.source or name
        method = _method(cls, f"get_{name}")
        render = _nested_render(field)
        nullable = field.allow_null and "." in path
        read: Getter = partial(_follow, path.split(".")) if nullable else attrgetter(path)
        if isinstance(field, TimestampField) and method is None:
            timestamps.append((name, read))
        elif method is None and render is None and not nullable:
            plain[name] = path
        else:
            get = method or partial(_without_context, read)
            if isinstance(field, TimestampField):
                get = partial(_timestamp, get)
            computed.append((name, get if render is None else partial(_rendered, render, get)))
    return _Plan(
        empty=dict.fromkeys(fields),
        plain=tuple(plain),
        read_plain=_all_of(tuple(plain.values())),
        timestamps=tuple(timestamps),
        computed=tuple(computed),
        optional=tuple(name for name, field in fields.items() if not field.required),
    )


def _all_of(paths: tuple[str, ...]) -> Getter:
    """A function (row) -> the values at these paths, as a tuple."""
    if len(paths) > 1:
        return attrgetter(*paths)
    return lambda row: tuple(attrgetter(path)(row) for path in paths)


def _method(cls: type[ReadSerializer], name: str) -> Getter | None:
    """A static method of the class itself; DRF's serializers have methods such as get_value, too."""
    own = cls.__mro__[: cls.__mro__.index(ReadSerializer)]
    return getattr(cls, name) if any(name in base.__dict__ for base in own) else None


def _nested_render(field: Any) -> Getter | None:
    if isinstance(field, ReadSerializer):
        return type(field).render
    if isinstance(field, serializers.ListSerializer) and isinstance(field.child, ReadSerializer):
        return partial(_each, type(field.child).render)
    return None


def _rendered(render: Getter, read: Getter, row: Any, context: Any) -> Any:
    value = read(row, context)
    return None if value is None else render(value, context)


def _each(render: Getter, rows: Any, context: Any) -> list[Any]:
    return [render(row, context) for row in rows]


def _without_context(read: Getter, row: Any, context: Any) -> Any:
    return read(row)


def _timestamp(get: Getter, row: Any, context: Any) -> str | None:
    return rfc3339(get(row, context))


def _follow(path: list[str], row: Any) -> Any:
    for name in path:
        row = getattr(row, name)
        if row is None:
            return None
    return row
