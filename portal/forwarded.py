"""X-Forwarded-Proto counts from proxies alone: a client that reaches the web server past them cannot claim https.

X-Forwarded-For is uvicorn's, in portal.asgi. An installation that names no proxies has one nevertheless if its address
is https, so there the header counts from the addresses that no stranger on the internet has.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
HEADER = b"x-forwarded-proto"
INNER = tuple(
    ipaddress.ip_network(text)
    for text in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")
)
"""This machine and private networks (RFC 1918, RFC 4193)."""


class ForwardedProto:
    """Removes the header from requests of others. trusted: the proxies; none: INNER."""

    def __init__(self, app: Any, trusted: Sequence[Network]) -> None:
        self.app = app
        self.trusted = tuple(trusted) or INNER

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] in ("http", "websocket") and not self._is_proxy(scope.get("client")):
            kept = [header for header in scope["headers"] if header[0].lower() != HEADER]
            scope = {**scope, "headers": kept}
        await self.app(scope, receive, send)

    def _is_proxy(self, client: tuple[str, int] | None) -> bool:
        if client is None:  # a Unix socket, which is private
            return True
        try:
            address = ipaddress.ip_address(client[0])
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self.trusted)
