"""Points in metrics.jsonl, which training.report or any program writes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from learner_agent.shipper.metrics import BATCH_POINTS, point_of, time_ms
from learner_agent.shipper.metrics.axes import BARE, Axes, Notes, Place, Placed
from learner_agent.spool import TORN, Spool
from learner_agent.untrusted_files import LARGE_BYTES
from learner_agent.wire import Metric
from learner_agent.wire_fields import MAX_OFFSET, MAX_POINTS, SECONDS_PER_STEP, Point

STATE = "shipper/reported.json"
READ_BYTES = 256 * 1024
REREAD_S = 0.1
"""In one go, of what the server has already: heartbeats and the log wait for it."""
SAVE_BYTES = 1024 * 1024
"""After so much of the file the state is saved; what follows is read again after a restart."""
MAX_LINE = 64 * 1024
"""Longer lines of metrics.jsonl are skipped."""
SKIPPED_SHOWN = 80
SEVERAL = "Write several lines with the same step"
TIMED_MS = 1_000
"""Steps without a number give a point of their time at most so often."""


class StepClock(Struct, frozen=True):
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


class _State(Struct):
    """What the points after a position in the file depend on. A program may write anything into the file of it."""

    at: Place = 0
    axes: Axes = msgspec.field(default_factory=Axes)
    clock: StepClock = StepClock()


class ReportedMetrics:
    """metrics.jsonl: one object per line, {"step", "time", "total"?, name: value …}. The cursor is a byte offset.

    A line may have a step alone; the times of such steps become points of SECONDS_PER_STEP. A line with neither that
    nor a point is skipped; on_skipped gets a message about the first one. ``axes`` says where points of a step that
    falls back are; ends: where metrics that were in order ended in earlier attempts. on_note gets code and message of a
    step that fell back, and of points that are not stored.

    The server says from where on it lacks points. What they depend on is in the lines before: it is kept, or read
    again.
    """

    name = "jsonl"
    label = "metrics.jsonl"

    def __init__(
        self,
        spool: Spool,
        on_skipped: Callable[[str], None] = lambda message: None,
        on_note: Callable[[str, str], None] = lambda code, message: None,
        ends: Mapping[str, int] | None = None,
    ) -> None:
        self.path, self._spool = spool.metrics, spool
        self.cursor = 0
        self._state = self._next = (
            _State()
        )  # at the cursor, or before it; and after the frame that was read last
        self._saved = _State()
        self._on_skipped, self._has_skipped = on_skipped, False
        self._ends = ends or {}
        with suppress(msgspec.ValidationError):
            saved = spool.read(STATE, most=LARGE_BYTES)
            self._saved = msgspec.convert(saved, _State) if saved is not None else _State()
        self._notes = Notes(on_note, self.label, self._saved.axes)

    def rewind(self, cursor: int) -> None:
        if cursor < self._state.at:
            self._state = self._saved if self._saved.at <= cursor else _State()
        elif self._state.at < self._saved.at <= cursor:
            self._state = self._saved
        self.cursor = cursor

    def confirm(self, frame: Metric) -> None:
        self._notes.fell(self._state.axes, self._next.axes)
        self.cursor, self._state = frame.next, self._next
        if self._state.at >= self._saved.at + SAVE_BYTES:
            self._saved = self._state
            with suppress(OSError):  # a full disk: after a restart more is read again
                self._spool.write(STATE, msgspec.to_builtins(self._saved))
        self._notes.dropped(self._state.axes)

    def end(self) -> None:
        """The program has ended: what is not stored is reported in full."""
        self._notes.ended = True
        self._notes.dropped(self._state.axes)

    def read(self) -> Metric | None:
        until = time.monotonic() + REREAD_S
        while self._state.at < self.cursor:  # the server has these points
            passed = self._read(self._state, self.cursor - self._state.at)
            self._state = replace(self._state, at=self.cursor) if passed is None else passed[1]
            if self._state.at < self.cursor and time.monotonic() > until:
                self._next = self._state
                return Metric(self.name, self.cursor, self.cursor, [])  # and on with the next frame
        found = self._read(self._state, READ_BYTES)
        if found is None:
            return None
        self._next = found[1]
        return found[0]

    def _read(self, state: _State, most: int) -> tuple[Metric, _State] | None:
        """The points after a position, of at most so many bytes, and what those after them depend on."""
        most = min(most, READ_BYTES)
        try:
            if os.stat(self.path).st_size <= state.at:
                return None
            with self.path.open("rb", buffering=0) as source:
                source.seek(state.at)
                data = source.read(most) or b""
        except OSError:
            return None
        placed, axes, clock = Placed(), state.axes.copy(), state.clock
        total, at = None, 0
        while len(placed.points) < BATCH_POINTS:
            end = data.find(b"\n", at)
            if end < 0:
                if at == 0 and len(data) == READ_BYTES:
                    self._skip(data)
                    at = len(data)  # a line of this length is no report: skip it piece by piece
                break
            found, bare_at, whole = self._line(data[at:end])
            if placed.points and len(placed.points) + len(found) > MAX_POINTS:
                break  # it begins the next frame
            if len(found) > MAX_POINTS:
                self._skip(data[at:end], many=True)
            total = whole if whole is not None else total
            if any(point[0] == SECONDS_PER_STEP for point in found):
                clock = StepClock(has_own=True)
            points = found[:MAX_POINTS]
            if bare_at is not None:
                clock, timed = clock.at(*bare_at)
                points = [(BARE, *bare_at, 0.0), *([timed] if timed else [])]
            elif not found and whole is None:
                self._skip(data[at:end])
            axes.place(points, placed, self._ends, self.label)
            at = end + 1
        if not at:
            return None
        frame = Metric(
            self.name, state.at, state.at + at, placed.points, total,
            in_order=sorted(placed.in_order), steps=placed.steps, fell_ms=placed.fell_ms,
        )  # fmt: skip
        return frame, _State(state.at + at, axes, clock)

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
