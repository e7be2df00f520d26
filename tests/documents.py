"""The blocks of commands in README and docs/: every one is found here, and says how it is run.

A comment in the line before a block says that it is not run like the others, in a shell per page:

    <!-- platform -->          starts the platform that all others use
    <!-- variables -->         run at the beginning of every page's shell
    <!-- cluster -->           run by tests/cluster/test_docs.py
    <!-- installation -->      run by tests/cluster/test_installation.py
    <!-- program -->           run by tests/learner_agent/test_launcher_halt.py, as the program of a job
    <!-- not run: reason -->   run by no test
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHELL = "sh"
LANGUAGES = {SHELL, "json", "mermaid", "python", "sql", "text", "yaml"}
FENCE = re.compile(
    r"(?:^<!-- (?P<how>[^\n]*) -->\n)?^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>[^\n]*)\n"
    r"(?P<text>.*?)^(?P=indent)(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
IN_PAGE = "in the page's shell"
HOW = {"platform", "variables", "cluster", "installation", "program", IN_PAGE}


@dataclass(frozen=True)
class Block:
    """A fenced block. how: one of HOW, or `not run: reason`; line: of its fence, from 1."""

    page: str
    line: int
    language: str
    text: str
    how: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """README first, because the others build upon it."""
    return [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


def blocks() -> list[Block]:
    return [block for page in pages() for block in _blocks_of(page)]


def commands(how: str, page: str | None = None) -> list[Block]:
    """Blocks of shell commands that are run in this way, in their order."""
    return [
        block
        for block in blocks()
        if block.language == SHELL and block.how == how and page in (None, block.page)
    ]


def _blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start("fence")) + 1
        name = str(page.relative_to(ROOT))
        yield Block(name, line, found["language"].strip(), found["text"], found["how"] or IN_PAGE)
