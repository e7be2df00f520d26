"""Checks of one field of a frame: each takes (field name, value) and returns the value to keep, or raises WireError.

Standard library only, Python 3.8 or newer: the launcher's side ships it, too.
"""

from __future__ import annotations

import math
import re
from typing import Any, Callable, Dict, List, Tuple

MAX_OFFSET = 2**62
NAME_CHARS = 120
MAX_WORLD = 10**6
PATH_CHARS = 1_024

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class WireError(ValueError):
    """These bytes are not a frame; the message names the field and what it must be."""


Check = Callable[[str, Any], Any]


def whole(low: int = 0, high: int = MAX_OFFSET) -> Check:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise WireError(f"{name}: a whole number from {low} to {high} is needed")
        return value

    return check


def text(chars: int, *, least: int = 0) -> Check:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or not least <= len(value) <= chars:
            raise WireError(f"{name}: text of {least} to {chars} characters is needed")
        if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
            raise WireError(f"{name}: NUL and lone surrogates are not text")
        return value

    return check


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise WireError(f"{name}: true or false is needed")
    return value


def one_of(*words: str) -> Check:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise WireError(f"{name}: one of {', '.join(words)} is needed")
        return value

    return check


def maybe(inner: Check) -> Check:
    def check(name: str, value: Any) -> Any:
        return None if value is None else inner(name, value)

    return check


def rows(limit: int, *columns: Check) -> Check:
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


def cursors(name: str, value: Any) -> Dict[str, int]:
    if not isinstance(value, dict) or len(value) > 100:
        raise WireError(f"{name}: an object of at most 100 cursors is needed")
    return {text(NAME_CHARS)(name, key): whole()(name, cell) for key, cell in value.items()}


def details(name: str, value: Any) -> Dict[str, Any]:
    """A flat object of short texts, numbers, flags and nulls."""
    if not isinstance(value, dict) or len(value) > 50:
        raise WireError(f"{name}: an object of at most 50 fields is needed")
    kept: Dict[str, Any] = {}
    for key, cell in value.items():
        if isinstance(cell, str):
            cell = text(4_000)(name, cell)
        elif isinstance(cell, int) and not isinstance(cell, bool):
            cell = whole(-MAX_OFFSET)(name, cell)
        elif not (
            cell is None or isinstance(cell, bool) or (isinstance(cell, float) and math.isfinite(cell))
        ):
            raise WireError(f"{name}: {key[:40]!r} must be text, a number, a flag or null")
        kept[text(60)(name, key)] = cell
    return kept


def sha256(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _SHA256.match(value):
        raise WireError(f"{name}: 64 lower-case hexadecimal digits are needed")
    return value


def path(name: str, value: Any) -> str:
    """A relative path of plain steps; it is only ever compared and stored, never opened by the server."""
    kept: str = text(PATH_CHARS, least=1)(name, value)
    steps = kept.split("/")
    if "\\" in kept or any(step in ("", ".", "..") for step in steps):
        raise WireError(f"{name}: a relative path without '..', '.', empty steps and backslashes is needed")
    return kept
