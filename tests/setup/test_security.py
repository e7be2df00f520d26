"""What is published about security is true: the contact, the bill of materials, and the tests that are named."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.test import Client

from portal.settings import values
from tools.sbom import bill

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


ROW = re.compile(r"^\| (\d+\.\d+\.\d+) \| L([12]) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
REQUIREMENTS = 253
"""Of levels 1 and 2 in ASVS 5.0.0."""
VERDICTS = ("documented", "not applicable", "partly", "not met")


def test_every_test_that_the_security_page_names_exists() -> None:
    named = NAMED.findall((ROOT / "docs" / "security.md").read_text())
    assert len(named) > 100
    files = {file: ast.parse((ROOT / file).read_text()) for file, _ in named}
    defined = {
        (file, node.name)
        for file, tree in files.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert set(named) <= defined, set(named) - defined


def test_every_requirement_has_one_row_with_one_verdict_and_the_page_counts_them() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    rows = ROW.findall(page)
    assert len(rows) == len(re.findall(r"(?m)^\| \d+\.\d+\.\d+ ", page)), "a row is malformed"
    numbers = [tuple(map(int, number.split("."))) for number, *_ in rows]
    assert numbers == sorted(set(numbers)), "each number once, in order"
    assert len(numbers) == REQUIREMENTS
    found = Counter(_verdict(cell) for *_, cell in rows)
    counted = re.search(
        r"Of (\d+), (\d+) are tested.* (\d+) ask for documentation.* (\d+) are not applicable; "
        r"(\d+) are partly met, and (\d+) not met",
        " ".join(page.split()),
    )
    assert counted
    kinds = ("tested", *VERDICTS)
    assert [int(each) for each in counted.groups()] == [REQUIREMENTS, *(found[kind] for kind in kinds)]


def _verdict(cell: str) -> str:
    """What a row says: a verdict with its reason, or nothing but tests."""
    kind, _, reason = cell.partition(": ")
    if kind in VERDICTS:
        assert reason.strip(), cell
        return kind
    assert all(NAMED.fullmatch(each) for each in cell.split("; ")), cell
    return "tested"


def test_the_bill_of_materials_has_every_locked_package_with_its_digests() -> None:
    made = bill()
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    named = {component["purl"] for component in made["components"]}
    assert len(named) == len(made["components"])
    locks = [*(ROOT / "requirements").glob("*.txt"), *(ROOT / "examples" / "runtimes").glob("*.txt")]
    python = re.findall(
        r"^([\w.-]+)(?:\[[^]]*\])?==([^ ;\\]+)", "\n".join(each.read_text() for each in locks), re.MULTILINE
    )
    pypi = {f"pkg:pypi/{name.lower().replace('_', '-')}@{version}" for name, version in python}
    front_end = [name for name in json.loads((ROOT / "package-lock.json").read_text())["packages"] if name]
    kinds = Counter(purl.partition("/")[0] for purl in named)
    assert {purl for purl in named if purl.startswith("pkg:pypi/")} == pypi
    assert kinds["pkg:npm"] == len(front_end)
    for each in made["components"]:
        if each["purl"].startswith("pkg:golang/"):
            assert each["purl"].startswith("pkg:golang/stdlib@") or len(each["properties"]) > 1, each
        else:
            assert each["hashes"], each
    runtime = (ROOT / "requirements" / "runtime.txt").read_text()
    needed = {each["name"] for each in made["components"] if each["scope"] == "required"}
    assert {name for name in needed if re.search(f"(?m)^{re.escape(name)}(\\[.*\\])?==", runtime)} >= {
        "django",
        "packaging",
    }


def test_the_contact_is_published_and_nothing_without_one(settings: LazySettings) -> None:
    settings.LUTHIER_SECURITY_CONTACT = "https://example.org/security"
    answer = Client().get("/.well-known/security.txt")
    assert answer["Content-Type"] == "text/plain; charset=utf-8"
    fields = dict(line.split(": ", 1) for line in answer.content.decode().splitlines())
    assert fields["Contact"] == "https://example.org/security"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", fields["Expires"])
    settings.LUTHIER_SECURITY_CONTACT = None
    assert Client().get("/.well-known/security.txt").status_code == 404


@pytest.mark.parametrize(
    "text", ["security@example.org", "http://example.org", "mailto:security", "https://a b"]
)
def test_a_contact_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be mailto:"):
        values.contact(text)
