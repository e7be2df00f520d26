"""What all sources of metric points share: the protocol, a batch, and the check of one point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from learner_agent.wire import MAX_OFFSET, NAME_CHARS, Point, number_in

BATCH_POINTS = 1_000
READ_BYTES = 256 * 1024
LATEST_S = 2**41
"""Seconds since the epoch above which a time is not one."""


@dataclass(frozen=True)
class Batch:
    """Points read between two cursors; state is what the source needs to continue after them."""

    off: int
    next: int
    points: list[Point]
    total: int | None = None
    state: Any = None


class MetricSource(Protocol):
    """Read forward from a cursor, one batch at a time; the cursor moves when the server has committed the batch.

    name is the cursor's name on the wire. A batch that is sent twice changes nothing: the server keeps one value per
    learner, series and step.
    """

    name: str

    @property
    def cursor(self) -> int: ...

    def read(self) -> Batch | None:
        """Return the next batch, or None if there is nothing new."""

    def confirm(self, batch: Batch) -> None:
        """Move past a batch that the server has committed."""

    def rewind(self, cursor: int) -> None:
        """Continue from the server's cursor. A source that keeps its own position in the spool ignores it."""


def point(name: Any, step: Any, at_ms: int, value: Any) -> Point | None:
    """Make a point of what a program wrote, or None if its step or value is not a number."""
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= MAX_OFFSET:
        return None
    number = number_in(value)
    if number is None:
        return None
    # PostgreSQL text holds neither NUL nor lone surrogates.
    text = str(name).replace("\0", "").encode("utf-8", "replace").decode("utf-8", "replace")
    clean = text[:NAME_CHARS].strip()
    return (clean, step, at_ms, number) if clean else None


def at_ms(time_s: Any) -> int:
    """Milliseconds since the epoch of a time in seconds that a program wrote; 0 if it is not one."""
    return int(time_s * 1000) if isinstance(time_s, (int, float)) and 0 < time_s < LATEST_S else 0
