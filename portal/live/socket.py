"""The server's side of a websocket, with a direct path for frames that are already encoded.

A log with two hundred viewers is one text sent two hundred times. Through ASGI each costs a task switch, an encoding
and a frame, four times as much as writing the same bytes to each socket.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request

from learner_agent import wire
from portal import connections

REFUSALS = frozenset({wire.CloseCode.BAD_FRAME, wire.CloseCode.UNAUTHORIZED, wire.CloseCode.FORBIDDEN})
"""Codes with which a socket is closed because of what its client did or is."""
CONNECTION = "luthier.connection"
"""The ASGI extension through which an application finds its connection's direct path, and says who is there."""
FINAL_TEXT, FINAL_BINARY = 0x81, 0x82
REASON_MAX = 123
"""Bytes of a close frame's reason (RFC 6455, 5.5); of a longer one uvicorn sends no close frame at all."""


FRAGMENTS_MAX = 1024
"""Frames of one message. Their bytes are limited in all, but an empty one costs memory and time, too."""


class Socket(WebSocketsSansIOProtocol):
    """uvicorn's websocket, which portal.web selects, with bounds for clients that send and read nothing."""

    STALL_S = 60.0
    """For reading what waits to be sent, also once the connection is being closed: then it is cut off."""
    REFUSED_S = 1.0
    """For a stranger's answer to the close frame."""

    _stall: asyncio.TimerHandle | None = None
    _was_closing = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._known_close_s, self.close_timeout = self.close_timeout, self.REFUSED_S
        self._look_later()

    def _look_later(self) -> None:
        self._stall = self.loop.call_later(self.STALL_S / 2, self._look)

    def _look(self) -> None:
        """Twice in a row it was being closed: what waits to be sent is not read."""
        if self._was_closing:
            self.transport.abort()
            return
        self._was_closing = self.transport.is_closing()
        self._look_later()

    def handle_ping(self) -> None:
        """The answers of one who reads none would fill the memory: no more is read until they are taken."""
        super().handle_ping()
        if not self.writable.is_set() and not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self.transport.resume_reading()

    def handle_cont(self, event: Frame) -> None:
        if self.close_sent:
            return
        if len(self.frames) < FRAGMENTS_MAX:
            super().handle_cont(event)
            return
        self.frames = []
        self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"more than {FRAGMENTS_MAX} fragments")
        self.handle_parser_exception()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            self.scope["extensions"][CONNECTION] = {
                "write": self.write_ready,
                "authenticated": self.authenticated,
            }

    def connection_lost(self, exc: Exception | None) -> None:
        connections.OPEN.release(self.transport)
        if self._stall is not None:
            self._stall.cancel()
        super().connection_lost(exc)

    def authenticated(self) -> None:
        """The application knows who is there, and limits the connections of each."""
        connections.OPEN.is_known(self.transport)
        self.close_timeout = self._known_close_s

    def write_ready(self, frame: bytes) -> bool:
        """Write whole frames to the connection; False if its buffer is full or it is closed."""
        if not self.writable.is_set() or not self.handshake_complete or self.close_sent or self.disconnected:
            return False
        if self.transport.is_closing():  # it would drop the frame
            return False
        self.transport.write(frame)
        return True


def direct_write(scope: Any) -> Callable[[bytes], bool]:
    """The connection's direct path; with another server it accepts nothing."""
    found: Callable[[bytes], bool] = (
        scope.get("extensions", {}).get(CONNECTION, {}).get("write", lambda frame: False)
    )
    return found


def authenticated(scope: Any) -> None:
    """The application knows who is at the other end; until then the connection counts for its address."""
    scope.get("extensions", {}).get(CONNECTION, {}).get("authenticated", lambda: None)()


def close_reason(text: str) -> str:
    """As much of the text as fits into a close frame, in whole characters."""
    return text.encode(errors="replace")[:REASON_MAX].decode(errors="ignore")


def text_frame(data: bytes) -> bytes:
    """One unfragmented text message of a server (RFC 6455, 5.2); data: UTF-8."""
    return _frame(FINAL_TEXT, data)


def binary_frame(data: bytes) -> bytes:
    """One unfragmented binary message of a server."""
    return _frame(FINAL_BINARY, data)


def _frame(kind: int, data: bytes) -> bytes:
    size = len(data)
    if size < 126:
        return bytes((kind, size)) + data
    if size < 2**16:
        return struct.pack("!BBH", kind, 126, size) + data
    return struct.pack("!BBQ", kind, 127, size) + data
