"""The pages that people read point at what exists."""

import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from django.core.management import get_commands
from markdown_it import MarkdownIt

from jobs.spec import parse
from tests.documents import HOW, LANGUAGES, ROOT, SHELL, Block, blocks, commands, pages

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


def test_every_block_of_a_page_is_found_and_says_its_language() -> None:
    """So that none escapes the tests that run them: an indented block, or one in another shell's name, would."""
    parser = MarkdownIt("commonmark").enable("table")
    found = set()
    for page in pages():
        tokens = parser.parse(page.read_text())
        assert [token.content for token in tokens if token.type == "code_block"] == [], page
        lines = [token.map[0] + 1 for token in tokens if token.type == "fence" and token.map]
        found |= {f"{page.relative_to(ROOT)}:{line}" for line in lines}
    assert {str(block) for block in blocks()} == found
    assert {str(block): block.language for block in blocks() if block.language not in LANGUAGES} == {}
    first_words = re.compile(
        r"^\s*\$? ?(curl|export|git|kubectl|make|manage\.py|pip|python3?|\.venv/\S+) ", re.MULTILINE
    )
    disguised = [block for block in blocks() if block.language == "text" and first_words.search(block.text)]
    assert disguised == [], "commands belong into a block of the language sh"


def test_every_block_of_commands_is_run_or_says_why_not() -> None:
    """Raise the number of those that are not run only for what needs a machine that no test has."""
    ways = Counter(block.how.partition(": ")[0] for block in blocks() if block.language == SHELL)
    assert ways.keys() <= HOW | {"not run"}
    assert (ways["platform"], ways["variables"], ways["not run"]) == (1, 1, 4)
    assert [block for block in blocks() if block.how.startswith("not run") and len(block.how) < 30] == []
    assert {block.page for block in commands("cluster")} == {"docs/development.md"}
    assert {block.page for block in commands("installation")} == {"docs/kubernetes.md"}


def test_the_second_command_of_the_readme_is_what_continuous_integration_runs() -> None:
    (command,) = (
        block.text.partition("#")[0].strip() for block in blocks() if "continuous integration" in block.how
    )
    assert f"exec {command}\n" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("block", [block for block in blocks() if block.language == "yaml"], ids=str)
def test_every_job_spec_of_a_page_is_valid(block: Block) -> None:
    """Whole ones as they are, parts within a small one."""
    part = yaml.safe_load(block.text)
    whole = {
        "apiVersion": "luthier/v1",
        "name": "a",
        "command": "python a.py",
        "code": {"files": {"a.py": ""}},
    }
    whole |= {} if part.keys() & {"framework", "python", "image"} else {"framework": "plain"}
    assert parse(whole | part).warnings == ()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # of the past
    code = "\n".join(re.findall(r"`{1,3}([^`]+)`{1,3}", page.read_text()))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z-]+)", code, re.MULTILINE)) <= targets
    assert set(re.findall(r"\bmanage\.py ([a-z_]+)", code)) <= get_commands().keys()
    modules = set(re.findall(r"\bpython3? -m ([a-z_][\w.]*\w)", code))
    assert [module for module in modules if find_spec(module) is None] == []


def test_the_platform_s_address_is_one_variable_on_all_pages_and_without_a_path() -> None:
    shown = [*PAGES, *ROOT.glob("templates/**/*.html"), *ROOT.glob("portal/**/*.py")]
    uses = {
        (found[1], bool(re.match(r"\}?/(api/v1|t/)|\W*$", found[2])))
        for path in shown
        if path.name != "CHANGELOG.md"
        for found in re.finditer(r"\$\{?(LUTHIER\w*)(\}?\S*)", path.read_text())
    }
    assert {name for name, _ in uses} <= {"LUTHIER_URL", "LUTHIER_TOKEN", "LUTHIER_CACHE"}
    assert ("LUTHIER_URL", True) in uses
    assert ("LUTHIER_URL", False) not in uses


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
