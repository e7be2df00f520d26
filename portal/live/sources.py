"""Where a channel's items come from: the store, read once for all viewers of it.

A source answers `read` for many channels at once, in a thread of the hub. It keeps nothing: what it wants to remember
of a channel between two reads it hands back as the page's stamp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from portal.live.frames import Frame
from portal.live.protocol import Channel


@dataclass(frozen=True)
class Want:
    """Items of a channel above `after`, and none above `upto` if that is given.

    stamp: what the last page said; None asks for the whole state too.
    """

    channel: Channel
    after: int
    stamp: Any = None
    upto: int | None = None


@dataclass(frozen=True)
class Page:
    """Frames that follow the cursor without a hole, the cursor after them, and whether there is more now.

    A want with stamp None gets at least one frame, so that a new viewer knows where he stands.
    """

    frames: list[Frame]
    head: int
    stamp: Any = None
    more: bool = False


ROWS = 2**20
"""Numbers of rows between two numbers of the store; together below 2**53, what a browser can count."""


def first_row(head: int) -> int:
    """Where the rows of a viewer are counted from who wants what comes after the store's number head."""
    return head * ROWS


def store_cursor(row: int) -> int:
    """The store's number that a viewer surely knew when he was given this row."""
    return row // ROWS


class Source(Protocol):
    """One topic of the store.

    missed_is_fetched: True: a slow viewer is told the gap and fetches it by REST; False: he gets the newest state.
    counts_rows: False: items have numbers of the store. True: each viewer's rows are counted, beginning at
    first_row(head), so that store_cursor tells what had happened when he began.
    """

    missed_is_fetched: bool
    counts_rows: bool

    def head(self, channel: Channel) -> int:
        """The number of the newest item now; 0 for none."""
        ...

    def at_hand(self, want: Want) -> Page | None:
        """A page of what is known without asking the store, in the event loop; None where the store must be asked."""
        return None

    def read(self, wants: Sequence[Want]) -> dict[str, Page]:
        """A page by channel name; a channel whose things are gone is left out."""
        ...
