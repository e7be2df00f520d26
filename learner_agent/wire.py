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
import re
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, Callable, ClassVar, Dict, List, Optional, Tuple, Type

PROTO = 1
MAX_HEADER = 65_535
MAX_DATA = 256 * 1024
"""Bytes of log in one DATA frame."""
MAX_MESSAGE = 1024 * 1024
"""Bytes of any one message; the server closes with 4413 before it buffers more."""
MAX_READS = 2_000
MAX_POINTS = 2_000
MAX_FILES = 5_000
MAX_OFFSET = 2**62
NAME_CHARS = 120
PATH_CHARS = 1_024

CLOSE_BAD_FRAME = 4400
CLOSE_UNAUTHORIZED = 4401
CLOSE_FORBIDDEN = 4403
CLOSE_SILENT = 4408
CLOSE_FENCED = 4409
CLOSE_TOO_LARGE = 4413
CLOSE_RESTART = 1012
CLOSE_TRY_LATER = 1013

_PREFIX = struct.Struct(">BH")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class WireError(ValueError):
    """These bytes are not a frame; the message names the field and what it must be."""


class Kind(enum.IntEnum):
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


# --- checks: each takes (field name, value) and returns the value to keep, or raises WireError


Check = Callable[[str, Any], Any]


def _whole(low: int = 0, high: int = MAX_OFFSET) -> Check:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise WireError(f"{name}: a whole number from {low} to {high} is needed")
        return value

    return check


def _text(chars: int, *, least: int = 0) -> Check:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or not least <= len(value) <= chars:
            raise WireError(f"{name}: text of {least} to {chars} characters is needed")
        if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
            raise WireError(f"{name}: NUL and lone surrogates are not text")
        return value

    return check


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise WireError(f"{name}: true or false is needed")
    return value


def _one_of(*words: str) -> Check:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise WireError(f"{name}: one of {', '.join(words)} is needed")
        return value

    return check


def _maybe(inner: Check) -> Check:
    def check(name: str, value: Any) -> Any:
        return None if value is None else inner(name, value)

    return check


def _rows(limit: int, *columns: Check) -> Check:
    """A list of at most limit rows, each a list with one value per column."""

    def check(name: str, value: Any) -> List[Tuple[Any, ...]]:
        if not isinstance(value, list) or len(value) > limit:
            raise WireError(f"{name}: a list of at most {limit} rows is needed")
        rows = []
        for row in value:
            if not isinstance(row, list) or len(row) != len(columns):
                raise WireError(f"{name}: each row needs {len(columns)} values")
            rows.append(tuple(column(name, cell) for column, cell in zip(columns, row)))
        return rows

    return check


def _cursors(name: str, value: Any) -> Dict[str, int]:
    if not isinstance(value, dict) or len(value) > 100:
        raise WireError(f"{name}: an object of at most 100 cursors is needed")
    return {_text(NAME_CHARS)(name, key): _whole()(name, cell) for key, cell in value.items()}


def _details(name: str, value: Any) -> Dict[str, Any]:
    """A flat object of short texts, numbers, flags and nulls."""
    if not isinstance(value, dict) or len(value) > 50:
        raise WireError(f"{name}: an object of at most 50 fields is needed")
    kept: Dict[str, Any] = {}
    for key, cell in value.items():
        if isinstance(cell, str):
            cell = _text(4_000)(name, cell)
        elif isinstance(cell, int) and not isinstance(cell, bool):
            cell = _whole(-MAX_OFFSET)(name, cell)
        elif not (
            cell is None or isinstance(cell, bool) or (isinstance(cell, float) and math.isfinite(cell))
        ):
            raise WireError(f"{name}: {key[:40]!r} must be text, a number, a flag or null")
        kept[_text(60)(name, key)] = cell
    return kept


def _wish(name: str, value: Any) -> Wish:
    if not isinstance(value, dict):
        raise WireError(f"{name}: an object is needed")
    return Wish(
        intent=_one_of("RUN", "HALT", "CANCEL")(f"{name}.intent", value.get("intent")),
        gen=_whole()(f"{name}.gen", value.get("gen")),
        grace_s=_whole(0, 604_800)(f"{name}.grace_s", value.get("grace_s")),
    )


