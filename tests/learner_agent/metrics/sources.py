"""What a program leaves for each source of points, and the frames that the source makes of it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

from learner_agent.log_segments import LogWriter
from learner_agent.shipper.metrics import PointSource
from learner_agent.shipper.metrics.log_rules import LogRules
from learner_agent.shipper.metrics.reported import ReportedMetrics
from learner_agent.shipper.metrics.tensorboard import TensorBoard
from learner_agent.spool import Spool
from learner_agent.wire import Metric, decode, encode
from learner_agent.wire_fields import MAX_POINTS, Point

LOSS = r"step=(?P<step>\d+) loss=(?P<loss>\S+)"
Notes = list[tuple[str, str]]
"""(code, message) of what a source reports."""


def iter_frames(source: PointSource) -> Iterator[Metric]:
    """The frames of all that a source has."""
    while (frame := source.read()) is not None:
        assert frame.next >= frame.off
        assert len(frame.points) <= MAX_POINTS
        assert decode(encode(frame)) == frame
        source.confirm(frame)
        yield frame


def drain(source: PointSource) -> list[Point]:
    """All points a source has, frame by frame."""
    return [point for frame in iter_frames(source) for point in frame.points]


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


EPOCH_S = 1_767_225_600
"""A time that programs may write."""
TWELVE = [
    {"step": step, "time": EPOCH_S + 10 * epoch + step, "loss": 12.0 - epoch}
    for epoch in range(12)
    for step in range(5)
]
"""Five steps that begin again with each of twelve epochs."""


def reported(spool: Spool, notes: Notes | None = None, **more: Any) -> ReportedMetrics:
    return ReportedMetrics(spool, on_note=_noted(notes), **more)


def event_files(spool: Spool, notes: Notes | None = None, **more: Any) -> TensorBoard:
    return TensorBoard(spool, [spool.root.parent / "tb"], _noted(notes), scan_every_s=0.0, **more)


def write_events(spool: Spool, rows: list[dict[str, Any]], name: str = "events.out.tfevents.1.host") -> None:
    folder = spool.root.parent / "tb"
    folder.mkdir(exist_ok=True)
    with (folder / name).open("ab") as out:
        for row in rows:
            out.write(record(event(row["step"], simple("loss", row["loss"]))))


def log(spool: Spool, text: bytes) -> None:
    writer = LogWriter(spool)
    for at in range(0, len(text), 37):  # lines are cut anywhere
        writer.write(text[at : at + 37], 1_700_000_000_000)
    writer.close()


def rules(spool: Spool, *patterns: str, notes: Notes | None = None, **more: Any) -> LogRules:
    return LogRules(spool, patterns or [LOSS], on_note=_noted(notes), **more)


def _noted(notes: Notes | None) -> Callable[[str, str], None]:
    found = [] if notes is None else notes
    return lambda code, message: found.append((code, message))


def epochs(count: int, steps: int) -> bytes:
    lines = [(e, n) for e in range(count) for n in range(1, steps + 1)]
    return b"".join(b"step=%d loss=%d\n" % (n, 100 * e + n) for e, n in lines)


def places(points: list[Point], name: str = "loss") -> list[int]:
    return [step for found, step, _, _ in points if found == name]


def varint(value: int) -> bytes:
    out = b""
    while True:
        value, low = value >> 7, value & 127
        out += bytes([low | (128 if value else 0)])
        if not value:
            return out


def field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def simple(tag: str, value: float) -> bytes:
    return field(5, field(1, scalar(tag, value)))


def scalar(tag: str, value: float) -> bytes:
    return field(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value)


def tensor(tag: str, kind: int, content: bytes, number: int = 4) -> bytes:
    return field(5, field(1, field(1, tag.encode()) + field(8, field(1, kind) + field(number, content))))


def event(step: int, summary: bytes, at: float = 1_700_000_000.25) -> bytes:
    return varint(1 << 3 | 1) + struct.pack("<d", at) + field(2, step) + summary


def record(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + b"sum1" + content + b"sum2"


def write_timed(spool: Spool, rows: list[tuple[int, float, float]], name: str) -> None:
    """rows: step, loss, time."""
    folder = spool.root.parent / "tb"
    folder.mkdir(exist_ok=True)
    with (folder / name).open("ab") as out:
        for step, loss, at in rows:
            out.write(record(event(step, simple("loss", loss), at=at)))
