"""The part of a spec with errors that can be judged, so that what the installation cannot serve is listed with them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from jobs.spec.definition import API_VERSION, RUNTIME_KEYS, json_schema
from jobs.spec.model import Spec
from jobs.spec.parsing import parse
from jobs.spec.problems import MAX_PROBLEMS, Problem, SpecError

_KNOWN = frozenset(json_schema()["properties"])
_FILLED: Mapping[str, Any] = {"apiVersion": API_VERSION, "name": "unknown", "command": "true"}
"""In place of required fields that are missing or wrong; nothing is found out about them."""
_WITHOUT_LIMITS = {"project", "opportunistic"}
"""Which limits of projects count is not known without them: then none does, as for an opportunistic job."""
_PARTS: Mapping[str, Set[str]] = {
    "learners": {"batch"},
    "batch": set(),
    "cpus": set(),
    "memory": set(),
    "gpu_type": set(),
}
"""Parts of `resources` of which the default is the least that there is, with what has no meaning without them."""
_OVER_ALL_LEARNERS = {"exceeds_gang_limit", "exceeds_user_limit", "exceeds_project_limit"}


@dataclass(frozen=True, slots=True)
class Sound:
    """A spec in which what was wrong is left out or assumed. left_out: those fields; parts: those of `resources`."""

    spec: Spec
    left_out: frozenset[str]
    parts: frozenset[str] = frozenset()

    def judged(self, problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
        """Those of the problems that neither come from an assumption nor count by one."""
        return tuple(problem for problem in problems if not self._is_assumed(problem))

    def _is_assumed(self, problem: Problem) -> bool:
        field, part = _field(problem), _part(problem)
        if field in self.left_out or part in self.parts:
            return True
        counts = part == "learners" or field == "topology" or problem.code in _OVER_ALL_LEARNERS
        return counts and bool(self.parts)


def sound_part(error: SpecError) -> Sound | None:
    """What remains of a refused spec without the fields that have errors; None: not enough, or no error fits beside."""
    sent = error.value
    if not isinstance(sent, Mapping) or len(error.problems) >= MAX_PROBLEMS:
        return None
    wrong = {field for problem in error.problems for field in _fields(problem)}
    if "" in wrong:
        return None
    runtimes = _runtimes(sent, error.problems)
    wrong = wrong - runtimes.keys()
    resources: Any = sent.get("resources")
    parts = _parts_to_leave_out(error.problems, resources) if wrong >= {"resources"} else frozenset()
    if parts:
        wrong.discard("resources")
    left_out = frozenset(wrong | ({"topology"} if "resources" in wrong else set()))
    kept = {
        key: part for key, part in sent.items() if key in _KNOWN - set(RUNTIME_KEYS) and key not in left_out
    }
    kept |= dict([*runtimes.items()][:1] or [("framework", "unknown")])
    if parts and "resources" in kept:
        kept["resources"] = {key: part for key, part in resources.items() if key not in parts}
        if "gpus" in parts:
            kept["resources"]["gpus"] = 1
    filled = {key: part for key, part in _FILLED.items() if key in left_out}
    if "code" not in kept and "image" not in kept:
        filled["code"] = {"files": {_file_of(kept.get("requirements")): ""}}
    try:
        spec = parse(filled | kept)
    except SpecError:
        return None
    unlimited = spec.opportunistic or bool(wrong & _WITHOUT_LIMITS)
    found: dict[str, Any] = {key: runtimes.get(key) for key in RUNTIME_KEYS}
    spec = replace(spec, opportunistic=unlimited, **found)
    return Sound(spec, left_out, parts)


def _runtimes(sent: Mapping[str, Any], problems: tuple[Problem, ...]) -> dict[str, str]:
    """What the spec is to run in, as far as nothing is wrong with it but that there is more than one: each is judged by
    itself, as that is no reason to hide another error."""
    wrong = {_field(problem) for problem in problems if problem.code != "exactly_one"}
    return {key: sent[key] for key in RUNTIME_KEYS if key in sent and key not in wrong}


def _file_of(requirements: Any) -> str:
    """A file that unknown code may have: the one that the requirements name, of which nothing is found out."""
    return str(requirements["file"]) if isinstance(requirements, Mapping) else "unknown"


def _parts_to_leave_out(problems: tuple[Problem, ...], resources: Any) -> frozenset[str]:
    """The wrong parts of `resources`, if the others can be judged without them; empty: they cannot."""
    if not isinstance(resources, Mapping):
        return frozenset()
    parts: set[str] = set()
    for problem in problems:
        if _field(problem) != "resources":
            if "resources" in _fields(problem):
                return frozenset()  # a part that was written beside them
            continue
        part = _part(problem)
        is_misspelled = problem.code == "unknown_field" and problem.path == f"resources.{part}"
        meant = _first(problem.near or "") if is_misspelled else part
        has_least = meant in _PARTS or (meant == "gpus" and isinstance(resources.get("gpu_type"), str))
        if not has_least:
            return frozenset()
        parts |= {part, meant, *_PARTS.get(meant, ())}
    return frozenset(parts)


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


def _part(problem: Problem) -> str:
    """The part of `resources` that a problem is in; "" for one elsewhere, or of all of them."""
    return _first(problem.path.removeprefix("resources.")) if problem.path.startswith("resources.") else ""


def _first(path: str) -> str:
    return re.split(r"[.\[]", path, maxsplit=1)[0]
