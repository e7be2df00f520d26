"""Rate limits per minute and web process: against loops and guessing, not for accounting."""

from __future__ import annotations

from django.core.cache import cache
from rest_framework import exceptions

WINDOW_S = 60


def refuse_above(key: str, limit: int) -> None:
    """Raise Throttled if this key was counted limit times within the last minute."""
    if cache.get(_name(key), 0) >= limit:
        raise exceptions.Throttled(wait=WINDOW_S)


def count(key: str) -> None:
    cache.add(_name(key), 0, timeout=WINDOW_S)
    try:
        cache.incr(_name(key))
    except ValueError:  # it expired in between
        cache.set(_name(key), 1, timeout=WINDOW_S)


def _name(key: str) -> str:
    return f"api-throttle:{key}"
