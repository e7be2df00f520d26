"""How long to wait before a next try, the longer the more often it was in vain."""

from __future__ import annotations

_DOUBLINGS = 32  # more would only overflow


def doubling_s(times: int, *, free: int, first_s: float, most_s: float) -> float:
    """Seconds after so many tries in vain: none after the first ``free``, then first_s, and twice as long after each
    further one, most_s at most."""
    if times <= free:
        return 0.0
    return min(most_s, first_s * 2.0 ** min(times - free - 1, _DOUBLINGS))
