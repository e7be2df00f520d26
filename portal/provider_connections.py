"""Connections to the provider of single sign-on, each bounded in all: one that sends a byte now and then would
otherwise hold one of the few requests that may wait for it (portal.single_sign_on.AT_ONCE)."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import NewConnectionError

from tenants import outgoing
from tenants.cut_off import CutOff

LONGEST_S = 20.0
"""From the question for the provider's address to the last byte of its answer."""

if TYPE_CHECKING:
    Base = HTTPConnection
else:
    Base = object


class _Bounded(Base):
    _over: CutOff | None = None

    def _new_conn(self) -> socket.socket:
        """In place of urllib3's own, which connects. Called once for each connection, before any TLS."""
        until = time.monotonic() + LONGEST_S
        try:
            found = outgoing.connected(self._dns_host, self.port or self.default_port, until)
        except OSError as error:
            raise NewConnectionError(self, str(error)) from error
        try:
            self._over = CutOff(found, max(0.0, until - time.monotonic()))
        except (OSError, RuntimeError) as error:  # no file or thread is left
            found.close()
            raise NewConnectionError(self, str(error)) from error
        return found

    def getresponse(self) -> Any:
        """Its connection is still read where http.client closes this before the body, as "Connection: close" asks."""
        over, self._over = self._over, None
        try:
            return super().getresponse()
        finally:
            self._over = over

    def close(self) -> None:
        super().close()
        if self._over is not None:
            self._over.cancel()
            self._over = None


class _Plain(_Bounded, HTTPConnection):
    pass


class _Encrypted(_Bounded, HTTPSConnection):
    pass


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _Plain


class _EncryptedPool(HTTPSConnectionPool):
    ConnectionCls = _Encrypted


class BoundedAdapter(HTTPAdapter):
    """For a session that is used for one exchange: its connections do not outlive LONGEST_S."""

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*arguments, **options)
        manager.pool_classes_by_scheme = _POOLS
        return manager


_POOLS = {"http": _PlainPool, "https": _EncryptedPool}
