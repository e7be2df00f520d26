"""Points in TensorBoard event files below the directories of a job."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from learner_agent.shipper.metrics import BATCH_POINTS, point_of, time_ms
from learner_agent.shipper.metrics.axes import Axes, Notes, Placed, Writer
from learner_agent.shipper.metrics.event_files import (
    HEAD_BYTES,
    NotAnEventFile,
    Scalar,
    began_s,
    records,
    scalars,
)
from learner_agent.shipper.outputs import LinkedFolder, entries, open_file
from learner_agent.spool import Spool
from learner_agent.untrusted_files import LARGE_BYTES, number_or
from learner_agent.wire import Metric, number_out
from learner_agent.wire_fields import MAX_OFFSET, MAX_POINTS, Point

STATE = "shipper/tensorboard.json"
READ_BYTES = 1024 * 1024


def skip_present(spool: Spool, roots: list[Path]) -> None:
    """Take the event files that are there now for read: an earlier attempt wrote them. Raises OSError."""
    found = [path for root in roots for path in _files(root)]
    spool.write(STATE, {"offsets": {str(path): path.stat().st_size for path in found if path.is_file()}})


@dataclass
class TensorBoard:
    """Every ``*tfevents*`` file below roots. offsets: bytes read of each file; the cursor is their sum.

    ``axes`` says where points of a step that falls back are; ends: where metrics that were in order ended in earlier
    attempts. on_note gets code and message of a step that fell back, and of points that are not stored.
    """

    spool: Spool
    roots: list[Path]
    on_note: Callable[[str, str], None] = lambda code, message: None
    ends: Mapping[str, int] = field(default_factory=dict)
    name: str = "tb"
    label: str = "TensorBoard files"
    cursor: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    scan_every_s: float = 2.0
    _next_offsets: dict[str, int] = field(default_factory=dict)
    _axes: Axes = field(default_factory=Axes)
    _next_axes: Axes = field(default_factory=Axes)
    _next_scan_at: float = 0.0
    _unread: list[tuple[Path, Path]] = field(default_factory=list)  # of the last scan, the next one last

    def __post_init__(self) -> None:
        saved = self.spool.read(STATE, most=LARGE_BYTES) or {}
        offsets = saved.get("offsets")
        with suppress(msgspec.ValidationError):
            self._axes = msgspec.convert(saved.get("axes", {}), Axes)
        self._notes = Notes(self.on_note, self.label, self._axes)
        # Of a shipper of the version before, these are all that is there.
        numbers = {
            path: int(number_or(at, 0))
            for path, at in (offsets if isinstance(offsets, dict) else saved).items()
        }
        # A program may have written anything there.
        self.offsets = numbers if sum(numbers.values()) < MAX_OFFSET else {}
        self.cursor = sum(self.offsets.values())

    def rewind(self, cursor: int) -> None:
        """Do nothing: the position is in the spool, and reading from an older one changes nothing."""

    def confirm(self, frame: Metric) -> None:
        self._notes.fell(self._axes, self._next_axes)
        self.offsets, self._axes, self.cursor = self._next_offsets, self._next_axes, frame.next
        with suppress(OSError):  # a full disk: after a restart some points are sent again
            self.spool.write(STATE, {"offsets": self.offsets, "axes": msgspec.to_builtins(self._axes)})
        self._notes.dropped(self._axes)

    def read(self) -> Metric | None:
        """Return the next points.

        None while the next scan is not due (scan_every_s), or if a scan that began in this call found nothing new.
        """
        while True:
            scans = not self._unread
            if scans:
                if time.monotonic() < self._next_scan_at:
                    return None
                self._unread = [(root, path) for root in self.roots for path in _files(root)][::-1]
            while self._unread:
                frame = self._read_file(*self._unread[-1])
                if frame is not None:
                    return frame  # and again from this file, until it has no more
                self._unread.pop()
            if scans:
                self._next_scan_at = time.monotonic() + self.scan_every_s
                return None

    def end(self) -> None:
        """The program has ended: from now on None means that nothing is left."""
        self.scan_every_s = self._next_scan_at = 0.0
        self._notes.ended = True
        self._notes.dropped(self._axes)

    def _read_file(self, root: Path, path: Path) -> Metric | None:
        key = str(path)
        start = self.offsets.get(key, 0)
        try:
            if path.stat().st_size <= start:  # opened only if there may be more
                return None
            with open_file(root, path) as source:
                size = os.fstat(source.fileno()).st_size
                head = os.pread(source.fileno(), HEAD_BYTES, 0)
                source.seek(start)
                data = source.read(READ_BYTES)
        except OSError:
            return None
        run = path.parent.relative_to(root).as_posix()
        placed, axes, used = Placed(), self._axes.copy(), 0
        by = Writer(zlib.crc32(os.fsencode(path)), time_ms(began_s(head)))
        try:
            for end, event in records(data):
                points = [point for scalar in scalars(event) if (point := _point(run, scalar))]
                if placed.points and len(placed.points) + len(points) > MAX_POINTS:
                    break  # it begins the next frame
                used = end
                axes.over += max(0, len(points) - MAX_POINTS)
                axes.place(points[:MAX_POINTS], placed, self.ends, self.label, by)
                if len(placed.points) >= BATCH_POINTS:
                    break
        except NotAnEventFile:
            used = size - start  # never read again
        if not used and len(data) == READ_BYTES:
            used = _size_of_record(data)  # a record larger than one read is an image or a graph: skip it
        if not used:
            return None
        self._next_offsets, self._next_axes = {**self.offsets, key: start + used}, axes
        return Metric(
            self.name, self.cursor, self.cursor + used, placed.points,
            in_order=sorted(placed.in_order), steps=placed.steps, fell_ms=placed.fell_ms,
        )  # fmt: skip


def _files(root: Path) -> list[Path]:
    try:
        return sorted(path for path in entries(root) if "tfevents" in path.name)
    except LinkedFolder:
        return []


def _point(run: str, scalar: Scalar) -> Point | None:
    name = scalar.tag if run == "." else f"{run}/{scalar.tag}"
    return point_of(name, scalar.step, time_ms(scalar.time_s), number_out(scalar.value))


def _size_of_record(data: bytes) -> int:
    return 12 + int.from_bytes(data[:8], "little") + 4
