"""The server's side of a websocket, with a short way out for frames that are ready for the wire.

A log that two hundred people watch is one text sent two hundred times: as ASGI sends it, each of them costs a task's
turn, an encoding and a frame of its own, four times as much as handing the same bytes to each socket.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

DIRECT_WRITE = "luthier.ready"
"""The ASGI extension by which an application finds the short way of its connection."""
FINAL_TEXT, FINAL_BINARY = 0x81, 0x82


class Socket(WebSocketsSansIOProtocol):
    """uvicorn's websocket; named to it by `--ws portal.live.socket:Socket`."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            self.scope["extensions"][DIRECT_WRITE] = {"write": self.write_ready}

    def write_ready(self, frame: bytes) -> bool:
        """Hand whole frames to the connection; False where it has enough to send or is no longer open."""
        if not self.writable.is_set() or not self.handshake_complete or self.close_sent or self.disconnected:
            return False
        if self.transport.is_closing():  # it would swallow the frame
            return False
        self.transport.write(frame)
        return True


def direct_write(scope: Any) -> Callable[[bytes], bool]:
    """The short way of this connection; without our server it takes nothing."""
    found: Callable[[bytes], bool] = (
        scope.get("extensions", {}).get(DIRECT_WRITE, {}).get("write", lambda frame: False)
    )
    return found


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
