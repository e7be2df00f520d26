"""The pages that people read point at what exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = [
        target for target in LINK.findall(page.read_text()) if "://" not in target and target[0] != "#"
    ]
    missing = [target for target in targets if not (page.parent / target.partition("#")[0]).exists()]
    assert not missing


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    records = [path.name for path in sorted((ROOT / "docs" / "adr").glob("0*.md"))]
    assert [name for name in records if name not in index] == []
    assert len({name[:4] for name in records}) == len(records), "two records have one number"


def test_every_command_of_the_readme_is_one_of_the_makefile() -> None:
    commands = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "README.md").read_text()))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert commands <= targets


def test_every_setting_is_explained() -> None:
    from dataclasses import fields

    from portal.settings.env import Environment

    explained = (ROOT / "docs" / "operations.md").read_text()
    assert [each.name for each in fields(Environment) if each.name.upper() not in explained] == []


def test_every_document_that_code_names_exists() -> None:
    named = re.compile(r"\bdocs/[\w/-]+\.md\b")
    packages = ("portal", "jobs", "tenants", "gpu_scheduler", "learner_agent", "tests", "tools", "bench")
    sources = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    missing = {
        name for path in sources for name in named.findall(path.read_text()) if not (ROOT / name).exists()
    }
    assert not missing
