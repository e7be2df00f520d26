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


class _Plain(smtplib.SMTP):
    """Cuts the connection off when its time is over: what waits for the server then fails at once."""

    _timer: threading.Timer | None = None

    def _get_socket(self, *where: Any) -> socket.socket:
        """smtplib's own, which connects. Called once for each connection, before any TLS."""
        found: socket.socket = super()._get_socket(*where)  # type: ignore[misc]  # typeshed lacks it
        # A handle of its own: TLS takes the socket over, now or by STARTTLS, and none is to be seen meanwhile.
        self._handle = found.dup()
        self._timer = threading.Timer(LONGEST_S, self._cut_off)
        self._timer.daemon = True
        self._timer.start()
        return found

    def close(self) -> None:
        self._let_go()
        super().close()

    def _let_go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._handle.close()

    def _cut_off(self) -> None:
        with suppress(OSError):  # closed a moment ago
            self._handle.shutdown(socket.SHUT_RDWR)


class _Encrypted(smtplib.SMTP_SSL, _Plain):
    """With TLS from the first byte: smtplib's class asks the one above for the socket."""

    def _get_socket(self, *where: Any) -> socket.socket:
        try:
            return super()._get_socket(*where)
        except BaseException:
            self._let_go()  # smtplib has no socket yet that it would close
            raise


class EmailBackend(DjangoBackend):
    @property
    def connection_class(self) -> type[smtplib.SMTP]:
        return _Encrypted if self.use_ssl else _Plain
