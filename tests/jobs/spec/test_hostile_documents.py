"""Documents meant to hurt: each is refused by its own code, at its own place, in bounded time and memory.

A file of the corpus is named CODE[.LINE-COLUMN][.WORD].yaml|json, so a new one needs no code.
"""

from __future__ import annotations

import json
import re
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.spec import SpecError, parse
from tests.jobs.spec.test_job_spec import FULL

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())
CPU_S = 0.05
MIB = 1024 * 1024

LARGE_YAML = {
    "brackets": "[" * 100_000,
    "braces": "{" * 100_000,
    "braces with keys": "{a: " * 60_000,
    "nested lists by dashes": "- " * 100_000,
    "nested keys by question marks": "? " * 100_000,
    "nested keys": "".join(" " * depth + "a:\n" for depth in range(700)),
    "one long list": "a: [" + "1," * 120_000 + "]",
    "one long mapping": "a: {" + "".join(f"k{n}: 1, " for n in range(20_000)) + "}",
    "keys of a block": "".join(f"k{n}: 1\n" for n in range(20_000)),
    "quotes without end": "a: '" + "''" * 120_000,
    "double quotes without end": 'a: "' + "\\\\" * 120_000,
    "escapes": 'a: "' + "\\x41" * 60_000 + '"',
    "plain text of many lines": "a: " + "b\n " * 80_000,
    "comments": "# c\n" * 60_000,
    "blank lines": "\n" * 250_000,
    "anchors": "a: [" + "&a 1," * 40_000 + "]",
    "aliases": "a: [" + "*a," * 80_000 + "]",
    "tags": "a: [" + "!!str 1," * 30_000 + "]",
    "documents": "---\n" * 60_000,
    "dashes": "-\n" * 120_000,
    "colons": ":" * 250_000,
    "key without end": "a" * 250_000,
    "block scalar": "a: |\n" + "  [[[[{{{{\n" * 20_000,
    "tabs": "\t" * 250_000,
    "indentation": " " * 250_000 + "a",
    "exclamation marks": "!" * 250_000,
    "percent": "%" * 250_000,
    "unknown keys": "".join(f"learner{n}: 1\n" for n in range(4_000)),
}
LARGE_JSON = {
    "brackets": "[" * 1_000_000,
    "pairs of brackets": "[" * 500_000 + "]" * 500_000,
    "objects": '{"a":' * 200_000,
    "quotes": '"' * 1_000_000,
    "backslashes": '"' + "\\" * 1_000_000,
    "keys": "{" + ",".join(f'"k{n}":1' for n in range(80_000)) + "}",
    "numbers": "[" + "1," * 500_000 + "1]",
    "digits": "9" * 1_000_000,
    "surrogates": '["' + "\\ud800" * 150_000 + '"]',
}


def refusal(source: bytes | str, content_type: str | None = None) -> SpecError:
    with pytest.raises(SpecError) as caught:
        parse(source, content_type)
    return caught.value


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_hostile_document_is_refused_by_its_code_at_its_place(path: Path) -> None:
    code, *rest = path.name.split(".")
    error = refusal(path.read_bytes(), f"application/{path.suffix[1:]}")
    found = [problem for problem in error.problems if problem.code == code]
    assert found, error
    if rest and re.fullmatch(r"\d+-\d+", rest[0]):
        assert f"{found[0].line}-{found[0].column}" == rest[0]


@pytest.mark.parametrize("name", LARGE_YAML)
def test_large_hostile_yaml_costs_no_more_than_fifty_milliseconds(name: str) -> None:
    check_cost(LARGE_YAML[name][: 256 * 1024], "application/yaml", CPU_S)


@pytest.mark.parametrize("name", LARGE_JSON)
def test_large_hostile_json_costs_little(name: str) -> None:
    check_cost(LARGE_JSON[name][:MIB], "application/json", 4 * CPU_S)


def check_cost(text: str, content_type: str, limit_s: float) -> None:
    """The best of three, so that a busy machine does not fail the test; then once more for the memory."""
    spent = []
    for _ in range(3):
        began = time.process_time()
        refusal(text, content_type)
        spent.append(time.process_time() - began)
    tracemalloc.start()
    refusal(text, content_type)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert min(spent) < limit_s
    assert peak < 48 * MIB


def test_too_many_bytes_are_refused_with_the_limit() -> None:
    (problem,) = refusal("a" * (256 * 1024 + 1), "application/yaml").problems
    assert (problem.code, problem.allowed) == ("spec_too_large", "at most 262144 bytes")


def test_large_code_inline_is_read_within_the_time() -> None:
    line = "x = [[[{'a': (1, 2)}\n"
    code = "".join(f"      {line}" for _ in range(9_000))
    text = f"{FULL.replace('code: {files: {', 'unused: {files: {')}".split("unused:")[0]
    text += f"code:\n  files:\n    train.py: |\n{code}command: python train.py\n"
    began = time.process_time()
    spec = parse(text, "application/yaml")
    assert time.process_time() - began < CPU_S
    assert spec.code
    assert spec.code.files[0][1] == line * 9_000


def test_unknown_content_type_is_refused() -> None:
    assert refusal("a: 1", "text/html").problems[0].code == "media_type"


def test_several_faults_of_form_are_reported_at_once() -> None:
    text = FULL + "name: again\ntags: &t [a]\nextra: *t\n"
    codes = {problem.code for problem in refusal(text).problems}
    assert codes >= {"duplicate_key", "yaml_anchor_forbidden", "yaml_alias_forbidden"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def survives(source: object, content_type: str | None = None) -> bool:
    """A spec or a SpecError; anything else is a fault of ours."""
    try:
        parse(source, content_type)  # type: ignore[arg-type]
    except SpecError as error:
        json.dumps(error.as_list()).encode()
        return 0 < len(error.problems) <= 50
    return True


@given(
    st.text(max_size=300) | st.binary(max_size=300),
    st.sampled_from(["application/yaml", "application/json", None]),
)
def test_any_text_gives_a_spec_or_named_problems(source: str | bytes, content_type: str | None) -> None:
    assert survives(source, content_type)


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_any_object_gives_a_spec_or_named_problems(source: dict[str, object]) -> None:
    assert survives(source)


@given(st.data())
def test_any_value_in_any_field_gives_a_spec_or_named_problems(data: st.DataObject) -> None:
    spec = parse(FULL).normalized
    place = spec
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(json_values)
    assert survives(spec)


@given(st.data())
def test_any_damage_to_yaml_gives_a_spec_or_named_problems(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(FULL) - 1))
    insert = data.draw(st.text(alphabet="\t\n []{}&*!|>'\"%@`,:-#?<~\0é\u202e", max_size=4))
    cut = data.draw(st.integers(0, 3))
    assert survives(FULL[:at] + insert + FULL[at + cut :], "application/yaml")
