"""What a viewer is sent: frames as text, made once for all who watch the same thing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

FRAME_BYTES = 64 * 1024
FRAME_ITEMS = 500


@dataclass(frozen=True)
class Frame:
    """Items first…last of a channel, ready to send. last == first - 1: a state without new items."""

    first: int
    last: int
    text: str
    size: int  # bytes


def items_frame(ch: str, first: int, last: int, items: Sequence[Any], **state: Any) -> Frame:
    """state: further keys beside the items, such as the job as it stands."""
    return _frame(first, last, {"ch": ch, "from": first, "to": last, "items": items} | state)


def gap_frame(ch: str, first: int, last: int, **more: Any) -> Frame:
    """Say that items first…last were left out and are to be fetched by REST; lost=True: they were never kept."""
    return _frame(first, last, {"ch": ch, "gap": {"from": first, "to": last} | more})


def error_text(ch: str, code: str, message: str) -> str:
    return orjson.dumps({"ch": ch, "error": {"code": code, "message": message}}).decode()


PONG = '{"op":"pong"}'


def _frame(first: int, last: int, body: dict[str, Any]) -> Frame:
    data = orjson.dumps(body, default=str)
    return Frame(first, last, data.decode(), len(data))


def cut_items(first: int, sized: Iterable[tuple[Any, int]]) -> list[tuple[int, int, list[Any]]]:
    """Cut numbered items into runs that fit a frame; sized: items with their approximate size in bytes.

    Returns (first, last, items) per run; one item that is larger than a frame stands alone.
    """
    runs: list[tuple[int, int, list[Any]]] = []
    items: list[Any] = []
    size = 0
    for item, weight in sized:
        if items and (size + weight > FRAME_BYTES or len(items) == FRAME_ITEMS):
            runs.append((first, first + len(items) - 1, items))
            first, items, size = first + len(items), [], 0
        items.append(item)
        size += weight
    if items:
        runs.append((first, first + len(items) - 1, items))
    return runs
