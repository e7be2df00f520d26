"""Templates have one element per line. djhtml keeps their indentation; that their lines stay short is checked here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.platform import ROOT

TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
TAGS = re.compile(r"\{%.*?%\}|\{\{.*?\}\}")
"""Template tags and variables, which cannot be broken over lines."""
WIDTH, WIDTH_WITH_TAGS = 120, 240
"""Characters per line: of markup and text alone, and together with template tags."""


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(ROOT / "templates")))
def test_a_template_has_short_lines(path: Path) -> None:
    long = [
        f"{path.name}:{number}: {len(line)} characters"
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if len(line) > WIDTH_WITH_TAGS or len(TAGS.sub("", line)) > WIDTH
    ]
    assert not long, "break these lines at an element or an attribute: " + "; ".join(long)
