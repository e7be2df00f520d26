"""Frames for viewers, serialized once for all viewers of a channel, and the interface of the sources that make them.

A source is the database, read once for all viewers of its channels: `read` covers many channels at once and runs in a
thread of the hub. A source has no state: what it needs to remember about a channel between two reads is returned as the
batch's stamp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import orjson

from jobs.serialization import dumps
from portal.live.protocol import Channel
from portal.live.socket import text_frame

FRAME_BYTES = 64 * 1024
FRAME_ITEMS = 500


@dataclass(frozen=True)
class ViewerFrame:
    """Items first…last of a channel, ready to send. last == first - 1: a state without new items.

    rows: the number of items of a state that is sent again whenever it changes. Its first and last are numbers of the
    database; the rows are numbered per viewer as they are sent, so that a viewer sees no gap (`numbered`).
    for_guests: the redacted frame for people with whom only this job is shared, if it differs.
    """

    first: int
    last: int
    text: bytes
    rows: int | None = None
    for_guests: ViewerFrame | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.text)

    @cached_property
    def ready(self) -> bytes:
        """The websocket frame, built once for all viewers."""
        return text_frame(self.text)

    def numbered(self, after: int) -> bytes:
        """The text for a viewer who has received rows up to after."""
        if self.rows is None:
            return self.text
        return b'{"from":%d,"to":%d,%b' % (after + 1, after + self.rows, self.text[1:])

    def above(self, cursor: int) -> ViewerFrame | None:
        """The part for a viewer who has received everything up to cursor; None if there is none.

        Rows are states and may be sent twice; lines, points and events may not, so their frame is cut.
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


def items_frame(ch: str, first: int, last: int, items: Sequence[Any], **state: Any) -> ViewerFrame:
    """state: further keys beside the items, such as the job's current state."""
    return _frame(first, last, {"ch": ch, "from": first, "to": last, "items": items} | state)


def state_frame(ch: str, first: int, last: int, items: Sequence[Any]) -> ViewerFrame:
    """All rows of a state, or those that changed."""
    return ViewerFrame(first, last, dumps({"ch": ch, "items": items}, str), len(items))


def gap_frame(ch: str, first: int, last: int, **more: Any) -> ViewerFrame:
    """Items first…last were left out and can be fetched by REST; lost=True: they were never stored."""
    return _frame(first, last, {"ch": ch, "gap": {"from": first, "to": last} | more})


def rows_gap_frame(ch: str, first: int, last: int) -> ViewerFrame:
    """Rows of a state changed that are not sent: fetch those that are shown. Numbered like a state without rows."""
    body = {"ch": ch, "gap": {"from": first, "to": last}}
    return ViewerFrame(first, first - 1, orjson.dumps(body), 0)


def error_text(ch: str, code: str, message: str) -> bytes:
    return orjson.dumps({"ch": ch, "error": {"code": code, "message": message}})


PONG = b'{"op":"pong"}'


def _frame(first: int, last: int, body: dict[str, Any]) -> ViewerFrame:
    return ViewerFrame(first, last, dumps(body, str))


def cut_items(first: int, items: Sequence[Any], sizes: Sequence[int]) -> list[tuple[int, int, Sequence[Any]]]:
    """Cut numbered items into runs that fit a frame; sizes: about their bytes.

    Returns (first, last, items) per run; an item that is larger than a frame has its own run.
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


class StoreDown(Exception):
    """The database is not responding; it is read again after a second."""


class Unreadable(StoreDown):
    """A stored row cannot be read; it is read again after a second."""


@dataclass(frozen=True)
class ReadRequest:
    """Read the items of a channel above `after`, and none above `upto` if that is given.

    stamp: the last batch's; None requests the whole state as well.
    """

    channel: Channel
    after: int
    stamp: Any = None
    upto: int | None = None


@dataclass(frozen=True)
class FrameBatch:
    """Frames that follow the cursor without a gap, the cursor after them, and whether there is more now.

    A request with stamp None gets at least one frame, so that a new viewer has the current state.
    """

    frames: list[ViewerFrame]
    head: int
    stamp: Any = None
    more: bool = False


class ChannelSource(Protocol):
    """One topic.

    missed_is_fetched: True: a slow viewer gets a gap frame and fetches the items by REST; False: it gets the new state.
    counts_rows: False: items have numbers in the database. True: rows are numbered per viewer, from
    heads.first_row(head) on, so that store_cursor gives the database's number at which the viewer subscribed.
    """

    missed_is_fetched: bool
    counts_rows: bool

    def head(self, channel: Channel) -> int:
        """The number of the newest item now; 0 for none."""
        ...

    def cached(self, request: ReadRequest) -> FrameBatch | None:
        """A batch from memory, called in the event loop; None if the database must be read."""
        return None

    def read(self, requests: Sequence[ReadRequest]) -> dict[str, FrameBatch]:
        """A batch by channel name; a channel whose object is gone is left out."""
        ...
