"""Frames between a learner's shipper and the server: the one definition that both ends share.

A frame is one binary websocket message: u8 kind, u16 header length (big endian), a JSON object, a payload.
``decode`` turns any bytes into a frame or raises ``WireError``, never anything else; what it returns has been
checked field by field. Standard library only, Python 3.8 or newer.

Who sends what: HELLO, DATA, METRIC, EVENT and FINAL go up; WELCOME, ACK and NACK come down; CKPT, BEAT and BYE
go both ways. Any frame may be repeated or lost with its connection: offsets and numbers make repeats harmless.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, Optional, Tuple, Type

from learner_agent.wire_checks import (
    MAX_WORLD,
    NAME_CHARS,
    Check,
    cursors,
    details,
    flag,
    maybe,
    one_of,
    path,
    rows,
    sha256,
    text,
    whole,
)
from learner_agent.wire_checks import WireError as WireError  # part of this room's face

PROTO = 1
MAX_HEADER = 65_535
MAX_DATA = 256 * 1024
"""Bytes of log in one DATA frame."""
MAX_MESSAGE = 1024 * 1024
"""Bytes of any one message; the server closes with 4413 before it buffers more."""
MAX_READS = 2_000
MAX_POINTS = 2_000
MAX_FILES = 5_000

CLOSE_BAD_FRAME = 4400
CLOSE_UNAUTHORIZED = 4401
CLOSE_FORBIDDEN = 4403
CLOSE_SILENT = 4408
CLOSE_FENCED = 4409
CLOSE_TOO_LARGE = 4413
CLOSE_RESTART = 1012
CLOSE_TRY_LATER = 1013

_PREFIX = struct.Struct(">BH")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class FrameType(enum.IntEnum):
    """The first byte of a frame."""

    HELLO = 1
    WELCOME = 2
    DATA = 3
    METRIC = 4
    EVENT = 5
    CKPT = 6
    ACK = 7
    NACK = 8
    BEAT = 9
    FINAL = 10
    BYE = 11


# --- frames


@dataclass(frozen=True)
class JobIntent:
    """What is requested of the job now; sent on WELCOME, ACK and BEAT. gen grows with each new request."""

    intent: str
    gen: int
    grace_s: int


def _job_intent(name: str, value: Any) -> JobIntent:
    if not isinstance(value, dict):
        raise WireError(f"{name}: an object is needed")
    return JobIntent(
        intent=one_of("RUN", "HALT", "CANCEL")(f"{name}.intent", value.get("intent")),
        gen=whole()(f"{name}.gen", value.get("gen")),
        grace_s=whole(0, 604_800)(f"{name}.grace_s", value.get("grace_s")),
    )


@dataclass(frozen=True)
class Hello:
    """First frame of a connection. log_from and log_to: the bytes of the stream that the spool still holds."""

    kind: ClassVar[FrameType] = FrameType.HELLO
    checks: ClassVar[Dict[str, Check]] = {
        "proto": whole(1, 99), "version": text(40), "job": text(40, least=1), "attempt": whole(1, 10**6),
        "rank": whole(0, 10**6), "boot": text(64), "log_from": whole(), "log_to": whole(),
        "gen_seen": whole(),
    }  # fmt: skip
    job: str
    attempt: int
    rank: int
    proto: int = PROTO
    version: str = ""
    boot: str = ""
    log_from: int = 0
    log_to: int = 0
    gen_seen: int = 0


@dataclass(frozen=True)
class Welcome:
    """The server's answer to HELLO: where to go on (always the server's word), the intent, and the limits."""

    kind: ClassVar[FrameType] = FrameType.WELCOME
    checks: ClassVar[Dict[str, Check]] = {
        "session": text(64), "now_ms": whole(), "log": whole(), "metrics": cursors, "sealed": flag,
        "intent": _job_intent, "beat_s": whole(1, 3600), "window": whole(1), "max_data": whole(1, MAX_DATA),
    }  # fmt: skip
    session: str
    now_ms: int
    log: int
    intent: JobIntent
    metrics: Dict[str, int] = field(default_factory=dict)
    sealed: bool = False
    beat_s: int = 2
    window: int = 4 * MAX_DATA
    max_data: int = MAX_DATA


@dataclass(frozen=True)
class Data:
    """Bytes of the log from offset off. reads: (bytes, milliseconds after t0) of each of the launcher's reads.

    gone > 0: a tombstone instead of bytes; that many bytes with lines newlines were not kept by the spool.
    """

    kind: ClassVar[FrameType] = FrameType.DATA
    checks: ClassVar[Dict[str, Check]] = {
        "off": whole(), "crc": whole(0, 2**32 - 1), "t0": whole(),
        "reads": rows(MAX_READS, whole(1, MAX_DATA), whole(0, 10**12)), "gone": whole(), "lines": whole(),
    }  # fmt: skip
    off: int
    payload: bytes = b""
    t0: int = 0
    reads: List[Tuple[int, int]] = field(default_factory=list)
    crc: int = 0
    gone: int = 0
    lines: int = 0

    @property
    def size(self) -> int:
        """How many bytes of the stream this frame stands for."""
        return self.gone or len(self.payload)

    def validate(self) -> None:
        if len(self.payload) > MAX_DATA:
            raise WireError(f"payload: at most {MAX_DATA} bytes of log in one frame")
        if bool(self.gone) == bool(self.payload):
            raise WireError("gone: a DATA frame carries either bytes or a tombstone")
        if self.gone and self.lines > self.gone:
            raise WireError("lines: more newlines than bytes")
        if self.payload and sum(size for size, _ in self.reads) != len(self.payload):
            raise WireError("reads: their sizes must add up to the payload's")
        if self.payload and zlib.crc32(self.payload) != self.crc:
            raise WireError("crc: does not match the payload")


Point = Tuple[str, int, int, float]
"""name, step, milliseconds since the epoch, value (NaN and infinities are values)."""


@dataclass(frozen=True)
class Metric:
    """Points out of one source, which they move from off to next. total: the program's announced last step."""

    kind: ClassVar[FrameType] = FrameType.METRIC
    checks: ClassVar[Dict[str, Check]] = {
        "src": text(NAME_CHARS, least=1), "off": whole(), "next": whole(), "total": maybe(whole()),
    }  # fmt: skip
    src: str
    off: int
    next: int
    points: List[Point] = field(default_factory=list)
    total: Optional[int] = None


