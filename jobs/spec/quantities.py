"""Quantities as a spec writes them: numbers with their text, durations in seconds, memory in MiB.

A number keeps its text, because ``env: {LR: 1e-3}`` must reach the program as 1e-3, not 0.001.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

MAX_DIGITS = 18

DURATION_PATTERN = r"^[0-9]{1,12}[smhd]$"
MEMORY_PATTERN = r"^[0-9]{1,12}(Mi|Gi|Ti)$"
DURATION_HELP = "a whole number with s, m, h or d: 90s, 10m, 12h, 2d"
MEMORY_HELP = "a whole number with Mi, Gi or Ti (powers of 1024): 512Mi, 4Gi"

SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
MEBIBYTES = {"Ti": 1_048_576, "Gi": 1_024, "Mi": 1}

_DURATION = re.compile(DURATION_PATTERN)
_MEMORY = re.compile(MEMORY_PATTERN)
_SPELLED = re.compile(
    r"([0-9]{1,9}) ?(s(?=$|ec)|m(?=$|in)|h(?=$|r|ou?r)|d(?=$|ay))[a-z]*", re.IGNORECASE | re.ASCII
)
"""A unit with its word written out: 10min, 2 days, 3hrs; 100ms and 1month are other units."""


class WrittenInt(int):
    """An int that remembers its text."""

    text: str


class WrittenFloat(float):
    """A float that remembers its text."""

    text: str


@dataclass(frozen=True, slots=True)
class BadNumber:
    """NaN, an infinity, or a number too large to hold; it is rejected at its place in the document."""

    text: str


def read_int(text: str) -> WrittenInt | BadNumber:
    """Return the int, or BadNumber beyond MAX_DIGITS digits."""
    if len(text) > MAX_DIGITS:
        return BadNumber(text)
    value = WrittenInt(text)
    value.text = text
    return value


def read_float(text: str) -> WrittenFloat | BadNumber:
    """Return the float, or BadNumber where it overflows."""
    value = WrittenFloat(text)
    value.text = text
    return value if math.isfinite(value) else BadNumber(text)


class UnitError(ValueError):
    """The text is no quantity; the message says what would be one."""


def parse_duration(text: str) -> int:
    """Return seconds of ``90s 10m 12h 2d``. Raises UnitError with the remedy."""
    if _DURATION.fullmatch(text):
        return int(text[:-1]) * SECONDS[text[-1]]
    raise UnitError(_unpadded(text, _DURATION) or _duration_remedy(text.strip()))


def print_duration(seconds: int) -> str:
    """Return the largest unit that divides: 600 -> 10m, 86400 -> 1d; below two minutes seconds (60s)."""
    if seconds >= 120:
        for unit, size in SECONDS.items():
            if seconds % size == 0:
                return f"{seconds // size}{unit}"
    return f"{seconds}s"


def parse_memory(text: str) -> int:
    """Return MiB of ``512Mi 4Gi 1Ti``. Raises UnitError with the remedy."""
    if _MEMORY.fullmatch(text):
        return int(text[:-2]) * MEBIBYTES[text[-2:]]
    raise UnitError(_unpadded(text, _MEMORY) or _memory_remedy(text.strip()))


def print_memory(mebibytes: int) -> str:
    """Return the shortest exact form: 4096 -> 4Gi, 1536 -> 1536Mi."""
    for unit, size in MEBIBYTES.items():
        if mebibytes and mebibytes % size == 0:
            return f"{mebibytes // size}{unit}"
    return f"{mebibytes}Mi"


def say_memory(mebibytes: int) -> str:
    """Return it for people, never more than there is: 24105 -> 23.5 GiB."""
    if mebibytes < MEBIBYTES["Gi"]:
        return f"{mebibytes} MiB"
    return f"{math.floor(mebibytes / MEBIBYTES['Gi'] * 10) / 10:g} GiB"


def _unpadded(text: str, form: re.Pattern[str]) -> str | None:
    return f"has space around it: write {text.strip()}" if form.fullmatch(text.strip()) else None


def _duration_remedy(text: str) -> str:
    if re.fullmatch(r"[0-9]{1,9}", text):
        return f"has no unit: write {text}s for seconds, or {text}m for minutes"
    compound = re.fullmatch(r"(?:([0-9]{1,4})h)?(?:([0-9]{1,5})m)?(?:([0-9]{1,6})s)?", text)
    if text and compound:
        hours, minutes, seconds = (int(part or 0) for part in compound.groups())
        return f"has several units: write {print_duration(hours * 3600 + minutes * 60 + seconds)}"
    if spelled := _SPELLED.fullmatch(text):
        return f"Unknown unit. Did you mean {spelled[1]}{spelled[2].lower()}?"
    if weeks := re.fullmatch(r"([0-9]{1,9}) ?w(?:eeks?)?", text, re.IGNORECASE):
        return f"Unknown unit. Did you mean {int(weeks[1]) * 7}d?"
    if milliseconds := re.fullmatch(r"([0-9]{1,9}) ?(?:ms|milli[a-z]*)", text, re.IGNORECASE):
        return f"is in milliseconds; the shortest unit is s: write {max(1, math.ceil(int(milliseconds[1]) / 1000))}s"
    return f"is not a duration: write {DURATION_HELP}"


def _memory_remedy(text: str) -> str:
    if re.fullmatch(r"[0-9]{1,9}", text):
        return f"has no unit: write {text}Mi or {text}Gi"
    other = re.fullmatch(r"([0-9]{1,9}) ?([mgt])(i?b?)", text, re.IGNORECASE)
    if other:
        return f'Unknown unit "{other[2]}{other[3]}". Did you mean {other[1]}{other[2].upper()}i?'
    decimal = re.fullmatch(r"([0-9]{1,6}\.[0-9]{1,3}) ?(Gi|Ti)", text)
    if decimal:
        return f"is not whole: write {round(float(decimal[1]) * MEBIBYTES[decimal[2]])}Mi"
    return f"is not an amount of memory: write {MEMORY_HELP}"
