"""How long a server that failed is left alone: longer after each further failure."""

from __future__ import annotations

PAUSE_S, PAUSE_MAX_S = 15.0, 600.0


def pause_after(failures: int) -> float:
    """Seconds until it is asked again. failures: in a row, 1 or more."""
    return min(PAUSE_S * 2.0 ** min(failures - 1, 20), PAUSE_MAX_S)
