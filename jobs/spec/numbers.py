"""Numbers as they were written: ``env: {LR: 1e-3}`` must reach the program as 1e-3, not 0.001."""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_DIGITS = 18


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
