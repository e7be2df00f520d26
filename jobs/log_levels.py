"""What a line of output is: a warning, an error, a part of one. Pure.

The patterns are in log_levels.json, which the browser's bundle contains too (static/src/ts/log/levels.ts); both sides
pass the cases of tests/log_levels.json. A traceback is one error: it begins at its first line, its body, the line that
names the exception and those of chained exceptions are parts of it.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

_PATTERNS = json.loads((Path(__file__).parent / "log_levels.json").read_text())
RANK = re.compile(_PATTERNS["rank"], re.ASCII)
"""What PyTorch puts before each line of a rank's traceback."""
_TRACEBACK = re.compile(_PATTERNS["traceback"], re.ASCII)
_RAISED = re.compile(_PATTERNS["raised"], re.ASCII)
_CHAIN = re.compile(_PATTERNS["chain"], re.ASCII)
_STATED_WARNING = re.compile(_PATTERNS["statedWarning"], re.ASCII)
_STATED_LESS = re.compile(_PATTERNS["statedLess"], re.ASCII)
"""Lines that a logger marked as a warning, or as less: whatever their words are."""
_ERROR = re.compile(_PATTERNS["error"], re.ASCII | re.IGNORECASE)
_ERROR_NAME = re.compile(_PATTERNS["errorName"], re.ASCII)
_WARNING = re.compile(_PATTERNS["warning"], re.ASCII | re.IGNORECASE)
_WARNING_NAME = re.compile(_PATTERNS["warningName"], re.ASCII)

ESCAPES = re.compile(r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)?|\[[0-9;:?]*[A-Za-z]|[=>()][A-Z0-9]?)")
"""Terminal escape codes (colors, cursor moves, titles): not part of the visible text (static/src/ts/log/ansi.ts)."""
_ESCAPE_BYTES = re.compile(ESCAPES.pattern.encode())


class Kind(IntEnum):
    """What a line is. An error begins with an ERROR or TRACEBACK line; BODY and RAISED are parts of the one before."""

    NONE = 0
    WARNING = 1
    ERROR = 2
    TRACEBACK = 3
    BODY = 4
    RAISED = 5


STARTS = frozenset({Kind.ERROR, Kind.TRACEBACK})
PARTS = frozenset({Kind.BODY, Kind.RAISED})


class After(IntEnum):
    """What came before a line, as far as it matters for what the line is."""

    NOTHING = 0
    INSIDE = 1
    """A traceback has begun, and its exception was not named yet."""
    RAISED = 2
    CHAIN = 3
    """A line says that the next traceback belongs to the same error."""
    ERROR = 4
    WARNING = 5


def classify(text: str, after: After) -> tuple[Kind, After]:
    """What a line without escape codes is, and the state for the next line."""
    words = RANK.sub("", text)
    is_blank, is_indented = not words.strip(), words[:1].isspace()
    if after is After.INSIDE and (is_blank or is_indented):
        return Kind.BODY, After.INSIDE
    if _TRACEBACK.match(words):
        belongs = after in (After.CHAIN, After.ERROR)
        return Kind.BODY if belongs else Kind.TRACEBACK, After.INSIDE
    if after is After.INSIDE and _RAISED.match(words):
        return Kind.RAISED, After.RAISED
    if after in (After.RAISED, After.CHAIN) and (is_blank or _CHAIN.match(words)):
        return (Kind.NONE, after) if is_blank else (Kind.BODY, After.CHAIN)
    if after is After.WARNING and is_indented:
        return Kind.NONE, After.NOTHING  # the source line that Python prints below its warning
    if _STATED_WARNING.match(words):
        return Kind.WARNING, After.WARNING
    if _STATED_LESS.match(words):
        return Kind.NONE, After.NOTHING
    if _ERROR.search(words) or _ERROR_NAME.search(words):
        return Kind.ERROR, After.ERROR
    if _WARNING.search(words) or _WARNING_NAME.search(words):
        return Kind.WARNING, After.WARNING
    return Kind.NONE, After.NOTHING


_WORDS = (
    b"error",
    b"traceback",
    b"exception",
    b"fatal",
    b"critical",
    b"panic",
    b"oom",
    b"out of memory",
    b"warn",
)
_PREFIX = rb"(?:^|[\n\r])(?:\[(?:rank)?\d+\]:\s?)?[efw](?:\d{4})?\s"
_CANDIDATE = re.compile(b"|".join((*_WORDS, _PREFIX)))
"""Found in every lower-case line that `classify` takes for more than NONE, and in few others."""
LINE_BYTES = 4096
"""Of a line so much is classified."""


def marks(data: bytes, after: After) -> tuple[list[tuple[int, Kind]], After]:
    """The lines that are more than NONE, as (place of the line, kind) with places from 0, and the state at the end.

    data: whole lines as printed. Lines without a word that could matter are not looked at one by one.
    """
    if b"\x1b" in data:
        data = _ESCAPE_BYTES.sub(b"", data)
    found: list[tuple[int, Kind]] = []
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    candidates = _candidates(data, lines)
    place = next(candidates, len(lines)) if after is After.NOTHING else 0
    while place < len(lines):
        kind, after = classify(_shown(lines[place]), after)
        if kind:
            found.append((place, kind))
        place += 1
        if after is After.NOTHING:
            place = next((line for line in candidates if line >= place), len(lines))
    return found, after


def _candidates(data: bytes, lines: list[bytes]) -> Iterator[int]:
    """Places of the lines in which a word of a level may be, ascending, perhaps several times."""
    low = data.lower()
    if not any(word in low for word in _WORDS) and not re.search(_PREFIX, low):
        return
    ends, end = [], 0
    for line in lines:
        end += len(line) + 1
        ends.append(end)
    for match in _CANDIDATE.finditer(low):
        # A prefix begins with the newline before its line.
        yield bisect_right(ends, min(match.start() + match.group().startswith(b"\n"), len(low) - 1))


def _shown(line: bytes) -> str:
    """The last version of a line that was rewritten with carriage returns."""
    line = line.rstrip(b"\r")
    return line[line.rfind(b"\r") + 1 :][:LINE_BYTES].decode("utf-8", "replace")
