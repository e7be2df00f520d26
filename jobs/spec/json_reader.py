"""JSON to plain values, strictly: what Python's parser lets pass is found and named."""

from __future__ import annotations

import json
import re
from typing import Any

from jobs.spec.numbers import BadNumber, read_float, read_int
from jobs.spec.problems import Problem, SpecError, printable

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 64
MAX_KEYS = 10_000

_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


class JsonReader:
    """Reads one JSON text; problems gather as in the YAML reader, without places."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.problems: list[Problem] = []
        self._keys = 0

    def read(self) -> Any:
        """Return the value. Raises SpecError where the text is no JSON, too deep or too large."""
        self._refuse_depth()
        try:
            return json.loads(
                self.text,
                object_pairs_hook=self._mapping,
                parse_constant=BadNumber,
                parse_float=read_float,
                parse_int=read_int,
            )
        except json.JSONDecodeError as error:
            message = f"the body is not JSON: {error.msg}"
            problem = Problem("", "body_not_json", message, line=error.lineno, column=error.colno)
            raise SpecError([problem]) from error

    def _mapping(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self._keys += len(pairs)
        if self._keys > MAX_KEYS:
            raise SpecError([Problem("", "body_too_large", f"the body has more than {MAX_KEYS} keys")])
        value = dict(pairs)
        if len(value) < len(pairs):
            names = [name for name, _ in pairs]
            for name in sorted(name for name in value if names.count(name) > 1)[:10]:
                shown = printable(name)
                self.problems.append(Problem(shown, "duplicate_key", f"the key {shown} is given twice"))
        return value

    def _refuse_depth(self) -> None:
        depth = 0
        for token in _STRING_OR_BRACKET.finditer(self.text):
            character = token[0][0]
            if character == '"':
                continue
            depth += 1 if character in "[{" else -1
            if depth > MAX_DEPTH:
                message = f"the body is nested deeper than {MAX_DEPTH} levels"
                raise SpecError([Problem("", "body_too_deep", message)])
