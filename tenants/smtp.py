"""Django's SMTP backend, with a bound on how long one connection may take in all.

EMAIL_TIMEOUT bounds each wait for the server; one that sends a byte now and then would still hold its worker forever.
"""

from __future__ import annotations

import smtplib
import socket
import threading
from contextlib import suppress
from typing import Any

from django.core.mail.backends.smtp import EmailBackend as DjangoBackend

LONGEST_S = 20.0
"""From the connection's first byte to its last."""


class _Bounded:
    """Cuts the connection off when its time is over: what waits for the server then fails at once."""

    sock: socket.socket | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        self._timer = threading.Timer(LONGEST_S, self._cut_off)
        self._timer.daemon = True
        self._timer.start()
        try:
            super().__init__(*args, **options)
        except BaseException:
            self._timer.cancel()
            raise

    def close(self) -> None:
        self._timer.cancel()
        super().close()  # type: ignore[misc]  # smtplib's

    def _cut_off(self) -> None:
        if self.sock is not None:
            with suppress(OSError):  # closed a moment ago
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)  # below TLS, which has a reader in it


class _Plain(_Bounded, smtplib.SMTP):
    pass


class _Encrypted(_Bounded, smtplib.SMTP_SSL):
    pass


class EmailBackend(DjangoBackend):
    @property
    def connection_class(self) -> type[smtplib.SMTP]:
        return _Encrypted if self.use_ssl else _Plain
