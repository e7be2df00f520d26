"""The interface of a channel's source: the database, read once for all viewers of the channel.

`read` covers many channels at once and runs in a thread of the hub. A source has no state: what it needs to remember
about a channel between two reads is returned as the batch's stamp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from portal.live.frames import ViewerFrame
from portal.live.protocol import Channel


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


ROWS = 2**20
"""Row numbers between two numbers of the database; all remain below 2**53, the largest integer in a browser."""


def first_row(head: int) -> int:
    """The first row number of a viewer who subscribes at the database's number head."""
    return head * ROWS


def store_cursor(row: int) -> int:
    """The database's number that a viewer who has this row is certain to have received."""
    return row // ROWS


class ChannelSource(Protocol):
    """One topic.

    missed_is_fetched: True: a slow viewer gets a gap frame and fetches the items by REST; False: it gets the new state.
    counts_rows: False: items have numbers in the database. True: rows are numbered per viewer, from first_row(head) on,
    so that store_cursor gives the database's number at which the viewer subscribed.
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
