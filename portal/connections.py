"""Connections of the web server: how many there may be, and how long one may keep us waiting.

uvicorn limits neither the time for a request's head nor for reading a response, and its limit of connections refuses
requests, not connections. Bodies have limits of their own in portal.request_body, where the path is known.
What was considered: docs/adr/0053-limits-of-connections-and-bodies.md.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from portal import strangers
from portal.budgets import shared_address

logger = logging.getLogger(__name__)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
OTHER_FILES = 256
"""Open files that are not connections of clients: to the database, logs, downloads."""


@dataclass
class OpenConnections:
    """The connections of this process. A websocket counts for its address until its user is known, who is counted.

    exempt: proxies, each of which carries many clients.
    """

    total: int
    per_address: int
    exempt: Collection[Network] = ()
    _address_of: dict[Any, str | None] = field(default_factory=dict)  # by transport
    _by_address: Counter[str] = field(default_factory=Counter)

    def admit(self, transport: Any, address: str) -> bool:
        """Count one more connection; False if there are too many already."""
        if len(self._address_of) >= min(self.total, _open_files() - OTHER_FILES):
            return False
        shared = shared_address(address)
        if shared and self._by_address[shared] >= self.per_address and not self._is_exempt(address):
            return False
        self._address_of[transport] = shared
        if shared:
            self._by_address[shared] += 1
        return True

    def is_known(self, transport: Any) -> None:
        """Who is at the other end of this websocket is known."""
        self._free(self._address_of.get(transport))
        if transport in self._address_of:
            self._address_of[transport] = None

    def release(self, transport: Any) -> None:
        """It has ended; one that was not admitted may be named too."""
        self._free(self._address_of.pop(transport, None))

    def _free(self, address: str | None) -> None:
        if address:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def _is_exempt(self, address: str) -> bool:
        try:
            known = ipaddress.ip_address(address)
        except ValueError:
            return False
        known = getattr(known, "ipv4_mapped", None) or known
        return any(known in network for network in self.exempt)


def _open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 2**31


OPEN = OpenConnections(
    total=settings.LUTHIER_CONNECTIONS,
    per_address=settings.LUTHIER_CONNECTIONS_PER_ADDRESS,
    exempt=settings.LUTHIER_TRUSTED_PROXIES,
)


def _refusal(status: str, text: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {len(text)}\r\n"
    for_browsers = (
        "x-content-type-options: nosniff\r\n"
        "content-security-policy: default-src 'none'; frame-ancestors 'none'\r\n"
    )
    if settings.SECURE_HSTS_SECONDS:
        for_browsers += (
            f"strict-transport-security: max-age={settings.SECURE_HSTS_SECONDS}; includeSubDomains\r\n"
        )
    return f"{head}{for_browsers}retry-after: 2\r\nconnection: close\r\n\r\n{text}".encode()


CROWDED = _refusal("503 Service Unavailable", "Too many connections. Try again in a moment.")
TOO_SLOW = _refusal("408 Request Timeout", "The request's head did not arrive in time.")
TOO_LARGE = _refusal("431 Request Header Fields Too Large", "The request's head is too large.")


class Http(HttpToolsProtocol):
    """uvicorn's HTTP with deadlines for what the client does, and none for what we do."""

    HEAD_S = 10.0
    """For the whole head of a request, from the connection or the end of the request before."""
    HEAD_BYTES = 64 * 1024
    STALL_S = 60.0
    """For reading 48 KiB of a response that waits to be sent, or the rest of one at the end of the connection."""

    _head_deadline: asyncio.TimerHandle | None = None
    _stall_deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _heads = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        if not OPEN.admit(transport, address):
            strangers.warn(logger, "connection refused: too many", address)
            self._refuse(CROWDED)
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        OPEN.release(self.transport)
        self._end_head()
        super().connection_lost(exc)
        self._end_stall()

    def data_received(self, data: bytes) -> None:
        reading = self._heads if self._head_deadline else None
        super().data_received(data)
        if self.parser is None or self.transport.is_closing():
            return
        if self._head_deadline is None:
            if self.cycle is not None and self.cycle.response_complete:
                self._await_head()  # bytes that begin no request may not hold the connection
        elif reading == self._heads:
            self._head_bytes += len(data)
            if self._head_bytes > self.HEAD_BYTES:
                self._refuse(TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._await_reader()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._await_reader()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        self._end_stall()
        super().resume_writing()

    def _await_head(self) -> None:
        if self._head_deadline is None:
            self._heads += 1
            self._head_bytes = 0
            self._head_deadline = self.loop.call_later(self.HEAD_S, self._head_is_late)

    def _end_head(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _head_is_late(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()  # a response is under way; the text would end up in it
        else:
            self._refuse(TOO_SLOW if self._head_bytes else b"")

    def _refuse(self, response: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(response)
            self.transport.close()
        self._await_reader()

    def _await_reader(self) -> None:
        if self._stall_deadline is None:
            self._stall_deadline = self.loop.call_later(self.STALL_S, self.transport.abort)

    def _end_stall(self) -> None:
        if self._stall_deadline is not None:
            self._stall_deadline.cancel()
            self._stall_deadline = None
