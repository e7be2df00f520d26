"""A port in front of another one, which a test can close, make hang or make slow."""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path


class Proxy:
    """Forwards connections to a loopback port or a Unix socket, until it refuses them. Listens at another address if
    that is given."""

    def __init__(self, target: int | Path, address: str = "127.0.0.1") -> None:
        self._target = target
        self._address = address
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()
        self._flows = threading.Event()
        self._flows.set()
        self._delay_s = 0.0
        self.port = 0
        self.accept()

    def accept(self) -> None:
        self._stopped = threading.Event()
        self._listener = socket.create_server((self._address, self.port))
        self._listener.settimeout(0.05)
        self.port = self._listener.getsockname()[1]
        self._start(self._serve, self._listener, self._stopped)

    def refuse(self) -> None:
        """Close every connection, and accept none."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def hang(self) -> None:
        """Accept connections, and forward nothing until `flow`."""
        self._flows.clear()

    def flow(self) -> None:
        self._flows.set()
        self._delay_s = 0.0

    def slow(self, delay_s: float) -> None:
        """Forward everything, each piece this much later, until `flow`."""
        self._delay_s = delay_s

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _serve(self, listener: socket.socket, stopped: threading.Event) -> None:
        with listener:
            while not stopped.is_set():
                with suppress(TimeoutError):
                    connection, _ = listener.accept()
                    self._start(self._forward, connection, stopped)

    def _connect(self) -> socket.socket:
        if isinstance(self._target, int):
            return socket.create_connection(("127.0.0.1", self._target))
        far = socket.socket(socket.AF_UNIX)
        far.connect(str(self._target))
        return far

    def _forward(self, near: socket.socket, stopped: threading.Event) -> None:
        with near, suppress(OSError), self._connect() as far:
            while not stopped.is_set():
                if not self._flows.wait(0.05):
                    continue
                for source in select.select([near, far], [], [], 0.05)[0]:
                    content = source.recv(65536)
                    if not content:
                        return
                    time.sleep(self._delay_s)
                    (far if source is near else near).sendall(content)
