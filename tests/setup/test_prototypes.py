"""No script lets a name from outside choose what is written: `__proto__` would change every object of the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "static" / "src" / "ts"
COMPUTED = re.compile(r"[\w)\]!?.]\[([^\[\]]+)\]\s*(?:[-+*/|&?]{0,2}=(?![=>])|\+\+|--)")
"""A write to a property whose name is computed: sums[side] += 1."""
REACHES = re.compile(r"__proto__|\bprototype\b|\bconstructor\s*[\[.]|\bsetPrototypeOf\b|\bdefineProperty\b")
MERGES = re.compile(
    r"\bObject\.assign\(\s*[^\w\s]|\bstructuredClone\(|\bfor\s*\(\s*(?:const|let)\s+\w+\s+in\b"
)
CONSTANT = re.compile(r"\d+|\"[^\"$]*\"|`\w+:[^`]*`")
"""A number, a text, or a text that begins as no property of Object does."""
WRITES = {
    ("bars.ts", "side"): "one of two words of the source",
    ("job-page.ts", "name"): "one of three words of the source",
    ("passkey-json.ts", "name"): "one of four words of the source",
    ("chart/delta.ts", "between"): "a number",
    ("chart/table.ts", "place"): "a number",
    ("chart/table.ts", "index.get(at) ?? 0"): "a number",
    ("log/lines.ts", "(line.n - 1) % BLOCK"): "a number",
    ("log/pane.ts", "block"): "a number",
}
"""File and name -> why it is none from outside. Values by names from outside are kept in a Map."""


def sources() -> dict[str, str]:
    return {str(path.relative_to(SOURCES)): path.read_text() for path in sorted(SOURCES.rglob("*.ts"))}


def test_every_write_to_a_computed_name_is_known_to_be_no_name_from_outside() -> None:
    found = {
        (name, match[1])
        for name, text in sources().items()
        for match in COMPUTED.finditer(text)
        if not CONSTANT.fullmatch(match[1])
    }
    assert found == set(WRITES)


def test_no_script_reaches_for_prototypes_or_merges_objects_key_by_key() -> None:
    found = [
        f"{name}: {match[0]}"
        for name, text in sources().items()
        for rule in (REACHES, MERGES)
        for match in rule.finditer(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (COMPUTED, "found[key] = value"),
        (COMPUTED, "a.b[key] ??= {}"),
        (COMPUTED, "counts[name] += 1"),
        (COMPUTED, "counts[name]++"),
        (REACHES, 'made["__proto__"]'),
        (REACHES, "x.constructor.prototype"),
        (MERGES, "for (const key in given)"),
        (MERGES, "Object.assign({}, given)"),
    ],
)
def test_the_rules_find_what_they_are_for(rule: re.Pattern[str], text: str) -> None:
    assert rule.search(text)


@pytest.mark.parametrize("text", ["const [only] = parts", "if (a[key] === b)", "return a[key];"])
def test_a_read_is_no_write(text: str) -> None:
    assert not COMPUTED.search(text)
