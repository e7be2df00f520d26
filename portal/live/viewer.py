"""The sending side of one socket: a bounded outbox, a task that sends it, and a cursor per channel.

Everything here runs in the event loop. Memory: at most OUTBOX_BYTES wait per viewer; the texts are shared by all
viewers of a channel.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from learner_agent.wire import CloseCode
from portal.live.frames import PONG, ViewerFrame, gap_frame
from portal.live.socket import text_frame

OUTBOX_BYTES = 256 * 1024
_ids = itertools.count(1)


class Delivery(Enum):
    """How a subscription is served."""

    CATCHING_UP = auto()  # is read separately until it has reached the others
    LIVE = auto()  # gets the shared frames
    LAGGING = auto()  # its outbox was full: gets a gap frame as soon as there is room


@dataclass(eq=False)
class Subscription:
    """A viewer's subscription to a channel; cursor is the number of the last item in the outbox.

    given: on a channel of states, the number of the last row sent; the cursor is then a number of the database.
    """

    viewer: Viewer
    ch: str
    cursor: int
    given: int = 0
    delivery: Delivery = Delivery.CATCHING_UP
    redacted: bool = False  # only this job is shared with the viewer

    def put(self, frame: ViewerFrame) -> None:
        """Queue a frame, numbered for this viewer."""
        if self.redacted and frame.for_guests is not None:
            frame = frame.for_guests
        if frame.rows is None:
            self.viewer.put(frame.text, frame.ready)
        else:
            self.viewer.put(frame.numbered(self.given))
            self.given += frame.rows

    def offer(self, frame: ViewerFrame) -> None:
        """Queue a frame that follows the cursor, or fall behind.

        Rows follow every cursor: they are states, which may be newer than the number their reader began with, and that
        number also grows without them.
        """
        if self.delivery is not Delivery.LIVE:
            return
        if frame.rows is None:
            mine = frame.above(self.cursor) if frame.last >= self.cursor else None
            if mine is None:
                return
            frame = mine
        follows = frame.rows is not None or frame.first <= self.cursor + 1
        if follows and self.viewer.has_room(frame.size):
            self.put(frame)
            self.cursor = max(self.cursor, frame.last)
        else:
            self.delivery = Delivery.LAGGING
            self.viewer.fall_behind()

    def rejoin(self, head: int) -> None:
        """Send a gap frame for what was left out, once there is room again."""
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
    )  # send a websocket frame at once, if the socket accepts it
    id: int = field(default_factory=lambda: next(_ids))
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    drained: Callable[[Viewer], None] = lambda viewer: None  # set by the hub
    cut: Callable[[CloseCode, str], None] = lambda code, reason: (
        None
    )  # set by the consumer: close this socket
    sent_at: float = field(default_factory=time.monotonic)
    sending_since: float | None = None
    _lagging: bool = False  # a subscription has fallen behind
    _outbox: deque[bytes] = field(default_factory=deque)
    _bytes: int = 0
    _filled: asyncio.Event = field(default_factory=asyncio.Event)
    _room: asyncio.Event = field(default_factory=asyncio.Event)

    def has_room(self, size: int) -> bool:
        """Whether another frame may be queued; an empty outbox accepts any size."""
        return not self._outbox or self._bytes + size <= OUTBOX_BYTES

    def put(self, text: bytes, ready: bytes | None = None) -> None:
        """Send a frame, or queue it behind others. ready: the websocket frame, if it has been built already.

        Small frames (pong, errors, gaps) are queued even if the outbox is full.
        """
        if not self._outbox and self.write(ready or text_frame(text)):
            self.sent_at = time.monotonic()
            return
        self._outbox.append(text)
        self._bytes += len(text)
        self._filled.set()

    def beat(self, now: float, every_s: float) -> None:
        """Queue a heartbeat unless something was sent recently or is still queued."""
        if not self._outbox and now - self.sent_at >= every_s * 0.75:
            self.put(PONG)

    def fall_behind(self) -> None:
        """Call `drained` as soon as there is room, which may be now."""
        self._lagging = True
        self._filled.set()

    async def room(self, size: int) -> None:
        """Wait until a frame of this size can be queued."""
        while not self.has_room(size):
            self._room.clear()
            await self._room.wait()

    async def send_queued(self) -> None:
        """Send queued frames in order until cancelled or the socket is gone."""
        while True:
            if self._lagging and self._bytes <= OUTBOX_BYTES // 2:
                self._lagging = False
                self.drained(self)
            if not self._outbox:
                self._filled.clear()
                await self._filled.wait()
                continue
            text = self._outbox[0]
            self.sending_since = time.monotonic()
            await self.send(text)
            self.sending_since = None
            self.sent_at = time.monotonic()
            self._outbox.popleft()
            self._bytes -= len(text)
            if self._bytes <= OUTBOX_BYTES // 2:
                self._room.set()
