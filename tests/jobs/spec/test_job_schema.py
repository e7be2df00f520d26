"""The published schema and the checks are one definition: what one takes, the other takes."""

from __future__ import annotations

import copy
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from jobs.spec import json_schema, parse
from jobs.spec.definition import DEFAULTS, MAX_PATTERN_CHARS
from jobs.spec.walk import KEYWORDS
from tests.jobs.spec.test_bad_specs import RANGES
from tests.jobs.spec.test_job_spec import FULL, LEAST, codes, spec_with

VALIDATOR = Draft202012Validator(json_schema())
# Rules over several fields and over the meaning of a text, which a schema cannot express.
BEYOND_SCHEMA = {
    "unsafe_path", "env_reserved", "env_too_large", "code_too_large", "gpu_type_without_gpus",
    "batch_without_range",    "regex_no_step", "regex_syntax", "regex_unsafe",
    "nul_forbidden", "lone_surrogate", "number_not_finite",
}  # fmt: skip


def test_schema_is_a_valid_schema() -> None:
    Draft202012Validator.check_schema(json_schema())


def test_schema_constrains_by_nothing_that_the_check_does_not_interpret() -> None:
    notes = {"$schema", "$id", "title", "description", "default"}
    unknown = {
        word for word in keywords(json_schema()) if word not in KEYWORDS | notes and not word.startswith("x-")
    }
    assert unknown == set()


def keywords(schema: object) -> set[str]:
    """Every keyword of a schema and of the schemas inside it; the names of fields are none."""
    if isinstance(schema, list):
        return set().union(*map(keywords, schema))
    if not isinstance(schema, dict):
        return set()
    inner = [keywords(part) for part in schema.get("properties", {}).values()]
    inner += [
        keywords(schema[key])
        for key in ("items", "propertyNames", "additionalProperties", "oneOf")
        if key in schema
    ]
    return set(schema).union(*inner)


def test_schema_is_a_fresh_copy() -> None:
    json_schema()["properties"].clear()
    assert json_schema()["properties"]


@pytest.mark.parametrize("spec", [LEAST, parse(FULL).normalized, parse(LEAST).normalized])
def test_valid_specs_pass_the_published_schema(spec: dict[str, object]) -> None:
    VALIDATOR.validate(spec)


@pytest.mark.parametrize(("key", "value", "path", "code"), RANGES, ids=lambda part: str(part)[:40])
def test_schema_refuses_what_the_check_refuses(key: str, value: object, path: str, code: str) -> None:
    refused = not VALIDATOR.is_valid(spec_with() | {key: value})
    beyond = code in BEYOND_SCHEMA or (
        code in {"out_of_range", "duplicate"} and isinstance(value, str | list | dict)
    )
    assert refused or beyond or path == "command[0]"


def test_every_field_says_what_it_is_and_its_default() -> None:
    for path, schema in fields(json_schema()):
        assert schema.get("description", "").endswith("."), path
    for key, default in DEFAULTS.items():
        assert json_schema()["properties"][key]["default"] == default


def test_every_default_passes_its_own_schema() -> None:
    for path, schema in fields(json_schema()):
        if "default" in schema:
            assert Draft202012Validator(schema).is_valid(schema["default"]), path


def test_patterns_mean_the_same_in_browsers() -> None:
    """No syntax that ECMAScript lacks: possessive, atomic and Python-named groups, \\A, \\Z."""
    for pattern in re.findall(r"'pattern': '((?:[^'\\]|\\.)*)'", repr(json_schema())):
        assert not re.search(r"\\[AZ]|\(\?P|\(\?>|[*+?}]\+", pattern)


@given(st.data())
def test_whatever_the_check_takes_the_schema_takes(data: st.DataObject) -> None:
    """Mutate a valid spec; specs that still pass must pass the schema, as given and normalized."""
    spec = copy.deepcopy(data.draw(st.sampled_from([spec_with(), parse(FULL).normalized])))
    schema = json_schema()["properties"]
    for key in data.draw(st.sets(st.sampled_from(sorted(schema)), max_size=3)):
        spec[key] = data.draw(values_for(schema[key]))
    if not codes(spec):
        VALIDATOR.validate(spec)
        VALIDATOR.validate(parse(spec).normalized)
        assert parse(parse(spec).normalized) == parse(spec)


def values_for(schema: dict[str, object]) -> st.SearchStrategy[object]:
    """Values near the edges of one field: many valid, some not."""
    text = st.text(max_size=6) | st.from_regex(r"[a-z0-9]{1,5}", fullmatch=True)
    numbers = st.integers(-2, 70) | st.floats(0, 3)
    units = st.sampled_from(["90s", "10m", "12h", "2d", "512Mi", "4Gi", "1h", "60s", "86400s", "1024Mi", "x"])
    choices = st.sampled_from(["pack", "spread", "low", "normal", "cpu", "a100", "luthier/v1"])
    plain = text | numbers | units | choices
    properties = schema.get("properties")
    if isinstance(properties, dict):
        optional = {name: values_for(part) for name, part in properties.items()}
        return st.fixed_dictionaries({}, optional=optional)
    if "additionalProperties" in schema:
        return st.dictionaries(st.from_regex(r"[A-Z][A-Z_]{0,6}", fullmatch=True), plain, max_size=3)
    if isinstance(schema.get("items"), dict):
        return st.lists(values_for(schema["items"]), max_size=3)  # type: ignore[arg-type]
    return plain | st.lists(text, max_size=2)


def fields(schema: dict[str, object], path: str = "") -> list[tuple[str, dict[str, object]]]:
    """Every named field of the schema, with its dotted path."""
    found = []
    for name, part in schema.get("properties", {}).items():  # type: ignore[attr-defined]
        here = f"{path}.{name}" if path else name
        found += [(here, part), *fields(part, here)]
        if isinstance(part.get("items"), dict):
            found += fields(part["items"], f"{here}[]")
    return found


def test_pattern_length_is_one_number() -> None:
    pattern = "x" * MAX_PATTERN_CHARS + "(?P<a>b)"
    assert codes(spec_with(metrics=[{"pattern": pattern}])) == {"metrics[0].pattern": "too_long"}
