"""Where metric points come from: metrics.jsonl (`reported`), rules over the log (`log_rules`), TensorBoard files; and
which of them may be sent now.

A source is read forward from a cursor and returns frames for the server, one at a time; its cursor moves when the
server has committed the frame. Points that are sent twice change nothing: the server keeps one value per learner,
series and step. One frame of each source is in flight, at a bounded rate.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from learner_agent.wire import Ack, Metric, Nack
from learner_agent.wire_fields import LATEST_MS, MAX_OFFSET, NAME_CHARS, NOT_FINITE, Point

logger = logging.getLogger(__name__)

BATCH_POINTS = 1_000
"""Points after which a source ends a frame."""
INTERVAL_S = 0.5
"""Points that follow a frame sooner than this wait for the next one: no chart is drawn faster."""
EARLIEST_S = 10**9
"""A time before (the year 2001) is none: most likely it is a duration, or counts from the start of the program."""
_LATEST_S = LATEST_MS // 1000
"""Seconds since the epoch above which a time is not one."""


class PointSource(Protocol):
    """name is the cursor's name on the wire; label is what users read."""

    name: str
    label: str

    @property
    def cursor(self) -> int: ...

    def read(self) -> Metric | None:
        """Return the next frame, or None if there is nothing new. Without confirm it begins at the same cursor."""

    def confirm(self, frame: Metric) -> None:
        """Move past the frame that read() returned last, which the server has committed."""

    def rewind(self, cursor: int) -> None:
        """Continue from the server's cursor. A source that keeps its own position in the spool ignores it."""


class MetricSender:
    """Reads sources and keeps each frame until the server has committed it.

    on_unreadable gets the label of a source that failed and its error; that source is not read again.
    """

    def __init__(self, on_unreadable: Callable[[str, Exception], None]) -> None:
        self.sources: list[PointSource] = []
        self._on_unreadable = on_unreadable
        self._in_flight: dict[str, Metric] = {}
        self._cursors: dict[str, int] = {}
        self._sent_at = 0.0

    def use(self, sources: list[PointSource]) -> None:
        """Take points from these sources from now on."""
        self.sources = sources
        self.restart(self._cursors)

    def restart(self, cursors: dict[str, int]) -> None:
        """Continue from the server's cursors on a new connection."""
        self._cursors = cursors
        self._in_flight.clear()
        for source in self.sources:
            source.rewind(cursors.get(source.name, 0))

    def wait_s(self) -> float:
        """Seconds until the next frame may be sent; at most 0 if it may be now."""
        return self._sent_at + INTERVAL_S - time.monotonic()

    def frames(self) -> Iterator[Metric]:
        """Yield the next frame of each source that has none in flight."""
        for source in self.sources:
            if source.name in self._in_flight:
                continue
            frame = self.read(source)
            if frame is not None:
                self._sent_at = time.monotonic()
                self._in_flight[source.name] = frame
                yield frame

    def is_drained(self) -> bool:
        """True if no source has anything left and nothing of them is in flight."""
        return not self._in_flight and all(self.read(source) is None for source in self.sources)

    def take_ack(self, ack: Ack) -> None:
        for source in self.sources:
            frame = self._in_flight.get(source.name)
            if frame is not None and ack.metrics.get(source.name, -1) >= frame.next:
                source.confirm(self._in_flight.pop(source.name))

    def take_nack(self, nack: Nack) -> None:
        for source in self.sources:
            if source.name == nack.stream:
                self._in_flight.pop(source.name, None)
                source.rewind(nack.next)

    def log_needed_from(self) -> int:
        """The first byte of the log that a source has yet to read."""
        return min([source.cursor for source in self.sources if source.name == "rules"], default=MAX_OFFSET)

    def read(self, source: PointSource) -> Metric | None:
        """Read a source. One that fails, whatever a program wrote, must cost no log, no files and no exit code."""
        try:
            return source.read()
        except Exception as error:
            logger.exception("metrics are not readable", extra={"source": source.name})
            self.sources = [other for other in self.sources if other is not source]
            self._on_unreadable(source.label, error)
            return None


def _number(value: Any) -> float | None:
    """Read a number or one of the strings that `wire.number_out` writes; None for anything else."""
    if isinstance(value, str):
        return NOT_FINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def point_of(name: Any, step: Any, at_ms: int, value: Any) -> Point | None:
    """Make a point of what a program wrote, or None if its step or value is not a number."""
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= MAX_OFFSET:
        return None
    number = _number(value)
    if number is None:
        return None
    # PostgreSQL text holds neither NUL nor lone surrogates.
    text = str(name).replace("\0", "").encode("utf-8", "replace").decode("utf-8", "replace")
    clean = text[:NAME_CHARS].strip()
    return (clean, step, at_ms, number) if clean else None


def time_ms(time_s: Any) -> int:
    """Milliseconds since the epoch of a time in seconds that a program wrote; 0 if it is not one."""
    return int(time_s * 1000) if isinstance(time_s, (int, float)) and EARLIEST_S <= time_s < _LATEST_S else 0
