"""Scalars in TensorBoard event files, read while they grow.

An event file is a sequence of records: u64 length, u32 checksum, bytes, u32 checksum (TensorFlow's TFRecord), each an
``Event`` message of tensorboard/compat/proto/event.proto. Only scalars are taken: ``simple_value``, or a tensor
with one number (TensorFlow 2 writes those). Anything else, and anything invalid, is skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

MAX_RECORD = 64 * 1024 * 1024
HEAD_BYTES = 256
"""Of a file, in which the time of its first event is: it is the first field."""
_FLOAT, _DOUBLE, _INT32, _INT64 = 1, 2, 3, 9
_FORMATS = {_FLOAT: "<f", _DOUBLE: "<d", _INT32: "<i", _INT64: "<q"}


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value of the file. time_s: seconds since the epoch by the writer's clock."""

    tag: str
    step: int
    time_s: float
    value: float


class NotAnEventFile(ValueError):
    """The bytes are not records of an event file."""


def records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Split data into whole records: (bytes used so far, content). One that is still being written is left out.

    Raises NotAnEventFile if a length exceeds MAX_RECORD bytes.
    """
    at = 0
    while len(data) - at >= 12:
        (length,) = struct.unpack_from("<Q", data, at)
        if length > MAX_RECORD:
            raise NotAnEventFile("a record of %d bytes" % length)
        end = at + 12 + length + 4
        if end > len(data):
            return
        yield end, data[at + 12 : at + 12 + length]
        at = end


def began_s(head: bytes) -> float:
    """When a file that begins with these bytes was begun: the time of its first event, 0.0 if it is not there."""
    with suppress(ValueError, struct.error):
        for number, value in _fields(head[12:]):
            if number == 1 and isinstance(value, bytes):
                (time_s,) = struct.unpack("<d", value)
                return float(time_s)
    return 0.0


def scalars(event: bytes) -> list[Scalar]:
    """The scalars of one Event message; none if it is invalid."""
    found: list[tuple[str, float]] = []
    time_s, step = 0.0, 0
    try:
        for number, value in _fields(event):
            if number == 1 and isinstance(value, bytes):
                (time_s,) = struct.unpack("<d", value)
            elif number == 2 and isinstance(value, int):
                step = value
            elif number == 5 and isinstance(value, bytes):
                found.extend(_summary(value))
    except (ValueError, struct.error):
        return []
    return [Scalar(tag, step, time_s, value) for tag, value in found if step >= 0]


def _summary(message: bytes) -> list[tuple[str, float]]:
    found = []
    for number, value in _fields(message):
        if number == 1 and isinstance(value, bytes):
            entry = _entry(value)
            if entry is not None:
                found.append(entry)
    return found


def _entry(message: bytes) -> tuple[str, float] | None:
    tag, result = "", None
    for number, value in _fields(message):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            tag = value.decode("utf-8", "replace")
        elif number == 2:
            (result,) = struct.unpack("<f", value)
        elif number == 8:
            result = _tensor(value)
    return (tag, result) if tag and result is not None else None


def _tensor(message: bytes) -> float | None:
    """The number in a TensorProto that holds exactly one, else None."""
    kind, content = 0, b""
    for number, value in _fields(message):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number in (4, 5, 6) and isinstance(value, bytes):  # tensor_content, float_val, double_val
            content = value
        elif number in (7, 10):  # int_val, int64_val
            if isinstance(value, int):
                return float(value)
            numbers = list(_varints(value))
            return float(_signed(numbers[0])) if len(numbers) == 1 else None
    shape = _FORMATS.get(kind)
    if shape is None or len(content) != struct.calcsize(shape):
        return None
    return float(struct.unpack(shape, content)[0])


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Fields of a protobuf message: varints as signed numbers, fixed and length-delimited ones as bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield key >> 3, _signed(value)
            continue
        if wire == 2:
            size, at = _varint(message, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError("wire type %d" % wire)
        if at + size > len(message):
            raise ValueError("field longer than its message")
        yield key >> 3, message[at : at + size]
        at += size


def _varints(packed: bytes) -> Iterator[int]:
    at = 0
    while at < len(packed):
        value, at = _varint(packed, at)
        yield value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("number cut short")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("number too long")


def _signed(value: int) -> int:
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value
