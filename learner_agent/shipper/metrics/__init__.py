"""Where metric points come from: metrics.jsonl (`reported`), rules over the log (`log_rules`), TensorBoard files.

A source is read forward from a cursor and returns frames for the server, one at a time; its cursor moves when the
server has committed the frame. Points that are sent twice change nothing: the server keeps one value per learner,
series and step.
"""

from __future__ import annotations

from typing import Protocol

from learner_agent.wire import Metric

BATCH_POINTS = 1_000
"""Points after which a source ends a frame."""


class PointSource(Protocol):
    """name is the cursor's name on the wire."""

    name: str

    @property
    def cursor(self) -> int: ...

    def read(self) -> Metric | None:
        """Return the next frame, or None if there is nothing new. Without confirm it begins at the same cursor."""

    def confirm(self, frame: Metric) -> None:
        """Move past the frame that read() returned last, which the server has committed."""

    def rewind(self, cursor: int) -> None:
        """Continue from the server's cursor. A source that keeps its own position in the spool ignores it."""