@dataclass(frozen=True)
class Event:
    """Something that happened to the learner, told again after each reconnection until acknowledged.

    what: phase (data.phase), exit (code, signal, halted, finished), error (code, message), halt_seen (gen).
    ago_ms: how long ago it was when it was sent, by the sender's own clock.
    """

    kind: ClassVar[FrameType] = FrameType.EVENT
    checks: ClassVar[Dict[str, Check]] = {
        "n": whole(1), "what": one_of("phase", "exit", "error", "halt_seen"), "at_ms": whole(), "ago_ms": whole(),
        "data": details,
    }  # fmt: skip
    n: int
    what: str
    at_ms: int = 0
    data: Dict[str, Any] = field(default_factory=dict)
    ago_ms: int = 0


File = Tuple[str, int, str]
"""path, size in bytes, SHA-256."""


@dataclass(frozen=True)
class Ckpt:
    """A set of files to keep: up with its manifest (payload), down with what the server still needs of it.

    key is the shipper's name for the set; the answer repeats it. of parts make one checkpoint.
    need: (index into files, upload id, offset to go on from). state, down: UPLOADING (send what is needed, then
    ask again), COMMITTED, REFUSED (message says why). A repeat of either is harmless.
    """

    kind: ClassVar[FrameType] = FrameType.CKPT
    checks: ClassVar[Dict[str, Check]] = {
        "key": text(200, least=1), "what": one_of("checkpoint", "implicit", "results"),
        "step": maybe(whole()), "part": whole(0, 10**6), "of": whole(1, 10**6), "world": whole(1, MAX_WORLD),
        "state": one_of("", "UPLOADING", "COMMITTED", "REFUSED"), "message": text(4_000),
        "need": rows(MAX_FILES, whole(), whole(), whole()),
    }  # fmt: skip
    key: str
    what: str = "checkpoint"
    step: Optional[int] = None
    part: int = 0
    of: int = 1
    world: int = 1
    files: List[File] = field(default_factory=list)
    state: str = ""
    message: str = ""
    need: List[Tuple[int, int, int]] = field(default_factory=list)

    def validate(self) -> None:
        if self.part >= self.of:
            raise WireError("part: parts are counted from 0 and lie below 'of'")
        if len({path for path, _, _ in self.files}) != len(self.files):
            raise WireError("files: each path may appear once")


@dataclass(frozen=True)
class Ack:
    """Committed so far: bytes of the log, cursor per metric source, newest event. Sent after the commit."""

    kind: ClassVar[FrameType] = FrameType.ACK
    checks: ClassVar[Dict[str, Check]] = {
        "log": whole(), "metrics": cursors, "event": whole(), "sealed": flag, "intent": maybe(_job_intent),
    }  # fmt: skip
    log: int
    metrics: Dict[str, int] = field(default_factory=dict)
    event: int = 0
    sealed: bool = False
    intent: Optional[JobIntent] = None


@dataclass(frozen=True)
class Nack:
    """Not taken. next: the offset to go on from, which may lie before or after what was sent."""

    kind: ClassVar[FrameType] = FrameType.NACK
    checks: ClassVar[Dict[str, Check]] = {
        "stream": text(NAME_CHARS), "code": one_of("GAP", "CRC", "SEALED", "FENCED"), "next": whole(),
        "message": text(4_000),
    }  # fmt: skip
    stream: str
    code: str
    next: int
    message: str = ""


@dataclass(frozen=True)
class Beat:
    """Every two seconds, both ways: down it carries the intent, up how much the spool still holds unsent."""

    kind: ClassVar[FrameType] = FrameType.BEAT
    checks: ClassVar[Dict[str, Check]] = {
        "n": whole(), "at_ms": whole(), "unsent": whole(), "gen_seen": whole(), "intent": maybe(_job_intent),
    }  # fmt: skip
    n: int
    at_ms: int = 0
    unsent: int = 0
    gen_seen: int = 0
    intent: Optional[JobIntent] = None


