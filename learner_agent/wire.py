"""Frames between a learner's shipper and the server: the one definition that both ends share.

A frame is one binary websocket message: u8 type, u16 header length (big endian), a JSON object, a payload.
``decode`` turns any bytes into a frame or raises ``WireError``, never anything else; what it returns has been
checked field by field (docs/adr/0022).

Up (from the shipper): HELLO, DATA, METRIC, EVENT, FINAL. Down: WELCOME, ACK, NACK. Both ways: CKPT, BEAT, BYE.
Any frame may be repeated, or lost with its connection: offsets and numbers make repeats harmless. Offsets are in
bytes, fields in ``_ms`` in milliseconds, ``at_ms`` since the epoch.
"""

from __future__ import annotations

import enum
import math
import struct
import zlib
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from learner_agent.wire_fields import (
    LATEST_MS,
    MAX_DATA,
    MAX_FILES,
    MAX_OFFSET,
    MAX_POINTS,
    MAX_RANK,
    MAX_READS,
    NO_NUL,
    NOT_FINITE,
    Crc,
    CursorName,
    Cursors,
    Details,
    EpochMs,
    EventKind,
    File,
    Files,
    FileSetKind,
    LongText,
    Name,
    Offset,
    Paths,
    Point,
    Points,
    Rank,
    Read,
    Reason,
    ShortText,
    UploadState,
)

PROTO = 2
"""The version of this protocol. Increase it with every change that an older end would misread, such as a default."""
MAX_HEADER = 65_535
MAX_MESSAGE = 1024 * 1024
"""Bytes of any one message; the server closes with 4413, or its websocket library with 1009, before it buffers more."""
HEARTBEAT_S = 2
HEARTBEAT_TIMEOUT_S = 20.0  # a side that sends nothing for this long is considered gone


class CloseCode(enum.IntEnum):
    """Why the server closes a websocket, of a learner or of a viewer. close-codes.ts has those that a page acts on."""

    BAD_FRAME = 4400
    UNAUTHORIZED = 4401
    FORBIDDEN = 4403
    NO_SUCH_SOCKET = 4404
    SILENT = 4408
    """Nothing was received in time; from a viewer: it does not read what it is sent."""
    FENCED = 4409
    TOO_LARGE = 4413
    VERSION = 4426
    SERVER_ERROR = 1011
    RESTART = 1012
    TRY_LATER = 1013


class WireError(ValueError):
    """These bytes are not a frame; the message names the field and what it must be."""


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


