"""From submitted text to a valid Spec, or to everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from jobs.spec import reading
from jobs.spec.definition import json_schema
from jobs.spec.model import Spec, build, written
from jobs.spec.problems import MAX_GATHERED, Path, Problem, SpecError, printable
from jobs.spec.rules import foreign_manifest, rule_faults
from jobs.spec.units import parse_duration
from jobs.spec.walk import Walk

_SCHEMA = json_schema()


def parse(source: str | bytes | Mapping[str, Any], content_type: str | None = None) -> Spec:
    """Read and check a job spec.

    source: YAML or JSON as text or bytes, or an object already read. content_type: a Content-Type header;
    None takes an object as it is, and detects JSON or YAML by the first character.
    Raises SpecError with every problem at once, at most 50, in the order of the document.
    """
    document = reading.read(source, content_type)
    walk = Walk(document.places)
    if not isinstance(document.value, Mapping):
        message = "a job spec is a mapping of keys to values"
        problem = walk.problem((), "wrong_type", message, document.value, "apiVersion, name, command, …")
        raise SpecError([*document.problems, problem])
    problems = [*document.problems, *islice(_faults(document, walk), MAX_GATHERED)]
    if problems:
        raise SpecError(sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0)))
    return build(document.value, tuple(_warnings(document.value, walk)))


def _faults(document: reading.Document, walk: Walk) -> Iterator[Problem]:
    """Yield what is wrong with the content: one problem per field, the most useful first."""
    foreign = foreign_manifest(document.value, walk)
    if foreign:
        yield foreign
        return
    reported = {problem.path for problem in document.problems if problem.code != "duplicate_key"} - {""}
    for faults in (walk.faults(document.value, _SCHEMA), rule_faults(document.value, walk)):
        fresh = [problem for problem in islice(faults, MAX_GATHERED) if problem.path not in reported]
        yield from fresh
        reported.update(problem.path for problem in fresh)


def _warnings(value: Mapping[str, Any], walk: Walk) -> Iterator[Problem]:
    for name, item in value.get("env", {}).items():
        if not isinstance(item, str):
            message = f'is a number or true/false; the program sees the text "{printable(written(item))}"'
            yield walk.problem(("env", name), "env_not_text", message, written(item))
    path: Path = ("image",)
    if str(value.get("image", "")).endswith(":latest"):
        message = "latest changes without notice, so a resumed attempt may run something else"
        yield walk.problem(path, "image_latest", message, value["image"])
    checkpoint = value.get("checkpoint", {})
    if "time_limit" in value and "every" in checkpoint and _shorter(value["time_limit"], checkpoint["every"]):
        message = "is longer than the time limit, so the job may end before its first checkpoint"
        yield walk.problem(("checkpoint", "every"), "checkpoint_after_limit", message, checkpoint["every"])


def _shorter(one: str, other: str) -> bool:
    return parse_duration(one) < parse_duration(other)
