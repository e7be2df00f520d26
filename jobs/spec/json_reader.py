"""JSON to plain values, strictly: what Python's parser lets pass is found and named."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from jobs.spec.problems import MAX_PROBLEMS, Problem, SpecError, printable
from jobs.spec.quantities import BadNumber, read_float, read_int

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 64
MAX_VALUES = 10_000

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]|,', re.DOTALL)


class JsonReader:
    """Reads one JSON text; problems gather as in the YAML reader, without places."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.problems: list[Problem] = []

    def read(self) -> Any:
        """Return the value. Raises SpecError where the text is no JSON, too deep or too large."""
        self._refuse_size()
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
        value = dict(pairs)
        if len(value) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            for name in [name for name, count in counts.items() if count > 1][:MAX_PROBLEMS]:
                shown = printable(name)
                self.problems.append(Problem(shown, "duplicate_key", f"the key {shown} is given twice"))
        return value

    def _refuse_size(self) -> None:
        """Count depth and values before anything is built. A key and its value are two texts at most."""
        depth = 0
        counts = {",": 0, '"': 0}
        for token in _TOKEN.finditer(self.text):
            character = token[0][0]
            if character in "[{":
                depth += 1
                if depth > MAX_DEPTH:
                    message = f"the body is nested deeper than {MAX_DEPTH} levels"
                    raise SpecError([Problem("", "body_too_deep", message)])
            elif character in "]}":
                depth -= 1
            else:
                counts[character] += 1
                if counts[","] > MAX_VALUES or counts['"'] > 2 * MAX_VALUES:
                    message = f"the body has more than {MAX_VALUES} values"
                    raise SpecError([Problem("", "body_too_large", message)])