class WireFrame(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of all frames. Encoded without the fields that have their default value."""

    type: ClassVar[FrameType]

    def validate(self) -> None:
        """Check what one field's type cannot express. Raises WireError."""


class JobIntent(msgspec.Struct, frozen=True):
    """What is requested of the job now. gen grows with each new request.

    grace_s: the job's grace period in seconds (see learner_agent.halting).
    start: every learner of the gang is ready, so the program may start.
    save: how often a checkpoint was requested of this attempt while it runs.
    """

    intent: Literal["RUN", "HALT", "CANCEL"]
    gen: Offset
    grace_s: Annotated[int, Meta(ge=0, le=604_800)]
    start: bool = True
    save: Offset = 0


class Hello(WireFrame, frozen=True):
    """First frame of a connection: which learner this is."""

    type: ClassVar[FrameType] = FrameType.HELLO

    job: Annotated[str, Meta(min_length=1, max_length=40, pattern=NO_NUL)]
    attempt: Annotated[int, Meta(ge=1, le=10**6)]
    rank: Rank
    proto: Annotated[int, Meta(ge=0, le=99)] = 0
    """Always sent: with PROTO as its default, each version would take another's for its own. 0: not stated."""


class Welcome(WireFrame, frozen=True):
    """Response to HELLO: the cursors to continue from (the server's always count), the job's intent, the limits.

    session, now_ms: nothing reads them, but shippers that run since before an upgrade accept no WELCOME without them.
    """

    type: ClassVar[FrameType] = FrameType.WELCOME

    session: ShortText
    now_ms: Offset
    log: Offset
    intent: JobIntent
    metrics: Cursors = {}
    sealed: bool = False
    beat_s: Annotated[int, Meta(ge=1, le=3600)] = HEARTBEAT_S
    window: Annotated[int, Meta(ge=1, le=MAX_OFFSET)] = 4 * MAX_DATA
    max_data: Annotated[int, Meta(ge=1, le=MAX_DATA)] = MAX_DATA


class Data(WireFrame, frozen=True):
    """Bytes of the log from offset off; t0: when the first of them was read, in milliseconds since the epoch.

    gone > 0: a tombstone instead of bytes; the spool did not keep that many bytes, with lines newlines in them.
    """

    type: ClassVar[FrameType] = FrameType.DATA

    off: Offset
    payload: bytes = b""
    t0: EpochMs = 0
    reads: Annotated[list[Read], Meta(max_length=MAX_READS)] = []
    crc: Crc = 0
    gone: Offset = 0
    lines: Offset = 0

    @property
    def size(self) -> int:
        """How many bytes of the stream this frame accounts for."""
        return self.gone or len(self.payload)

    def validate(self) -> None:
        if len(self.payload) > MAX_DATA:
            raise WireError(f"payload: at most {MAX_DATA} bytes of log in one frame")
        if bool(self.gone) == bool(self.payload):
            raise WireError("gone: a DATA frame carries either bytes or a tombstone")
        if self.off + self.size > MAX_OFFSET:
            raise WireError(f"off: a log has at most {MAX_OFFSET} bytes")
        if self.t0 + max((after_ms for _, after_ms in self.reads), default=0) > LATEST_MS:
            raise WireError("reads: none can be later than the year 9999")
        if self.gone and self.lines > self.gone:
            raise WireError("lines: more newlines than bytes")
        if self.payload and sum(size for size, _ in self.reads) != len(self.payload):
            raise WireError("reads: their sizes must add up to the payload's")
        if self.payload and zlib.crc32(self.payload) != self.crc:
            raise WireError("crc: does not match the payload")


class Metric(WireFrame, frozen=True):
    """Points from one source, whose cursor they move from off to next. total: the last step it expects.

    in_order: names of points whose steps only give their order, because the program printed none that count up.
    steps: the lowest and the highest step that was reported and that no point has: without a number, or in_order.
    fell_ms: when the program's steps last fell back within this frame, since the epoch by the learner's clock; steps
    then ends with the highest of all steps since. null: they did not.
    """

    type: ClassVar[FrameType] = FrameType.METRIC

    src: Name
    off: Offset
    next: Offset
    points: list[Point] = []
    total: Offset | None = None
    in_order: Annotated[list[Name], Meta(max_length=MAX_POINTS)] = []
    steps: tuple[Offset, Offset] | None = None
    fell_ms: EpochMs | None = None

    def validate(self) -> None:
        if self.fell_ms is not None and self.steps is None:
            raise WireError("fell_ms: steps are missing")


class Event(WireFrame, frozen=True):
    """Something that happened to the learner; sent again after each reconnection until acknowledged.

    what: phase (data.phase), exit (code, signal, halted, finished, lost), error (code, message),
    halt_seen (gen, aware).
    ago_ms: its age when it was sent, by the sender's own clock.
    """

    type: ClassVar[FrameType] = FrameType.EVENT

    n: Annotated[int, Meta(ge=1, le=MAX_OFFSET)]
    what: EventKind
    at_ms: Offset = 0
    data: Details = {}
    ago_ms: Offset = 0


class Ckpt(WireFrame, frozen=True):
    """A set of files to store: up with its manifest (files), down with what the server still needs of it.

    key is the shipper's name for the set; the response repeats it. part of `of`: parts make one checkpoint.
    ordinal: how often this attempt saved the step before, so that parts of two saves are never mixed; null: not known.
    saved_ns: when it was put in place, in nanoseconds since the epoch by the learner's clock; one that a learner saved
    later always has a higher one, even where its clock was set back. null: not known.
    need: (index into files, upload id, offset in bytes to continue from), as many as fit. state, down: UPLOADING (send
    what is needed, then offer again), COMMITTED, REFUSED (message has the reason). A repeat of either is harmless.
    """

    type: ClassVar[FrameType] = FrameType.CKPT

    key: Annotated[str, Meta(min_length=1, max_length=200, pattern=NO_NUL)]
    what: FileSetKind = "checkpoint"
    step: Offset | None = None
    ordinal: Offset | None = None
    saved_ns: Offset | None = None
    part: Rank = 0
    of: Annotated[int, Meta(ge=1, le=MAX_RANK)] = 1
    world: Annotated[int, Meta(ge=1, le=MAX_RANK)] = 1
    files: list[File] = []
    in_code_from: Offset | None = None
    """Of results: from this index on, files lie in the code folder (keep), those before it in RESULT_DIR."""
    archives: Annotated[list[Offset], Meta(max_length=2)] = []
    """Of results: the indices of files that are archives of what was too much to list."""
    unrestored: Paths = []
    """Of results: stored before, but not restored for this attempt, so that the program cannot have removed them. They
    stay stored, unless files has the same path."""
    state: UploadState = ""
    message: LongText = ""
    need: Annotated[list[tuple[Offset, Offset, Offset]], Meta(max_length=MAX_FILES)] = []

    def validate(self) -> None:
        if self.part >= self.of:
            raise WireError("part: parts are counted from 0 and are below 'of'")
        if len({path for path, _, _ in self.files}) != len(self.files):
            raise WireError("files: each path may appear once")


class Ack(WireFrame, frozen=True):
    """Committed so far: bytes of the log, cursor per metric source, newest event. Sent after the commit."""

    type: ClassVar[FrameType] = FrameType.ACK

    log: Offset
    metrics: Cursors = {}
    event: Offset = 0
    sealed: bool = False
    intent: JobIntent | None = None


class Nack(WireFrame, frozen=True):
    """Refused. next: the offset to continue from, which may be before or after what was sent."""

    type: ClassVar[FrameType] = FrameType.NACK

    stream: CursorName
    code: Literal["GAP", "CRC", "SEALED"]
    next: Offset
    message: LongText = ""


class Beat(WireFrame, frozen=True):
    """Proof of life: every beat_s seconds (see WELCOME), both ways; down with the job's intent."""

    type: ClassVar[FrameType] = FrameType.BEAT

    n: Offset
    intent: JobIntent | None = None


class Final(WireFrame, frozen=True):
    """The log is complete. The server seals the stream if size and crc (of all its bytes) agree with its own.

    crc is null when the launcher died before it could report one. log_from: the first byte the spool could send again.
    """

    type: ClassVar[FrameType] = FrameType.FINAL

    size: Offset
    crc: Crc | None = None
    log_from: Offset = 0


class Bye(WireFrame, frozen=True):
    """The sender is about to close. retry_ms: when to reconnect, 0 = at any time. done: nothing is left to send."""

    type: ClassVar[FrameType] = FrameType.BYE

    reason: Reason = ""
    retry_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 0
    done: bool = False


StreamFrame = Data | Metric | Event | Final
"""Frames that the server stores in the order in which they were sent, and acknowledges."""

FRAMES: dict[int, type[WireFrame]] = {
    frame.type: frame for frame in (Hello, Welcome, Data, Metric, Event, Ckpt, Ack, Nack, Beat, Final, Bye)
}


# --- encode and decode

_PREFIX = struct.Struct(">BH")
_encoder = msgspec.json.Encoder()
_headers = {number: msgspec.json.Decoder(frame) for number, frame in FRAMES.items()}
_points = msgspec.json.Decoder(Points)
_files = msgspec.json.Decoder(Files)
_Content = TypeVar("_Content")


def encode(frame: WireFrame) -> bytes:
    """Write a frame as bytes. Raises WireError if it would be too large, or for text that is not valid Unicode."""
    try:
        header, payload = _parts(frame)
    except UnicodeEncodeError as error:
        raise WireError(f"{frame.type.name}: text must be valid Unicode ({error.reason})") from None
    if len(header) > MAX_HEADER:
        raise WireError(f"header: {len(header)} bytes, at most {MAX_HEADER} fit")
    if _PREFIX.size + len(header) + len(payload) > MAX_MESSAGE:
        raise WireError(f"message: larger than {MAX_MESSAGE} bytes")
    return _PREFIX.pack(frame.type, len(header)) + header + payload


def _parts(frame: WireFrame) -> tuple[bytes, bytes]:
    """Header and payload. What travels in the payload has its default in the header, so it is left out there."""
    if isinstance(frame, Data):
        return _encoder.encode(replace(frame, payload=b"")), frame.payload
    if isinstance(frame, Metric):
        points = [
            point if math.isfinite(point[3]) else (*point[:3], number_out(point[3])) for point in frame.points
        ]
        return _encoder.encode(replace(frame, points=[])), _encoder.encode(points)
    if isinstance(frame, Ckpt):
        return _encoder.encode(replace(frame, files=[])), _encoder.encode(frame.files)
    return _encoder.encode(frame), b""


NEED_BYTES = MAX_HEADER - 4_096
"""For what CKPT's need takes of a header; the rest is for its other fields."""


def need_that_fits(need: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The first of these that one CKPT frame holds. Once they are there, the next offer is answered with the rest."""
    room = NEED_BYTES
    for place, (index, upload, offset) in enumerate(need):
        room -= len(f"[{index},{upload},{offset}],")
        if room < 0:
            return need[:place]
    return need


def number_out(value: float) -> Any:
    """Write a float for JSON, which has no NaN and no infinities: those become strings (NOT_FINITE)."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def decode(message: bytes) -> WireFrame:
    """Read one message. Raises WireError, and nothing else, on anything that is not a valid frame."""
    if not isinstance(message, (bytes, bytearray, memoryview)):
        raise WireError("message: frames are binary messages")
    if len(message) > MAX_MESSAGE:
        raise WireError(f"message: larger than {MAX_MESSAGE} bytes")
    if len(message) < _PREFIX.size:
        raise WireError("message: shorter than a frame's first three bytes")
    message = bytes(message)
    number, length = _PREFIX.unpack_from(message)
    if number not in FRAMES:
        raise WireError(f"type: {number} is unknown")
    end = _PREFIX.size + length
    if len(message) < end:
        raise WireError(f"header: expected {length} bytes, got {len(message) - _PREFIX.size}")
    frame = _read(f"{FrameType(number).name} header", _headers[number], message[_PREFIX.size : end])
    payload = message[end:]
    if isinstance(frame, Data):
        frame = replace(frame, payload=payload)
    elif isinstance(frame, Metric):
        frame = replace(frame, points=[_point(*point) for point in _read("points", _points, payload)])
    elif isinstance(frame, Ckpt):
        frame = replace(frame, files=_read("files", _files, payload))
    elif payload:
        raise WireError(f"payload: {frame.type.name} carries none")
    frame.validate()
    return frame


def _read(what: str, decoder: msgspec.json.Decoder[_Content], text: bytes) -> _Content:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"{what}: {error}") from None


def _point(name: str, step: int, at_ms: int, value: float | str) -> Point:
    # Shippers from before this limit send what programs wrote as seconds but meant as milliseconds.
    at_ms = at_ms if at_ms <= LATEST_MS else 0
    return name, step, at_ms, NOT_FINITE[value] if isinstance(value, str) else value
