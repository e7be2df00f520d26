"""Validate a value against the schema and report every fault with a remedy.

Covers only the keywords that ``definition.py`` uses. A library's validator says "'two' is not of type 'integer'"; this
one says what to write, how to spell the key, and at which line and column. docs/adr/0021 says what was measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from jobs.spec import quantities
from jobs.spec.problems import Path, Problem, path_text, printable
from jobs.spec.quantities import BadNumber

Schema = Mapping[str, Any]
Places = Mapping[Path, tuple[int, int]]

KEYWORDS = frozenset(
    {"type", "const", "enum", "oneOf", "properties", "required", "additionalProperties", "propertyNames"}
    | {"items", "uniqueItems", "minItems", "maxItems", "minProperties", "maxProperties"}
    | {"pattern", "minLength", "maxLength", "minimum", "maximum"}
)
"""What this walk interprets; the schema may constrain by nothing else."""

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (Mapping,),
    "array": (list, tuple),
}
_TYPE_WORDS = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "a mapping of keys to values",
    "array": "a list",
}


@dataclass(frozen=True, slots=True)
class Walk:
    """One pass over a document; places gives line and column of a path where they are known."""

    places: Places

    def faults(self, value: Any, schema: Schema, path: Path = ()) -> Iterator[Problem]:
        """Yield every fault of value and its parts, in the order of the document."""
        if isinstance(value, BadNumber):
            return  # reported when it was read
        wrong = self._own_fault(value, schema, path)
        if wrong:
            yield wrong
        elif "oneOf" in schema and "properties" not in schema:
            yield from self._either(value, schema["oneOf"], path)
        elif isinstance(value, Mapping):
            yield from self._mapping_faults(value, schema, path)
        elif isinstance(value, list | tuple):
            yield from self._list_faults(value, schema, path)

    def problem(
        self,
        path: Path,
        code: str,
        message: str,
        got: Any = None,
        allowed: str | None = None,
        near: str | None = None,
    ) -> Problem:
        """Return a Problem with line and column; a missing key gets those of the mapping that lacks it."""
        line, column = self.places.get(path) or self.places.get(path[:-1]) or (None, None)
        shown = None if got is None else printable(got)
        return Problem(path_text(path), code, message, shown, allowed, line, column, near)

    def _own_fault(self, value: Any, schema: Schema, path: Path) -> Problem | None:
        if "const" in schema and value != schema["const"]:
            message = f"must be {schema['const']}"
            return self.problem(path, "wrong_value", message, _got(value), schema["const"])
        if "enum" in schema and value not in schema["enum"]:
            return self._not_in_enum(value, schema["enum"], path)
        expected = _expected_types(schema)
        if expected and not any(_is_type(value, name) for name in expected):
            return self._wrong_type(value, schema, expected, path)
        if isinstance(value, str):
            return self._text_fault(value, schema, path)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self._range_fault(value, schema, path)
        return None

    def _wrong_type(self, value: Any, schema: Schema, expected: list[str], path: Path) -> Problem:
        words = " or ".join(_TYPE_WORDS[name] for name in expected)
        if "x-unit" in schema and isinstance(value, int | float) and not isinstance(value, bool):
            remedy = _unit_fault(str(getattr(value, "text", value)), schema) or ""
            return self.problem(path, "bad_unit", remedy, value, schema["x-help"])
        if value is None:
            return self.problem(
                path, "wrong_type", f"is empty: give {words}, or remove the key", "null", words
            )
        message = f"must be {words}, not {_kind(value)}"
        if expected == ["string"] and not isinstance(value, Mapping | list | tuple):
            shown = str(getattr(value, "text", value)).lower() if isinstance(value, bool) else value
            message += f': put it in quotes, "{printable(shown)}"'
        return self.problem(path, "wrong_type", message, value, words)

    def _text_fault(self, value: str, schema: Schema, path: Path) -> Problem | None:
        if len(value) > schema.get("maxLength", len(value)):
            allowed = f"at most {schema['maxLength']} characters"
            code = schema.get("x-code", "too_long")
            return self.problem(
                path, code, f"{_item(value, path)}has {len(value)} characters", value, allowed
            )
        if len(value) < schema.get("minLength", 0):
            return self.problem(path, "too_short", "is empty", value, schema.get("x-help"))
        if "x-unit" in schema:
            remedy = _unit_fault(value, schema)
            if remedy:
                code = "out_of_range" if remedy.startswith("must") else "bad_unit"
                allowed = f"{schema['x-minimum']} to {schema['x-maximum']}; {schema['x-help']}"
                return self.problem(path, code, remedy, value, allowed)
            return None
        if "pattern" in schema and not _compiled(schema["pattern"]).search(value):
            help_text = schema.get("x-help", "a value that is not blank")
            code = schema.get("x-code", "bad_format")
            message = f"{_item(value, path)}is not valid: write {help_text}"
            return self.problem(path, code, message, value, help_text)
        return None

    def _range_fault(self, value: float, schema: Schema, path: Path) -> Problem | None:
        least, most = schema.get("minimum"), schema.get("maximum")
        if (least is None or value >= least) and (most is None or value <= most):
            return None
        bounds = f"{least} to {most}"
        return self.problem(path, "out_of_range", f"must be {bounds}", value, bounds)

    def _not_in_enum(self, value: Any, choices: list[str], path: Path) -> Problem:
        near = nearest(value, choices)
        hint = f". Did you mean {near}?" if near else ""
        written = str(getattr(value, "text", value))
        if not isinstance(value, str) and written in choices:
            near, hint = written, f', as text: put it in quotes, "{written}"'
        message = f"must be one of {', '.join(choices)}{hint}"
        return self.problem(path, "not_a_choice", message, _got(value), ", ".join(choices), near)

    def _mapping_faults(self, value: Mapping[Any, Any], schema: Schema, path: Path) -> Iterator[Problem]:
        known = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                hint = known.get(name, {}).get("description")
                yield self.problem((*path, name), "required", "is required", allowed=hint)
        yield from self._size_fault(value, schema, path)
        for key, part in value.items():
            if not isinstance(key, str):
                continue  # reported when it was read
            here = (*path, key)
            if key in known:
                yield from self.faults(part, known[key], here)
            elif schema.get("additionalProperties", True) is False:
                yield self._unknown(key, known, [name for name in known if name not in value], path)
            else:
                yield from self._free_key_faults(key, part, schema, here)

    def _free_key_faults(self, key: str, part: Any, schema: Schema, here: Path) -> Iterator[Problem]:
        names = schema.get("propertyNames", {})
        if "pattern" in names and not _compiled(names["pattern"]).search(key):
            message = "is not a usable name: letters, digits and _, not beginning with a digit"
            yield self.problem(here, "bad_name", message, key)
        if not names.get("minLength", 0) <= len(key) <= names.get("maxLength", len(key)):
            yield self.problem(here, "bad_name", f"must have 1 to {names['maxLength']} characters", key)
        yield from self.faults(part, schema["additionalProperties"], here)

    def _list_faults(
        self, value: list[Any] | tuple[Any, ...], schema: Schema, path: Path
    ) -> Iterator[Problem]:
        yield from self._size_fault(value, schema, path)
        seen: set[Any] = set()
        for index, part in enumerate(value):
            yield from self.faults(part, schema.get("items", {}), (*path, index))
            if schema.get("uniqueItems") and isinstance(part, str):
                if part in seen:
                    yield self.problem(
                        (*path, index), "duplicate", f"`{printable(part)}` is given twice", part
                    )
                seen.add(part)

    def _size_fault(self, value: Any, schema: Schema, path: Path) -> Iterator[Problem]:
        word = "Properties" if isinstance(value, Mapping) else "Items"
        least, most = schema.get(f"min{word}", 0), schema.get(f"max{word}", len(value))
        if least <= len(value) <= most:
            return
        if (least, most) == (1, 1):
            names = " or ".join(schema.get("properties", {}))
            yield self.problem(path, "exactly_one", f"needs exactly one of {names}", value, names)
        elif len(value) < least:
            yield self.problem(path, "too_few", "is empty", value, f"{least} or more")
        else:
            yield self.problem(path, "too_many", f"has {len(value)} entries", value, f"at most {most}")

    def _unknown(self, key: str, known: Schema, free: list[str], path: Path) -> Problem:
        taken = [name for name in known if name not in free]
        near = nearest(key, [*free, *taken]) or _nearest_inside(key, known)
        hint = f". Did you mean `{near}`?" if near else ""
        message = f"`{printable(key)}` is not a field here{hint}"
        return self.problem((*path, key), "unknown_field", message, key, ", ".join(known), near)

    def _either(self, value: Any, choices: list[Schema], path: Path) -> Iterator[Problem]:
        """Report against the one alternative whose type fits; none fitting is a fault of its own."""
        for choice in choices:
            if _is_type(value, choice["type"]):
                yield from self.faults(value, choice, path)
                return
        words = " or ".join(_TYPE_WORDS[choice["type"]] for choice in choices)
        yield self.problem(path, "wrong_type", f"must be {words}, not {_kind(value)}", _got(value), words)


def _item(value: str, path: Path) -> str:
    """The entry of a list itself: a form shows all of them in one field, so its number alone finds nothing."""
    return f"`{printable(value)}` " if path and isinstance(path[-1], int) else ""


def _unit_fault(text: str, schema: Schema) -> str | None:
    parse = quantities.parse_duration if schema["x-unit"] == "duration" else quantities.parse_memory
    try:
        amount = parse(text)
    except quantities.UnitError as error:
        return str(error)
    if parse(schema["x-minimum"]) <= amount <= parse(schema["x-maximum"]):
        return None
    return f"must be {schema['x-minimum']} to {schema['x-maximum']}"


def _expected_types(schema: Schema) -> list[str]:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _is_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()  # the schema's own rule: 1.0 is a whole number
    return isinstance(value, _TYPES[name])


def _kind(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, float):
        return "a number with a fraction"
    return next((_TYPE_WORDS[name] for name in _TYPES if _is_type(value, name)), type(value).__name__)


def _got(value: Any) -> Any:
    return "null" if value is None else value


def _nearest_inside(key: str, known: Schema) -> str | None:
    """Find the word one level down: ``learners`` belongs in ``resources.learners``."""
    inside = {
        part: f"{name}.{part}" for name, schema in known.items() for part in schema.get("properties", {})
    }
    near = nearest(key, list(inside))
    return inside[near] if near else None


def nearest(word: Any, choices: list[str]) -> str | None:
    """Return the choice that a mistyped word most likely meant, the earlier of two that are as near, or None."""
    if not isinstance(word, str) or len(word) > 64:
        return None
    lowered = {choice.lower(): choice for choice in choices}
    typed = word.lower().replace("-", "_")
    near = get_close_matches(typed, lowered, n=5, cutoff=0.6)
    return min(
        (lowered[one] for one in lowered if one in near),
        key=lambda one: _slips(typed, one.lower()),
        default=None,
    )


def _slips(typed: str, meant: str) -> int:
    """How many letters were left out, added, replaced or swapped with a neighbor (optimal string alignment)."""
    before: list[int] = []
    last = list(range(len(meant) + 1))
    for i, letter in enumerate(typed):
        row = [i + 1]
        for j, right in enumerate(meant):
            slips = min(last[j + 1] + 1, row[j] + 1, last[j] + (letter != right))
            if i and j and (letter, typed[i - 1]) == (meant[j - 1], right):
                slips = min(slips, before[j - 1] + 1)
            row.append(slips)
        before, last = last, row
    return last[-1]


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    # ECMA's $ is the very end; Python's also matches before a last newline.
    return re.compile(pattern[:-1] + r"\Z" if pattern.endswith("$") else pattern)
