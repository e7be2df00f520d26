"""How often something may be tried: counts per minute, and the address that shares a count.

Web processes count together in Valkey. Each also counts on its own, so that a budget holds while Valkey is away, then
per process.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import time
from functools import cache as once

from django.core.cache import BaseCache, caches
from django.http import HttpRequest
from redis import RedisError

from portal.counting_cache import CountingCache

logger = logging.getLogger(__name__)

WINDOW_S = 60
PAUSE_S = 5.0
"""After a failure, Valkey is not tried again for this long."""

_away_until = 0.0


def within(key: str, limit: int, *, window_s: int = WINDOW_S) -> bool:
    """Count one more; whether it is one of the first `limit` within the window, a minute unless it is given."""
    own = _increased(_own(), key, window_s)
    shared = _increased_in_valkey(key, window_s)
    return (own if shared is None else shared) <= limit


def give_back(key: str) -> None:
    """Count one less: what was counted before its result was known is no failure."""
    _decreased(_own(), key)
    if time.monotonic() >= _away_until:
        with contextlib.suppress(RedisError, OSError):
            _decreased(_shared(), key)


def budget_address(request: HttpRequest) -> str | None:
    """The address that shares budgets with the caller's."""
    return shared_address(request.META.get("REMOTE_ADDR", ""))


def shared_address(text: str) -> str | None:
    """What counts as one client: of IPv6 the network, in which a client may have any address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None  # a Unix socket
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False).network_address)
    return text


@once
def _own() -> BaseCache:
    """This process's counts. `caches` would make an object for each request."""
    return caches.create_connection("default")


@once
def _shared() -> BaseCache:
    """That of the whole process: `caches` would open another one, with a connection of its own, for each request."""
    return caches.create_connection("shared")


def _increased_in_valkey(key: str, window_s: int) -> int | None:
    global _away_until
    if time.monotonic() < _away_until:
        return None
    try:
        return _increased(_shared(), key, window_s)
    except (RedisError, OSError) as error:
        _away_until = time.monotonic() + PAUSE_S
        logger.warning("budgets are counted per process: no Valkey", extra={"error": str(error)[:200]})
        return None


def _decreased(store: BaseCache, key: str) -> None:
    with contextlib.suppress(ValueError):  # it expired in between
        store.decr(f"budget:{key}")


def _increased(store: BaseCache, key: str, window_s: int) -> int:
    name = f"budget:{key}"
    if isinstance(store, CountingCache):
        return store.count(name, window_s)
    store.add(name, 0, timeout=window_s)
    try:
        return int(store.incr(name))
    except ValueError:  # it expired in between
        store.set(name, 1, timeout=window_s)
        return 1
