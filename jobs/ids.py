"""Ids of jobs and uploads: 12 lower-case Crockford base-32 characters, the first six from the clock: they sort by
time."""

from __future__ import annotations

import secrets
import threading
import time

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
LENGTH = 12
EPOCH_S = 1_577_836_800  # 2020-01-01 UTC; 30 bits of seconds last until 2054
TICKS_PER_S = 1024
RANDOM_BITS = 20
STEP_BACK = 2 * TICKS_PER_S << RANDOM_BITS
"""Two seconds. Where the clock is further behind the newest id, it was wrong before, and ids are by its time again."""

_lock = threading.Lock()
_last = 0


def _encode(value: int, digits: int) -> str:
    return "".join(ALPHABET[(value >> (5 * place)) & 31] for place in reversed(range(digits)))


def new_id() -> str:
    """Make a fresh id: six characters of seconds, two of their parts, four of randomness.

    Those of one process increase, so that what one client makes one after the other is in that order; not where the
    clock is set back by more than STEP_BACK.
    """
    global _last
    fresh = int((time.time() - EPOCH_S) * TICKS_PER_S) << RANDOM_BITS | secrets.randbits(RANDOM_BITS)
    with _lock:
        is_due = fresh > _last or fresh < _last - STEP_BACK
        _last = fresh if is_due else _last + 1 + secrets.randbelow(TICKS_PER_S)
        return _encode(_last, LENGTH)


def is_job_id(text: str) -> bool:
    """Say whether text has the shape of a job id; case must already be lower."""
    return len(text) == LENGTH and all(letter in ALPHABET for letter in text)


def may_begin_id(text: str) -> bool:
    """Say whether a job id may begin with text."""
    return 0 < len(text) <= LENGTH and all(letter in ALPHABET for letter in text)
