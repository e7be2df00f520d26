"""What a viewer is sent: frames as text, made once for all who watch the same thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import orjson

from portal.live.socket import text_frame

FRAME_BYTES = 64 * 1024
FRAME_ITEMS = 500


@dataclass(frozen=True)
class Frame:
    """Items first…last of a channel, ready to send. last == first - 1: a state without new items.

    rows: of a state that is sent anew whenever it changes: how many items it has. Its first and last are the store's;
    each viewer has the rows counted as he was given them, so that his numbers have no hole (`numbered`).
    for_guests: the same items in other words, where somebody with whom one job is shared is told less.
    """

    first: int
    last: int
    text: bytes
    rows: int | None = None
    for_guests: Frame | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.text)

    @cached_property
    def ready(self) -> bytes:
        """As it goes over the wire, made once for all viewers."""
        return text_frame(self.text)

    def numbered(self, after: int) -> bytes:
        """The text for a viewer who was given rows up to after."""
        if self.rows is None:
            return self.text
        return b'{"from":%d,"to":%d,%b' % (after + 1, after + self.rows, self.text[1:])

    def above(self, cursor: int) -> Frame | None:
        """What a viewer is sent who was given everything up to cursor; None if nothing of it is left.

        Rows are states and may come twice; lines, points and events may not, so their frame is cut.
        """
        if self.rows is not None or self.first > cursor or self.last < self.first:
            return self
        if self.for_guests is not None and (mine := replace(self, for_guests=None).above(cursor)):
            return replace(mine, for_guests=self.for_guests.above(cursor))
        body = orjson.loads(self.text)
        if "gap" in body:
            body["gap"]["from"] = cursor + 1
            return _frame(cursor + 1, self.last, body) if self.last > cursor else None
        body |= {"from": cursor + 1, "items": body["items"][cursor + 1 - self.first :]}
        return _frame(cursor + 1, self.last, body)


def items_frame(ch: str, first: int, last: int, items: Sequence[Any], **state: Any) -> Frame:
    """state: further keys beside the items, such as the job as it stands."""
    return _frame(first, last, {"ch": ch, "from": first, "to": last, "items": items} | state)


def state_frame(ch: str, first: int, last: int, items: Sequence[Any]) -> Frame:
    """All rows of a state, or those that changed."""
    return Frame(first, last, orjson.dumps({"ch": ch, "items": items}, default=str), len(items))


def gap_frame(ch: str, first: int, last: int, **more: Any) -> Frame:
    """Say that items first…last were left out and are to be fetched by REST; lost=True: they were never kept."""
    return _frame(first, last, {"ch": ch, "gap": {"from": first, "to": last} | more})


def error_text(ch: str, code: str, message: str) -> bytes:
    return orjson.dumps({"ch": ch, "error": {"code": code, "message": message}})


PONG = b'{"op":"pong"}'


def _frame(first: int, last: int, body: dict[str, Any]) -> Frame:
    return Frame(first, last, orjson.dumps(body, default=str))


def cut_items(first: int, items: Sequence[Any], sizes: Sequence[int]) -> list[tuple[int, int, Sequence[Any]]]:
    """Cut numbered items into runs that fit a frame; sizes: about their bytes.

    Returns (first, last, items) per run; one item that is larger than a frame stands alone.
    """
    if len(items) <= FRAME_ITEMS and sum(sizes) <= FRAME_BYTES:
        return [(first, first + len(items) - 1, items)] if items else []
    runs: list[tuple[int, int, Sequence[Any]]] = []
    start = size = 0
    for place, weight in enumerate(sizes):
        if place > start and (size + weight > FRAME_BYTES or place - start == FRAME_ITEMS):
            runs.append((first + start, first + place - 1, items[start:place]))
            start, size = place, 0
        size += weight
    runs.append((first + start, first + len(items) - 1, items[start:]))
    return runs