def _sha256(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _SHA256.match(value):
        raise WireError(f"{name}: 64 lower-case hexadecimal digits are needed")
    return value


def _path(name: str, value: Any) -> str:
    """A relative path of plain steps; it is only ever compared and stored, never opened by the server."""
    text: str = _text(PATH_CHARS, least=1)(name, value)
    steps = text.split("/")
    if "\\" in text or any(step in ("", ".", "..") for step in steps):
        raise WireError(f"{name}: a relative path without '..', '.', empty steps and backslashes is needed")
    return text


# --- frames


@dataclass(frozen=True)
class Wish:
    """What the job's people wish now; rides on WELCOME, ACK and BEAT. gen grows with each new wish."""

    intent: str
    gen: int
    grace_s: int


@dataclass(frozen=True)
class Hello:
    """First frame of a connection. log_from and log_to: the bytes of the stream that the spool still holds."""

    kind: ClassVar[Kind] = Kind.HELLO
    checks: ClassVar[Dict[str, Check]] = {
        "proto": _whole(1, 99), "version": _text(40), "job": _text(40, least=1), "attempt": _whole(1, 10**6),
        "rank": _whole(0, 10**6), "boot": _text(64), "log_from": _whole(), "log_to": _whole(),
        "gen_seen": _whole(),
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
    """The server's answer to HELLO: where to go on (always the server's word), the wish, and the limits."""

    kind: ClassVar[Kind] = Kind.WELCOME
    checks: ClassVar[Dict[str, Check]] = {
        "session": _text(64), "now_ms": _whole(), "log": _whole(), "metrics": _cursors, "sealed": _flag,
        "wish": _wish, "beat_s": _whole(1, 3600), "window": _whole(1), "max_data": _whole(1, MAX_DATA),
    }  # fmt: skip
    session: str
    now_ms: int
    log: int
    wish: Wish
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

    kind: ClassVar[Kind] = Kind.DATA
    checks: ClassVar[Dict[str, Check]] = {
        "off": _whole(), "crc": _whole(0, 2**32 - 1), "t0": _whole(),
        "reads": _rows(MAX_READS, _whole(1, MAX_DATA), _whole(0, 10**12)), "gone": _whole(), "lines": _whole(),
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

    kind: ClassVar[Kind] = Kind.METRIC
    checks: ClassVar[Dict[str, Check]] = {
        "src": _text(NAME_CHARS, least=1), "off": _whole(), "next": _whole(), "total": _maybe(_whole()),
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
    """

    kind: ClassVar[Kind] = Kind.EVENT
    checks: ClassVar[Dict[str, Check]] = {
        "n": _whole(1), "what": _one_of("phase", "exit", "error", "halt_seen"), "at_ms": _whole(), "data": _details,
    }  # fmt: skip
    n: int
    what: str
    at_ms: int = 0
    data: Dict[str, Any] = field(default_factory=dict)


File = Tuple[str, int, str]
"""path, size in bytes, SHA-256."""


@dataclass(frozen=True)
class Ckpt:
    """A set of files to keep: up with its manifest (payload), down with what the server still needs of it.

    key is the shipper's name for the set; the answer repeats it. of parts make one checkpoint.
    need: (index into files, upload id, offset to go on from). state, down: UPLOADING (send what is needed, then
    ask again), COMMITTED, REFUSED (message says why). A repeat of either is harmless.
    """

    kind: ClassVar[Kind] = Kind.CKPT
    checks: ClassVar[Dict[str, Check]] = {
        "key": _text(200, least=1), "what": _one_of("checkpoint", "implicit", "results"),
        "step": _maybe(_whole()), "part": _whole(0, 10**6), "of": _whole(1, 10**6), "world": _whole(1, 10**6),
        "state": _one_of("", "UPLOADING", "COMMITTED", "REFUSED"), "message": _text(4_000),
        "need": _rows(MAX_FILES, _whole(), _whole(), _whole()),
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

    kind: ClassVar[Kind] = Kind.ACK
    checks: ClassVar[Dict[str, Check]] = {
        "log": _whole(), "metrics": _cursors, "event": _whole(), "sealed": _flag, "wish": _maybe(_wish),
    }  # fmt: skip
    log: int
    metrics: Dict[str, int] = field(default_factory=dict)
    event: int = 0
    sealed: bool = False
    wish: Optional[Wish] = None


@dataclass(frozen=True)
class Nack:
    """Not taken. next: the offset to go on from, which may lie before or after what was sent."""

    kind: ClassVar[Kind] = Kind.NACK
    checks: ClassVar[Dict[str, Check]] = {
        "stream": _text(NAME_CHARS), "code": _one_of("GAP", "CRC", "SEALED", "FENCED"), "next": _whole(),
        "message": _text(4_000),
    }  # fmt: skip
    stream: str
    code: str
    next: int
    message: str = ""


@dataclass(frozen=True)
class Beat:
    """Every two seconds, both ways: down it carries the wish, up how much the spool still holds unsent."""

    kind: ClassVar[Kind] = Kind.BEAT
    checks: ClassVar[Dict[str, Check]] = {
        "n": _whole(), "at_ms": _whole(), "unsent": _whole(), "gen_seen": _whole(), "wish": _maybe(_wish),
    }  # fmt: skip
    n: int
    at_ms: int = 0
    unsent: int = 0
    gen_seen: int = 0
    wish: Optional[Wish] = None


@dataclass(frozen=True)
class Final:
    """Nothing more will be printed. The server seals the stream if size and crc (of all bytes) agree.

    crc is null when the launcher died before it could say. log_from: the first byte the spool could send again.
    """

    kind: ClassVar[Kind] = Kind.FINAL
    checks: ClassVar[Dict[str, Check]] = {
        "size": _whole(), "crc": _maybe(_whole(0, 2**32 - 1)), "log_from": _whole(),
    }  # fmt: skip
    size: int
    crc: Optional[int] = None
    log_from: int = 0


@dataclass(frozen=True)
class Bye:
    """The sender is about to close. retry_ms: when to come back, 0 = as you like. done: nothing is left to say."""

    kind: ClassVar[Kind] = Kind.BYE
    checks: ClassVar[Dict[str, Check]] = {
        "reason": _text(400),
        "retry_ms": _whole(0, 3_600_000),
        "done": _flag,
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
        header[name] = dataclasses.asdict(value) if isinstance(value, Wish) else value
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
        values["files"] = _rows(MAX_FILES, _path, _whole(), _sha256)("files", _json("files", payload))
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
    rows = _rows(MAX_POINTS, _text(NAME_CHARS, least=1), _whole(), _whole(0, 2**52), number_in)(
        "points", value
    )
    return [(name, step, at, number) for name, step, at, number in rows]


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
