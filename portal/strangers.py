"""Lines of the log about clients that are refused before anyone knows who they are: some, and how many more there were.

Who may connect without an account could otherwise fill the disk with them, and hide what others did.
"""

from __future__ import annotations

import logging
import time
from collections import Counter

from portal.budgets import WINDOW_S, shared_address

LINES, LINES_IN_ALL = 20, 200
"""In a minute: of one address, and of all together."""


class Lines:
    """Those of the current minute, by address."""

    def __init__(self) -> None:
        self._by_address: Counter[str | None] = Counter()
        self._until = 0.0
        self._left_out = 0

    def take(self, address: str, now: float) -> int | None:
        """How many were left out since the last line; None if this one is to be left out as well. now: in seconds."""
        if now >= self._until:
            self._until = now + WINDOW_S
            self._by_address.clear()
        shared = shared_address(address)
        if self._by_address.total() >= LINES_IN_ALL or self._by_address[shared] >= LINES:
            self._left_out += 1
            return None
        self._by_address[shared] += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


_lines = Lines()


def warn(logger: logging.Logger, what: str, address: str, **more: object) -> None:
    """Log a refusal. left_out: how many of this process were not logged since the last one that was."""
    left_out = _lines.take(address, time.monotonic())
    if left_out is not None:
        logger.warning(
            what, extra={"address": address, **more} | ({"left_out": left_out} if left_out else {})
        )
