"""Types and limits of the fields of frames.

Text has no NUL, which PostgreSQL cannot store; msgspec's decoder refuses lone surrogates.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

from msgspec import Meta

MAX_DATA = 256 * 1024
"""Bytes of log in one DATA frame."""
MAX_READS = 2_000
MAX_POINTS = 2_000
MAX_FILES = 5_000
MAX_OFFSET = 2**62
MAX_RANK = 10**6
LATEST_MS = 253_402_300_799_000
"""The last second of the year 9999, in milliseconds since the epoch: Python reads no later time from a database."""
NAME_CHARS = 120
PATH_CHARS = 1_024
SETUP_FAILED = "setup_failed"
"""Error that a learner reports before its end if a setup command ended it; its message names the command."""
BEING_FINISHED = "being_finished"
"""Code of a response while the store makes one object of a file's parts: the agent asks again soon."""
SECONDS_PER_STEP = "seconds_per_step"
"""The metric that the platform makes of the times of steps that were reported without a number."""
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Floats that JSON does not have, by the string that is sent instead."""

NO_NUL = r"\A[^\0]*\Z"
_PATH = re.compile(r"\A(?!\.\.?(?:/|\Z))[^/\\\0]+(?:/(?!\.\.?(?:/|\Z))[^/\\\0]+)*\Z")

Offset = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]
EpochMs = Annotated[int, Meta(ge=0, le=LATEST_MS)]
Crc = Annotated[int, Meta(ge=0, lt=2**32)]
Rank = Annotated[int, Meta(ge=0, le=MAX_RANK)]
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
Paths = Annotated[list[_Path], Meta(max_length=MAX_FILES)]
Files = Annotated[
    list[tuple[_Path, Offset, Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]]], Meta(max_length=MAX_FILES)
]


def is_path(name: str) -> bool:
    """True if a file set may hold a file of this name: a relative path without '.', '..', empty steps, backslashes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return len(name) <= PATH_CHARS and _PATH.match(name) is not None
