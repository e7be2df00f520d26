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


def test_every_test_that_the_security_page_names_exists() -> None:
    named = NAMED.findall((ROOT / "docs" / "security.md").read_text())
    assert len(named) > 20
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
    assert missing == []


ASVS = ROOT / "tests" / "setup" / "asvs_5_0_levels_1_and_2.txt"
VERDICTS = ("Does not apply: ", "By the operator: ", "Not shown", "Not met")
NUMBER = re.compile(r"V\d+\.\d+\.\d+")


def asvs_rows() -> list[tuple[list[str], str]]:
    """The requirements of each row of the page's table, and its last column."""
    lines = (ROOT / "docs" / "security.md").read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if re.match(r"\| V\d+\.\d+\.\d+", line)]
    return [(NUMBER.findall(first), last) for first, _, last in cells]


def test_every_requirement_of_both_levels_of_asvs_has_one_row_with_a_test_or_the_reason_why_not() -> None:
    asked = [
        f"{section}.{number}"
        for section, *numbers in map(str.split, ASVS.read_text().splitlines())
        for number in numbers
    ]
    rows = asvs_rows()
    judged = [number for numbers, _ in rows for number in numbers]
    assert (len(asked), sorted(judged)) == (253, sorted(asked))
    for numbers, verdict in rows:
        assert NAMED.match(verdict) or verdict.startswith(VERDICTS), numbers


def test_the_page_counts_what_its_table_of_asvs_says() -> None:
    counts: Counter[str] = Counter()
    for numbers, verdict in asvs_rows():
        kind = next((each for each in VERDICTS if verdict.startswith(each)), "test")
        counts[kind] += len(numbers)
    text = (ROOT / "docs" / "security.md").read_text()
    said = re.search(
        r"Of 253 requirements (\d+) have a test, (\d+) do not apply, (\d+) are the operator's, "
        r"(\d+) have no test of their own, and (\d+) are not met or not in full",
        " ".join(text.split()),
    )
    assert said is not None
    assert [int(number) for number in said.groups()] == [counts[kind] for kind in ("test", *VERDICTS)]


def sources() -> list[tuple[Path, ast.Module]]:
    """What an installation runs."""
    folders = ("gpu_scheduler", "jobs", "learner_agent", "luthier_client", "portal", "tenants")
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [(path.relative_to(ROOT), ast.parse(path.read_text())) for path in paths]


FORBIDDEN = {
    "eval", "exec", "os.system", "os.popen", "pickle.load", "pickle.loads", "marshal.loads", "yaml.load",
    "yaml.unsafe_load", "yaml.full_load", "hashlib.md5", "hashlib.sha1", "mark_safe",
}  # fmt: skip


def test_the_platform_takes_no_shell_evaluates_no_text_and_uses_no_broken_hash() -> None:
    """A job's own command is run by the launcher, which gives a shell its text as an argument."""
    found = []
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                shell = any(each.arg == "shell" and not _is_false(each.value) for each in node.keywords)
                if ast.unparse(node.func) in FORBIDDEN or shell:
                    found.append(f"{path}:{node.lineno} {ast.unparse(node.func)}")
    assert found == []


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


JITTER = {
    "gpu_scheduler/clusters/kubernetes/watching.py", "jobs/lifecycle/reconcile.py", "jobs/lifecycle/ticker.py",
    "jobs/retries.py", "learner_agent/shipper/connection.py", "learner_agent/shipper/fetch.py",
    "learner_agent/shipper/http.py",
}  # fmt: skip
"""They wait for a random time, which may be guessed."""


def test_what_must_not_be_guessed_is_of_the_systems_random_source() -> None:
    users = {
        str(path)
        for path, tree in sources()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Import) and "random" in [each.name for each in node.names])
        or (isinstance(node, ast.ImportFrom) and node.module == "random")
    }
    assert users == JITTER


def test_scripts_of_pages_keep_no_secret_and_take_no_messages() -> None:
    """The draft of a new job is all that a browser stores; a literal secret in it is a warning of the form."""
    scripts = {path: path.read_text() for path in (ROOT / "static" / "src").rglob("*.ts")}
    stored = {
        path.name for path, text in scripts.items() if re.search(r"(local|session)Storage|indexedDB", text)
    }
    assert stored == {"draft.ts"}
    risky = r'"message"|postMessage|\beval\(|new Function|document\.write|insertAdjacentHTML'
    assert [path.name for path, text in scripts.items() if re.search(risky, text)] == []


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
