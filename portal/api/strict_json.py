"""Strict JSON bodies: NaN, duplicate keys, lone surrogates and deep nesting, which Python accepts, are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobs.spec import SpecError
from jobs.spec.json_reader import JsonReader
from jobs.spec.numbers import BadNumber
from portal.api.errors import MalformedRequest
from tenants.errors import problem

MAX_ERRORS = 50


def read(body: bytes) -> Any:
    """The value of a JSON text with at most 64 levels and 10,000 keys. Raises MalformedRequest with all problems."""
    try:
        reader = JsonReader(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise MalformedRequest(
            f"The body is not UTF-8 at byte {error.start}.", code="body_not_json"
        ) from error
    try:
        value = reader.read()
    except SpecError as error:
        raise _refused(error.as_list()) from error
    problems = [*(each.as_dict() for each in reader.problems), *_bad_values(value, "")]
    if problems:
        raise _refused(problems[:MAX_ERRORS])
    return value


def _refused(problems: list[dict[str, Any]]) -> MalformedRequest:
    first = problems[0]
    place = f" (line {first['line']}, column {first['column']})" if first.get("line") else ""
    return MalformedRequest(f"{first['message']}{place}.", code=first["code"], errors=problems)


def _bad_values(value: Any, path: str) -> Iterator[dict[str, Any]]:
    """Strings that PostgreSQL cannot store, and invalid numbers; the depth is limited already."""
    if isinstance(value, str):
        if "\0" in value:
            yield problem(path, "nul_in_text", "must not contain the NUL character")
        elif any(0xD800 <= ord(letter) <= 0xDFFF for letter in value):
            yield problem(path, "lone_surrogate", "must not contain half of a surrogate pair")
    elif isinstance(value, dict):
        for key, inner in value.items():
            shown = key.encode("ascii", "backslashreplace").decode()
            yield from _bad_values(key, f"{path}.{shown}".lstrip("."))
            yield from _bad_values(inner, f"{path}.{shown}".lstrip("."))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _bad_values(inner, f"{path}[{index}]")
    elif isinstance(value, BadNumber):
        yield problem(path, "not_a_number", "must be a finite number of at most 18 digits", value.text)
