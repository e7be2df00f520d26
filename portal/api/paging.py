"""Lists in pages by key: no offset, no row twice or left out while others come and go.

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

from portal.api.errors import BadRequest
from portal.api.operations import Call
from tenants.errors import problem

SALT = "luthier.api.cursor"
Row = TypeVar("Row", bound=Model)


def page(
    call: Call, rows: QuerySet[Row], show: Callable[[Row], Any], *, keys: Sequence[str] = ("pk",)
) -> dict[str, Any]:
    """One page of rows as {"items", "next"}.

    keys: fields that order the list, "-" in front for descending; together unique and never null.
    """
    size = call.query["page_size"]
    if cursor := call.query.get("cursor"):
        rows = rows.filter(_after(keys, _read(call, cursor, len(keys))))
    found = list(rows.order_by(*keys)[: size + 1])
    more = len(found) > size
    return {
        "items": [show(row) for row in found[:size]],
        "next": _write(call, [_value(found[size - 1], key) for key in keys]) if more else None,
    }


def whole(items: Sequence[Any]) -> dict[str, Any]:
    """A list that is short by nature, in the shape of all lists."""
    return {"items": list(items), "next": None}


def _after(keys: Sequence[str], values: Sequence[Any]) -> Q:
    """Rows behind these values: (a, b) > (x, y) spelled out, since each key has its own direction."""
    condition = Q()
    equal: dict[str, Any] = {}
    for key, value in zip(keys, values, strict=True):
        name = key.lstrip("-")
        condition |= Q(**equal, **{f"{name}__{'lt' if key.startswith('-') else 'gt'}": value})
        equal[name] = value
    return condition


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
        text = "this cursor was not given out for this list: take `next` as it is, with the same filters"
        raise BadRequest(
            "The cursor is not valid.",
            code="cursor_invalid",
            errors=[problem("cursor", "cursor_invalid", text)],
        )
    return values
