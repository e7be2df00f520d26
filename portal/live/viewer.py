"""One socket's way out: a bounded outbox, a task that empties it, and a cursor per channel.

Everything here runs in the event loop. Memory: at most OUTBOX_BYTES wait per viewer; the texts themselves are shared
by all viewers of a channel.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from portal.live.frames import PONG, Frame, gap_frame
from portal.live.socket import text_frame

OUTBOX_BYTES = 256 * 1024
_ids = itertools.count(1)


class Delivery(Enum):
    """How a subscription is served."""

    CATCHING_UP = auto()  # reads the store by itself until it has reached the others
    LIVE = auto()  # gets what all get
    LAGGING = auto()  # its outbox was full: gets a gap frame as soon as there is room


@dataclass(eq=False)
class Subscription:
    """A viewer on a channel; cursor is the number of the last item put into his outbox.

    given: on a channel of states, the number of the last row he was given; the cursor is the store's there.
    """

    viewer: Viewer
    ch: str
    cursor: int
    given: int = 0
    delivery: Delivery = Delivery.CATCHING_UP
    is_guest: bool = False  # of a job that is shared with him alone

    def put(self, frame: Frame) -> None:
        """Queue a frame under his own numbers."""
        if self.is_guest and frame.for_guests is not None:
            frame = frame.for_guests
        if frame.rows is None:
            self.viewer.put(frame.text, frame.ready)
        else:
            self.viewer.put(frame.numbered(self.given))
            self.given += frame.rows

    def offer(self, frame: Frame) -> None:
        """Take a frame that follows the cursor, or fall behind."""
        if (
            self.delivery is not Delivery.LIVE
            or frame.last < self.cursor
            or (mine := frame.above(self.cursor)) is None
        ):
            return
        frame = mine
        if frame.first <= self.cursor + 1 and self.viewer.has_room(frame.size):
            self.put(frame)
            self.cursor = frame.last
        else:
            self.delivery = Delivery.LAGGING
            self.viewer.lagging = True

    def rejoin(self, head: int) -> None:
        """Tell what was left out, once there is room again."""
        if head > self.cursor:
            gap = gap_frame(self.ch, self.cursor + 1, head)
            self.viewer.put(gap.text)
            self.cursor = head
        self.delivery = Delivery.LIVE


@dataclass(eq=False)
class Viewer:
    """One open socket."""

    send: Callable[[bytes], Awaitable[None]]
    write: Callable[[bytes], bool] = lambda ready: (
        False
    )  # what is ready for the wire, if the socket takes it at once
    id: int = field(default_factory=lambda: next(_ids))
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    drained: Callable[[Viewer], None] = lambda viewer: None  # set by the hub
    cut: Callable[[int, str], None] = lambda code, reason: None  # set by the consumer: end this socket
    lagging: bool = False  # a subscription of his fell behind
    sent_at: float = field(default_factory=time.monotonic)
    sending_since: float | None = None
    _outbox: deque[bytes] = field(default_factory=deque)
    _bytes: int = 0
    _filled: asyncio.Event = field(default_factory=asyncio.Event)
    _room: asyncio.Event = field(default_factory=asyncio.Event)

    def has_room(self, size: int) -> bool:
        """Whether another frame may wait; an empty outbox takes one of any size."""
        return not self._outbox or self._bytes + size <= OUTBOX_BYTES

    def put(self, text: bytes, ready: bytes | None = None) -> None:
        """Send a frame, or queue it behind what waits; ready: as it goes over the wire, if that was made for others.

        Small answers (pong, errors, gaps) are queued even where a full outbox refuses items.
        """
        if not self._outbox and self.write(ready or text_frame(text)):
            self.sent_at = time.monotonic()
            return
        self._outbox.append(text)
        self._bytes += len(text)
        self._filled.set()

    def beat(self, now: float, every_s: float) -> None:
        """Queue a sign of life unless something else was sent lately or still waits."""
        if not self._outbox and now - self.sent_at >= every_s * 0.75:
            self.put(PONG)

    async def room(self, size: int) -> None:
        """Wait until a frame of this size may be put."""
        while not self.has_room(size):
            self._room.clear()
            await self._room.wait()

    async def send_queued(self) -> None:
        """Send what is put, in order, until cancelled or the socket is gone."""
        while True:
            while not self._outbox:
                self._filled.clear()
                await self._filled.wait()
            text = self._outbox[0]
            self.sending_since = time.monotonic()
            await self.send(text)
            self.sending_since = None
            self.sent_at = time.monotonic()
            self._outbox.popleft()
            self._bytes -= len(text)
            if self._bytes <= OUTBOX_BYTES // 2:
                self._room.set()
                if self.lagging:
                    self.lagging = False
                    self.drained(self)
