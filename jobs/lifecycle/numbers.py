"""When the numbers of explanations are written again, where nothing but them has changed.

In a long queue each start moves the position of every job behind it, so to write all of them after each pass costs the
database more than all decisions do, and the next pass begins later.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from gpu_scheduler.model import Explanation
from jobs.lifecycle.plan_effects import NUMBERS_ONLY, explain_moved

NEAREST = 50
"""The nearest to their start, whose numbers each pass writes."""
MOST, AT_ONCE, AT_MOST_S = NUMBERS_ONLY, 150, 0.2
"""Of the others, MOST in a turn: no more are begun after AT_MOST_S, as the next pass waits."""
RESTS = 9.0
"""Then they rest for so many times as long as writing them took: it takes a tenth of the time."""

_rests_until = 0.0
_next = NEAREST
"""Where the next turn begins: behind what the last one wrote, so that all have their turn."""


def explain(moved: Sequence[Explanation]) -> None:
    """Write the new numbers of these, the nearest to their start first, as far as it is their turn."""
    global _next, _rests_until
    explain_moved(moved[:NEAREST])
    began = time.monotonic()
    if len(moved) <= NEAREST or began < _rests_until:
        return
    first, now = (_next if NEAREST <= _next < len(moved) else NEAREST), began
    end = min(first + MOST, len(moved))
    while first < end and now - began <= AT_MOST_S:
        explain_moved(moved[first : min(first + AT_ONCE, end)])
        first, now = min(first + AT_ONCE, end), time.monotonic()
    _next = first
    _rests_until = now + RESTS * (now - began)