@dataclass(frozen=True)
class Final:
    """Nothing more will be printed. The server seals the stream if size and crc (of all bytes) agree.

    crc is null when the launcher died before it could say. log_from: the first byte the spool could send again.
    """

    kind: ClassVar[FrameType] = FrameType.FINAL
    checks: ClassVar[Dict[str, Check]] = {
        "size": whole(), "crc": maybe(whole(0, 2**32 - 1)), "log_from": whole(),
    }  # fmt: skip
    size: int
    crc: Optional[int] = None
    log_from: int = 0


@dataclass(frozen=True)
class Bye:
    """The sender is about to close. retry_ms: when to come back, 0 = as you like. done: nothing is left to say."""

    kind: ClassVar[FrameType] = FrameType.BYE
    checks: ClassVar[Dict[str, Check]] = {
        "reason": text(400),
        "retry_ms": whole(0, 3_600_000),
        "done": flag,
    }
    reason: str = ""
    retry_ms: int = 0
    done: bool = False


FRAMES: Dict[int, Type[Any]] = {
    frame.kind: frame for frame in (Hello, Welcome, Data, Metric, Event, Ckpt, Ack, Nack, Beat, Final, Bye)
}
Frame = Any
"""Any of the dataclasses in FRAMES."""


# --- encode and decode


def encode(frame: Frame) -> bytes:
    """Write a frame as bytes. Raises WireError if its header or the whole would be too large."""
    header = {}
    for name in frame.checks:
        value = getattr(frame, name)
        header[name] = vars(value) if isinstance(value, JobIntent) else value
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    payload = _payload(frame)
    if len(text) > MAX_HEADER:
        raise WireError(f"header: {len(text)} bytes, at most {MAX_HEADER} fit")
    if _PREFIX.size + len(text) + len(payload) > MAX_MESSAGE:
        raise WireError(f"message: larger than {MAX_MESSAGE} bytes")
    return _PREFIX.pack(frame.kind, len(text)) + text + payload


def _payload(frame: Frame) -> bytes:
    if isinstance(frame, Data):
        return frame.payload
    if isinstance(frame, Metric):
        points = [[name, step, at, number_out(value)] for name, step, at, value in frame.points]
        return json.dumps(points, separators=(",", ":"), allow_nan=False).encode()
    if isinstance(frame, Ckpt):
        return json.dumps(frame.files, separators=(",", ":")).encode()
    return b""


def decode(message: bytes) -> Frame:
    """Read one message. Raises WireError, and nothing else, on anything that is not a sound frame."""
    if not isinstance(message, (bytes, bytearray, memoryview)):
        raise WireError("message: frames are binary messages")
    if len(message) > MAX_MESSAGE:
        raise WireError(f"message: larger than {MAX_MESSAGE} bytes")
    if len(message) < _PREFIX.size:
        raise WireError("message: shorter than a frame's first three bytes")
    message = bytes(message)
    kind, length = _PREFIX.unpack_from(message)
    shape = FRAMES.get(kind)
    if shape is None:
        raise WireError(f"kind: {kind} is not known")
    end = _PREFIX.size + length
    if len(message) < end:
        raise WireError(f"header: {length} bytes announced, {len(message) - _PREFIX.size} there")
    header = _json("header", message[_PREFIX.size : end])
    if not isinstance(header, dict):
        raise WireError("header: a JSON object is needed")
    return _build(shape, header, message[end:])


def _build(shape: Type[Any], header: Dict[str, Any], payload: bytes) -> Frame:
    values = {name: check(name, header[name]) for name, check in shape.checks.items() if name in header}
    if shape is Data:
        values["payload"] = payload
    elif shape is Metric:
        values["points"] = _points(_json("points", payload))
    elif shape is Ckpt:
        values["files"] = rows(MAX_FILES, path, whole(), sha256)("files", _json("files", payload))
    elif payload:
        raise WireError(f"payload: {shape.__name__.upper()} carries none")
    try:
        frame = shape(**values)
    except TypeError:
        needed = [f.name for f in dataclasses.fields(shape) if f.name not in values and _is_required(f)]
        raise WireError(f"{', '.join(needed)}: missing") from None
    if hasattr(frame, "validate"):
        frame.validate()
    return frame


def _is_required(spec: dataclasses.Field[Any]) -> bool:
    return spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING


def _json(name: str, text: bytes) -> Any:
    try:
        return json.loads(text.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{name}: not JSON ({str(error)[:80]})") from None


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} travels as a string")


def _points(value: Any) -> List[Point]:
    points = rows(MAX_POINTS, text(NAME_CHARS, least=1), whole(), whole(0, 2**52), number_in)("points", value)
    return [(name, step, at, number) for name, step, at, number in points]


def number_out(value: float) -> Any:
    """Write a float for JSON: NaN and infinities as the strings every reader of ours knows."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def number_in(name: str, value: Any) -> float:
    """Read a number that may be one of those strings; raises WireError for anything else."""
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WireError(f"{name}: a number, or one of {', '.join(_NOT_FINITE)}, is needed")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
