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

from portal.connections import OPEN

DIRECT_WRITE = "luthier.ready"
"""The ASGI extension through which an application finds its connection's direct path."""
FINAL_TEXT, FINAL_BINARY = 0x81, 0x82
REASON_MAX = 123
"""Bytes of a close frame's reason (RFC 6455, 5.5); of a longer one uvicorn sends no close frame at all."""


FRAGMENTS_MAX = 1024
"""Frames of one message. Their bytes are limited in all, but an empty one costs memory and time, too."""


class Socket(WebSocketsSansIOProtocol):
    """uvicorn's websocket, which portal.web selects, with bounds for clients that send and read nothing."""

    STALL_S = 60.0
    """For reading what waits to be sent, also once the connection is being closed: then it is cut off."""

    _stall: asyncio.TimerHandle | None = None
    _was_closing = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
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
            self.scope["extensions"][DIRECT_WRITE] = {"write": self.write_ready}

    def connection_lost(self, exc: Exception | None) -> None:
        OPEN.release(self.transport)
        if self._stall is not None:
            self._stall.cancel()
        super().connection_lost(exc)

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
        scope.get("extensions", {}).get(DIRECT_WRITE, {}).get("write", lambda frame: False)
    )
    return found


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
