"""Points in metrics.jsonl, which training.report or any program writes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from learner_agent.shipper.metrics import BATCH_POINTS, point_of, time_ms
from learner_agent.spool import TORN
from learner_agent.wire import Metric
from learner_agent.wire_fields import MAX_OFFSET, MAX_POINTS, SECONDS_PER_STEP, Point

READ_BYTES = 256 * 1024
MAX_LINE = 64 * 1024
"""Longer lines of metrics.jsonl are skipped."""
SKIPPED_SHOWN = 80
SEVERAL = "Write several lines with the same step"
TIMED_MS = 1_000
"""Steps without a number give a point of their time at most so often."""


@dataclass(frozen=True)
class StepClock:
    """Times steps that are reported without a number. since: the step and the time of the last point, or of the first
    such step. has_own: the program reports this metric by itself, so that nothing is added to it.
    """

    since: tuple[int, int] | None = None
    has_own: bool = False

    def at(self, step: int, at_ms: int) -> tuple[StepClock, Point | None]:
        """The clock after such a step, and the point that it gives: mean seconds per step since the one before."""
        if self.has_own or not at_ms:
            return self, None
        if self.since is None or step < self.since[0] or at_ms < self.since[1]:
            return replace(self, since=(step, at_ms)), None  # it begins, or a counter or a clock was set back
        steps, ms = step - self.since[0], at_ms - self.since[1]
        if not steps or ms < TIMED_MS:
            return self, None
        return replace(self, since=(step, at_ms)), (SECONDS_PER_STEP, step, at_ms, ms / 1000 / steps)


class ReportedMetrics:
    """metrics.jsonl: one object per line, {"step", "time", "total"?, name: value …}. The cursor is a byte offset.

    A line may have a step alone; the times of such steps become points of SECONDS_PER_STEP. A line with neither that
    nor a point is skipped; on_skipped gets a message about the first one.
    """

    name = "jsonl"
    label = "metrics.jsonl"

    def __init__(self, path: Path, on_skipped: Callable[[str], None] = lambda message: None) -> None:
        self.path = path
        self.cursor = 0
        self._clock = self._clock_then = StepClock()  # at the cursor, and after the frame that was read last
        self._on_skipped, self._has_skipped = on_skipped, False

    def rewind(self, cursor: int) -> None:
        if cursor != self.cursor:
            self._clock = StepClock(has_own=self._clock.has_own)
        self.cursor = cursor

    def confirm(self, frame: Metric) -> None:
        self.cursor, self._clock = frame.next, self._clock_then

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
        total, at, clock = None, 0, self._clock
        while len(points) < BATCH_POINTS:
            end = data.find(b"\n", at)
            if end < 0:
                if at == 0 and len(data) == READ_BYTES:
                    self._skip(data)
                    at = len(data)  # a line of this length is no report: skip it piece by piece
                break
            found, bare_at, whole = self._line(data[at:end])
            if points and len(points) + len(found) > MAX_POINTS:
                break  # it begins the next frame
            points.extend(found[:MAX_POINTS])
            if len(found) > MAX_POINTS:
                self._skip(data[at:end], many=True)
            total = whole if whole is not None else total
            if any(point[0] == SECONDS_PER_STEP for point in found):
                clock = StepClock(has_own=True)
            if bare_at is not None:
                bare.append(bare_at[0])
                clock, timed = clock.at(*bare_at)
                points += [timed] if timed else []
            elif not found and whole is None:
                self._skip(data[at:end])
            at = end + 1
        steps = (min(bare), max(bare)) if bare else None
        self._clock_then = clock
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

    def _line(self, text: bytes) -> tuple[list[Point], tuple[int, int] | None, int | None]:
        """A line's points, its step and time if it has no number beside, and its total."""
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
        return [found for found in points if found is not None], bare and bare[1:3], total if whole else None
