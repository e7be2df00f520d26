"""Django's SMTP backend, with a bound on how long one connection takes in all (tenants.outgoing, tenants.cut_off)."""

from __future__ import annotations

import smtplib
import socket
import time
from typing import Any

from django.core.mail.backends.smtp import EmailBackend as DjangoBackend
from django.core.mail.utils import DNS_NAME

from tenants import outgoing
from tenants.cut_off import CutOff

TALK_S = 20.0
"""From the question for the server's address to the connection's last byte."""
LONGEST_S = outgoing.STEP_S + TALK_S
"""In all: before that, the resolver is asked for the name of this machine."""


class _Plain(smtplib.SMTP):
    _over: CutOff | None = None

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        """In place of smtplib's own, which connects. Called once for each connection, before any TLS."""
        until = time.monotonic() + TALK_S
        found = outgoing.connected(host, port, until)
        found.settimeout(timeout)
        self._over = CutOff(found, max(until - time.monotonic(), 0.0))
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

    def open(self) -> bool | None:
        """Django keeps the name, also where it comes after this has given up: a later try has it."""
        if self.connection is None:
            outgoing.ask_resolver(DNS_NAME.get_fqdn, "the name of this machine", outgoing.STEP_S)
        return super().open()
