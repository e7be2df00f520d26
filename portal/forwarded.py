"""X-Forwarded-Proto counts from proxies alone: a client that reaches the web server past them cannot claim https.

X-Forwarded-For is uvicorn's, in portal.asgi. An installation that names no proxies has one nevertheless if its address
is https, so there the header counts from the addresses that no stranger on the internet has.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Sequence
from typing import Any

from django.conf import settings

logger = logging.getLogger(__name__)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
HEADER = b"x-forwarded-proto"
INNER = tuple(
    ipaddress.ip_network(text)
    for text in (
        "127.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "::1/128",
        "fc00::/7",
        "fe80::/10",
    )
)
"""This machine, private and shared networks and links (RFC 1918, 3927, 4193, 6598)."""
LOGGED = 100
"""Peers of which each process says at most that their header is ignored: anyone can be one."""


class ForwardedProto:
    """Removes the header from requests of others. trusted: the proxies; none: INNER."""

    def __init__(self, app: Any, trusted: Sequence[Network]) -> None:
        self.app = app
        self.trusted = tuple(trusted) or INNER
        self._logged: set[str] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] in ("http", "websocket") and not self._is_proxy(scope.get("client")):
            kept = [header for header in scope["headers"] if header[0].lower() != HEADER]
            if len(kept) < len(scope["headers"]):
                self._say(str(scope["client"][0]))
            scope = {**scope, "headers": kept}
        await self.app(scope, receive, send)

    def _say(self, peer: str) -> None:
        """Once for each: if it is a proxy, all its requests are redirected or refused."""
        if peer not in self._logged and len(self._logged) < LOGGED:
            self._logged.add(peer)
            logger.warning(
                "X-Forwarded-Proto is ignored: if this is your proxy, name it in LUTHIER_TRUSTED_PROXIES",
                extra={"peer": peer},
            )

    def _is_proxy(self, client: tuple[str, int] | None) -> bool:
        if client is None:  # a Unix socket, which is private
            return True
        try:
            address = ipaddress.ip_address(client[0])
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self.trusted)


def learners_need_tls() -> bool:
    """Where browsers are redirected to https, learners need it too, unless they are given a ws:// address."""
    return settings.SECURE_SSL_REDIRECT and not settings.LUTHIER_INGEST_URL.startswith("ws://")


def socket_has_tls(scope: Any) -> bool:
    """What Django's is_secure() is for requests. Some proxies call the protocol of a websocket wss."""
    proto = dict(scope.get("headers", [])).get(HEADER, b"").split(b",")[0].strip()
    return scope.get("scheme") == "wss" or proto in (b"https", b"wss")
