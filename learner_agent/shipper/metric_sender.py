"""Which points may be sent now: one frame of each source in flight, at a bounded rate. No socket."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from learner_agent.shipper.metrics import PointSource
from learner_agent.wire import Ack, Metric, Nack
from learner_agent.wire_fields import MAX_OFFSET

logger = logging.getLogger(__name__)

INTERVAL_S = 0.5
"""Points that follow a frame sooner than this wait for the next one: no chart is drawn faster."""


class MetricSender:
    """Reads sources and keeps each frame until the server has committed it.

    on_unreadable gets the name of a source that failed and its error; that source is not read again.
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
            self._on_unreadable(source.name, error)
            return None
