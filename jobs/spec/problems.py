"""Problems of a job spec, in a shape that an API, a form and a terminal can show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

MAX_PROBLEMS = 50
"""The most problems reported at once; the last one says that there are more."""

MAX_GATHERED = 2 * MAX_PROBLEMS
"""Checking stops after this many, so that a document full of faults costs no more than a valid one."""

MAX_GOT = 200
"""Characters of the offending value that are echoed."""

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding. path names the field (``resources.learners``, ``data[0].path``), "" the document. message continues
    the field's name ("is required"), or is a sentence of its own if it begins with a capital letter.

    got is the offending value as printable text, allowed what would have been accepted; line and column
    count from 1 and are known for YAML only. near is what was most likely meant: of an unknown_field the name, with
    dots where it belongs deeper, else the value.
    """

    path: str
    code: str
    message: str
    got: str | None = None
    allowed: str | None = None
    line: int | None = None
    column: int | None = None
    near: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON shape of one entry of ``errors`` (RFC 9457 extension)."""
        return {
            "path": self.path,
            "code": self.code,
            "message": self.message,
            "got": self.got,
            "allowed": self.allowed,
            "line": self.line,
            "column": self.column,
            "near": self.near,
        }

    def __str__(self) -> str:
        place = f"line {self.line}, column {self.column}: " if self.line else ""
        return f"{place}{self.path + ': ' if self.path else ''}{self.message}"


class SpecError(Exception):
    """The job spec is not valid. value: the document, where it could be read. codes: of all problems in order, also of
    those that are not listed."""

    def __init__(self, problems: Iterable[Problem], value: Any = None) -> None:
        known = list(problems)
        self.codes = tuple(problem.code for problem in known)
        self.problems = shortened(known)
        self.value = value
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def as_list(self) -> list[dict[str, Any]]:
        """Return every problem in its JSON shape, in the order of the document."""
        return [problem.as_dict() for problem in self.problems]


def shortened(problems: list[Problem]) -> tuple[Problem, ...]:
    """Keep at most MAX_PROBLEMS; the last one kept then says how many more there are."""
    if len(problems) <= MAX_PROBLEMS:
        return tuple(problems)
    last = problems[MAX_PROBLEMS - 1]
    more = str(len(problems) - MAX_PROBLEMS) if len(problems) < MAX_GATHERED else "many"
    kept = problems[: MAX_PROBLEMS - 1]
    return (*kept, replace(last, message=f"{last.message} ({more} more problems not shown)"))


def printable(value: object) -> str:
    """Return a short, single-line text of a value, non-printable characters escaped, to be shown back to its author."""
    text = value if isinstance(value, str) else _json_like(value)
    text = "".join(_escaped(character) for character in text[: MAX_GOT + 1])
    return text if len(text) <= MAX_GOT else text[: MAX_GOT - 1] + "…"


def path_text(path: Path) -> str:
    """Return ``data[0].path`` for ("data", 0, "path"); keys that are no plain word are quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.replace("_", "a").isalnum():
            text += f".{part}" if text else part
        else:
            text += f'["{printable(part)}"]'
    return text


def _json_like(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return f"a mapping of {len(value)} keys"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)} items"
    return str(value)


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
