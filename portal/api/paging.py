"""Keyset pagination: no row is repeated or skipped while others are inserted or deleted.

That holds as long as a row keeps its key. If the key changes (a job's state; its name or priority, edited), the row may
be repeated or skipped. A snapshot per reader would avoid that, at the cost of a transaction held open while they read.

A cursor is signed and belongs to one list: its path, filters, order and caller.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from django.core import signing
from django.db.models import Model, Q, QuerySet

from portal.api.errors import MalformedRequest
from portal.api.operations import Call
from tenants.errors import problem

SALT = "luthier.api.cursor"
SEARCHED = 20_000
"""Rows that one request of a search looks at, which takes some 50 ms."""
Row = TypeVar("Row", bound=Model)


def page(
    call: Call,
    rows: QuerySet[Row],
    show: Callable[[Row], Any],
    *,
    keys: Sequence[str] = ("pk",),
    load: Callable[[list[Row]], list[Row]] | None = None,
) -> dict[str, Any]:
    """One page of rows as {"items", "next"}.

    keys: fields that order the list, "-" in front for descending; together unique and never null.
    load: brings what show needs for the rows of the page; the rows themselves are then read with their keys only.
    """
    size = call.query["page_size"]
    rows = rows.order_by(*keys)
    if load:
        rows = rows.only(*(key.lstrip("-") for key in keys))
    cursor = call.query.get("cursor")
    found = _after(rows, keys, _read(call, cursor, len(keys)), size + 1) if cursor else list(rows[: size + 1])
    more = len(found) > size
    shown = found[:size]
    return {
        "items": [show(row) for row in (load(shown) if load else shown)],
        "next": _write(call, [_value(shown[-1], key) for key in keys]) if more else None,
    }


def searched(
    call: Call, rows: QuerySet[Row], matches: Q, show: Callable[[Row], Any], *, most: int | None = None
) -> dict[str, Any]:
    """One page of the rows that match, the newest first, after a look at no more than `most` rows (SEARCHED).

    So a search costs the same however long the table is and however few rows match: a page may be short, or empty, and
    `next` then leads to where the look ended. rows: in a range of an index on their list and the primary key.
    """
    size, cursor, most = call.query["page_size"], call.query.get("cursor"), most or SEARCHED
    rows = rows.order_by("-pk")
    if cursor:
        rows = rows.filter(pk__lt=_read(call, cursor, 1)[0])
    last: Any = rows.values_list("pk", flat=True)[most - 1 : most].first() if matches else None
    looked_at = rows.filter(matches) if last is None else rows.filter(matches, pk__gte=last)
    found = list(looked_at[: size + 1])
    if len(found) > size:
        last = found[size - 1].pk
    return {
        "items": [show(row) for row in found[:size]],
        "next": None if last is None else _write(call, [last]),
    }


def whole(call: Call, items: Sequence[dict[str, Any]], *, keys: Sequence[str]) -> dict[str, Any]:
    """A list that is short by nature, in the shape of all lists: all of it, or pages of as many as are asked for.

    keys: together unique. A page begins after the last item of the page before, or where
    was if that item is gone.
    """
    begin = 0
    if cursor := call.query.get("cursor"):
        place, *last = _read(call, cursor, 1 + len(keys))
        at = (n for n, item in enumerate(items) if [item[key] for key in keys] == last)
        begin = next(at, place - 1) + 1
    end = begin + call.query.get("page_size", len(items))
    shown = list(items[begin:end])
    more = shown and end < len(items)
    return {
        "items": shown,
        "next": _write(call, [end - 1, *(shown[-1][key] for key in keys)]) if more else None,
    }


def _after(rows: QuerySet[Row], keys: Sequence[str], values: Sequence[Any], most: int) -> list[Row]:
    """Rows behind these values, at most this number: those with the same first keys, then those beyond, one query each.

    Each query is one range of an index on the keys whatever their directions, where one condition with OR for all
    would read the list from its beginning.
    """
    names = [key.lstrip("-") for key in keys]
    found: list[Row] = []
    for n in reversed(range(len(keys))):
        beyond = f"{names[n]}__{'lt' if keys[n].startswith('-') else 'gt'}"
        same = dict(zip(names[:n], values[:n], strict=True))
        found += rows.filter(**same, **{beyond: values[n]})[: most - len(found)]
        if len(found) == most:
            break
    return found


def _value(row: Model, key: str) -> Any:
    value: Any = row
    for part in key.lstrip("-").split("__"):
        value = getattr(value, part)
    return value.isoformat() if isinstance(value, datetime) else value


def _list_of(call: Call) -> str:
    """What the cursor belongs to, as a short hash."""
    filters = {name: str(value) for name, value in call.query.items() if name not in ("cursor", "page_size")}
    text = json.dumps([call.request.path, filters, call.user.pk], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(call: Call, values: list[Any]) -> str:
    return signing.dumps([_list_of(call), *values], salt=SALT, compress=True)


def _read(call: Call, cursor: str, length: int) -> list[Any]:
    try:
        of, *values = signing.loads(cursor, salt=SALT)
    except (signing.BadSignature, ValueError, TypeError):
        of, values = "", []
    if of != _list_of(call) or len(values) != length:
        text = "this cursor is not from this list: send `next` unchanged, with the same filters"
        raise MalformedRequest(
            "The cursor is not valid.",
            code="cursor_invalid",
            errors=[problem("cursor", "cursor_invalid", text)],
        )
    return values
