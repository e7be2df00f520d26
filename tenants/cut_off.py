"""A bound on how long one connection may last in all.

A timeout bounds each wait for the other side; one that sends a byte now and then would still hold its worker forever.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class CutOff:
    """Shuts a connection down once its time is over: what waits for the other side then fails at once."""

    def __init__(self, connection: socket.socket, after_s: float) -> None:
        """connection: before any TLS, which takes the socket over, now or later; so this has a handle of its own."""
        self._handle = connection.dup()
        self._timer = threading.Timer(after_s, self._shut)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()
        self._handle.close()

    def _shut(self) -> None:
        with suppress(OSError):  # closed a moment ago
            self._handle.shutdown(socket.SHUT_RDWR)
