"""How the sum of all limits of a type has moved, as a line of steps. Pure; console/quota_history.html draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Steps:
    """line: path data in a box of 100 × 100; capacity: the height of its line there."""

    line: str
    capacity: str
    first: datetime
    last: datetime


def steps(
    moves: Sequence[tuple[datetime, int]], *, total: int, capacity: int, first: datetime, last: datetime
) -> Steps:
    """moves: when the sum changed and by how much, oldest first; total: what it is in the end."""
    value = total - sum(by for _, by in moves)
    heights = [value]
    for _, by in moves:
        heights.append(heights[-1] + by)
    top = 1.1 * max(1, capacity, *heights)
    span = (last - first).total_seconds() or 1

    def y(count: int) -> str:
        return f"{100 - 100 * count / top:.2f}"

    line = f"M0 {y(value)}"
    for (at, _), height in zip(moves, heights[1:], strict=True):
        line += f"H{100 * (at - first).total_seconds() / span:.2f}V{y(height)}"
    return Steps(f"{line}H100", y(capacity), first, last)
