"""The part of a spec with errors that can be judged, so that what the installation cannot serve is listed with them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.spec.definition import API_VERSION, json_schema
from jobs.spec.model import Spec
from jobs.spec.parsing import parse
from jobs.spec.problems import MAX_PROBLEMS, Problem, SpecError

_KNOWN = frozenset(json_schema()["properties"])
_FILLED: Mapping[str, Any] = {
    "apiVersion": API_VERSION,
    "name": "unknown",
    "command": "true",
    "framework": "unknown",
    "code": {"files": {"unknown": ""}},
}
"""In place of required fields that are missing or wrong; nothing is found out about them."""
_TOGETHER = (
    {"framework", "python", "image"},
    {"code", "requirements"},
    {"resources", "topology", "project", "opportunistic"},
)
"""Fields that are judged together, so that none is judged by what is assumed of another."""


@dataclass(frozen=True, slots=True)
class Sound:
    """A spec in which what was wrong is left out or assumed. left_out: those fields."""

    spec: Spec
    left_out: frozenset[str]

    def judged(self, problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
        """Those of the problems that do not come from an assumption."""
        return tuple(problem for problem in problems if _field(problem) not in self.left_out)


def sound_part(error: SpecError) -> Sound | None:
    """What remains of a refused spec without the fields that have errors; None: not enough, or no error fits beside."""
    if not isinstance(error.value, Mapping) or len(error.problems) >= MAX_PROBLEMS:
        return None
    wrong = {field for problem in error.problems for field in _fields(problem)}
    if "" in wrong:
        return None
    left_out = frozenset(wrong.union(*(group for group in _TOGETHER if group & wrong)))
    kept = {key: part for key, part in error.value.items() if key in _KNOWN and key not in left_out}
    filled = {
        key: part
        for key, part in _FILLED.items()
        if key in left_out and not (key == "code" and "image" in kept)
    }
    if filled.get("framework"):
        filled.setdefault("code", _FILLED["code"])
    try:
        return Sound(parse(filled | kept), left_out)
    except SpecError:
        return None


def _fields(problem: Problem) -> set[str]:
    """The fields at the top that a problem is about; of a misspelled one also what was meant, whose default is not the
    author's choice."""
    if problem.code == "duplicate_key" and problem.line is None:
        return {""}  # of JSON: in which mapping is not known
    field = _field(problem)
    if problem.code == "unknown_field" and problem.near and field == problem.path:
        return {field, _first(problem.near)}
    return {field}


def _field(problem: Problem) -> str:
    """The name of the field at the top that a problem is in; "" for one of the document."""
    return _first(problem.path) if problem.path[:1] != "[" else problem.path


def _first(path: str) -> str:
    return re.split(r"[.\[]", path, maxsplit=1)[0]
