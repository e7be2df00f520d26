"""Types and limits of the fields of frames, and how values that programs wrote become such fields.

Text has no NUL, which PostgreSQL cannot store; msgspec's decoder refuses lone surrogates.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from msgspec import Meta

MAX_DATA = 256 * 1024
"""Bytes of log in one DATA frame."""
MAX_READS = 2_000
MAX_POINTS = 2_000
MAX_FILES = 5_000
MAX_OFFSET = 2**62
MAX_LEARNERS = 10**6
NAME_CHARS = 120
PATH_CHARS = 1_024
_LATEST_S = 2**41
"""Seconds since the epoch above which a time is not one."""
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Floats that JSON does not have, by the string that is sent instead."""

NO_NUL = r"\A[^\0]*\Z"
_PATH = re.compile(r"\A(?!\.\.?(?:/|\Z))[^/\\\0]+(?:/(?!\.\.?(?:/|\Z))[^/\\\0]+)*\Z")

Offset = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]
Crc = Annotated[int, Meta(ge=0, lt=2**32)]
Rank = Annotated[int, Meta(ge=0, le=MAX_LEARNERS)]
ShortText = Annotated[str, Meta(max_length=64, pattern=NO_NUL)]
Reason = Annotated[str, Meta(max_length=400, pattern=NO_NUL)]
LongText = Annotated[str, Meta(max_length=4_000, pattern=NO_NUL)]
CursorName = Annotated[str, Meta(max_length=NAME_CHARS, pattern=NO_NUL)]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS, pattern=NO_NUL)]
Cursors = Annotated[dict[CursorName, Offset], Meta(max_length=100)]
Details = Annotated[
    dict[
        Annotated[str, Meta(max_length=60, pattern=NO_NUL)],
        LongText | Annotated[int, Meta(ge=-MAX_OFFSET, le=MAX_OFFSET)] | float | bool | None,
    ],
    Meta(max_length=50),
]
Read = tuple[Annotated[int, Meta(ge=1, le=MAX_DATA)], Annotated[int, Meta(ge=0, le=10**12)]]
"""One read of the launcher: (bytes, milliseconds after the frame's t0)."""
Point = tuple[str, int, int, float]
"""Metric name, step, milliseconds since the epoch (0 = unknown), value. NaN and infinities are values."""
File = tuple[str, int, str]
"""Relative path, size in bytes, SHA-256 in hexadecimal."""

EventKind = Literal["phase", "exit", "error", "halt_seen"]
FileSetKind = Literal["checkpoint", "implicit", "results"]
UploadState = Literal["", "UPLOADING", "COMMITTED", "REFUSED"]

Points = Annotated[
    list[
        tuple[
            Name,
            Offset,
            Annotated[int, Meta(ge=0, le=2**52)],
            float | Literal["NaN", "Infinity", "-Infinity"],
        ]
    ],
    Meta(max_length=MAX_POINTS),
]
_Path = Annotated[str, Meta(max_length=PATH_CHARS, pattern=_PATH.pattern)]
Files = Annotated[
    list[tuple[_Path, Offset, Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]]], Meta(max_length=MAX_FILES)
]


def number_out(value: float) -> Any:
    """Write a float for JSON, which has no NaN and no infinities: those become the strings that `number_in` reads."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def number_in(value: Any) -> float | None:
    """Read a number or one of the strings that `number_out` writes; None for anything else."""
    if isinstance(value, str):
        return NOT_FINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def point_of(name: Any, step: Any, at_ms: int, value: Any) -> Point | None:
    """Make a point of what a program wrote, or None if its step or value is not a number."""
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= MAX_OFFSET:
        return None
    number = number_in(value)
    if number is None:
        return None
    # PostgreSQL text holds neither NUL nor lone surrogates.
    text = str(name).replace("\0", "").encode("utf-8", "replace").decode("utf-8", "replace")
    clean = text[:NAME_CHARS].strip()
    return (clean, step, at_ms, number) if clean else None


def time_ms(time_s: Any) -> int:
    """Milliseconds since the epoch of a time in seconds that a program wrote; 0 if it is not one."""
    return int(time_s * 1000) if isinstance(time_s, (int, float)) and 0 < time_s < _LATEST_S else 0


def is_path(name: str) -> bool:
    """True if a file set may hold a file of this name: a relative path without '.', '..', empty steps, backslashes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return len(name) <= PATH_CHARS and _PATH.match(name) is not None
