"""Django's SMTP backend, with a bound on how long one connection may take in all (tenants.cut_off)."""

from __future__ import annotations

import smtplib
import socket
from typing import Any

from django.core.mail.backends.smtp import EmailBackend as DjangoBackend

from tenants.cut_off import CutOff

LONGEST_S = 20.0
"""From the connection's first byte to its last."""


class _Plain(smtplib.SMTP):
    _over: CutOff | None = None

    def _get_socket(self, *where: Any) -> socket.socket:
        """smtplib's own, which connects. Called once for each connection, before any TLS."""
        found: socket.socket = super()._get_socket(*where)  # type: ignore[misc]  # typeshed lacks it
        self._over = CutOff(found, LONGEST_S)
        return found

    def close(self) -> None:
        self._let_go()
        super().close()

    def _let_go(self) -> None:
        if self._over is not None:
            self._over.cancel()


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
