"""Points in metrics.jsonl, which training.report or any program writes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from learner_agent.shipper.metrics import BATCH_POINTS, point_of, time_ms
from learner_agent.spool import TORN
from learner_agent.wire import Metric
from learner_agent.wire_fields import MAX_OFFSET, MAX_POINTS, Point

READ_BYTES = 256 * 1024
MAX_LINE = 64 * 1024
"""Longer lines of metrics.jsonl are skipped."""
SKIPPED_SHOWN = 80
SEVERAL = "Write several lines with the same step"


class ReportedMetrics:
    """metrics.jsonl: one object per line, {"step", "time", "total"?, name: value …}. The cursor is a byte offset.

    A line may have a step alone. One with neither that nor a point is skipped; on_skipped gets a message about the
    first one.
    """

    name = "jsonl"
    label = "metrics.jsonl"

    def __init__(self, path: Path, on_skipped: Callable[[str], None] = lambda message: None) -> None:
        self.path = path
        self.cursor = 0
        self._on_skipped, self._has_skipped = on_skipped, False

    def rewind(self, cursor: int) -> None:
        self.cursor = cursor

    def confirm(self, frame: Metric) -> None:
        self.cursor = frame.next

    def read(self) -> Metric | None:
        try:
            if os.stat(self.path).st_size <= self.cursor:
                return None
            with self.path.open("rb", buffering=0) as source:
                source.seek(self.cursor)
                data = source.read(READ_BYTES) or b""
        except OSError:
            return None
        points: list[Point] = []
        bare: list[int] = []  # steps of lines without a number
        total, at = None, 0
        while len(points) < BATCH_POINTS:
            end = data.find(b"\n", at)
            if end < 0:
                if at == 0 and len(data) == READ_BYTES:
                    self._skip(data)
                    at = len(data)  # a line of this length is no report: skip it piece by piece
                break
            found, step, whole = self._line(data[at:end])
            if points and len(points) + len(found) > MAX_POINTS:
                break  # it begins the next frame
            points.extend(found[:MAX_POINTS])
            if len(found) > MAX_POINTS:
                self._skip(data[at:end], many=True)
            total = whole if whole is not None else total
            if not found and step is not None:
                bare.append(step)
            elif not found and whole is None:
                self._skip(data[at:end])
            at = end + 1
        steps = (min(bare), max(bare)) if bare else None
        return Metric(self.name, self.cursor, self.cursor + at, points, total, steps=steps) if at else None

    def _skip(self, line: bytes, *, many: bool = False) -> None:
        if not line.strip() or line.endswith(TORN) or self._has_skipped:
            return
        self._has_skipped = True
        shown = line[:SKIPPED_SHOWN].decode("utf-8", "replace")
        if many:
            why = f"has more than {MAX_POINTS:,} metrics: {shown!r}. {SEVERAL}; the rest of this line is skipped."
        elif len(line) > MAX_LINE:
            why = f"is longer than {MAX_LINE // 1024} KiB: {shown!r}. {SEVERAL}; lines like this one are skipped."
        else:
            why = f"has no metric: {shown!r}. Each line is one JSON object with an integer step of at least 0 and "
            why += "numbers by name; lines like this one are skipped."
        self._on_skipped(f"A line of metrics.jsonl {why}")

    def _line(self, text: bytes) -> tuple[list[Point], int | None, int | None]:
        """A line's points, its step if it has no number beside, and its total."""
        # Python's own parser: programs write NaN and Infinity as its json.dumps does, and others refuse them.
        try:
            line = json.loads(text) if len(text) <= MAX_LINE else None
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            return [], None, None
        step, total, at_ms = line.pop("step", None), line.pop("total", None), time_ms(line.pop("time", None))
        points = [point_of(name, step, at_ms, value) for name, value in line.items()]
        bare = None if line else point_of("step", step, at_ms, 0.0)
        whole = isinstance(total, int) and not isinstance(total, bool) and 0 <= total <= MAX_OFFSET
        return [found for found in points if found is not None], bare and bare[1], total if whole else None
