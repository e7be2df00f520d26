"""axe-core in a page, with every rule of WCAG 2.2 A and AA and none switched off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

SOURCE = Path(__file__).resolve().parents[2] / "node_modules" / "axe-core" / "axe.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def violations(page: Page) -> list[str]:
    """One line per violated rule: its id, and where."""
    # evaluate, not add_script_tag: the page's own policy allows no foreign script.
    page.evaluate(SOURCE.read_text())
    found: dict[str, Any] = page.evaluate(
        "tags => axe.run(document, {runOnly: {type: 'tag', values: tags}, resultTypes: ['violations']})", TAGS
    )
    return [
        f"{one['id']}: {node['target']} {node.get('failureSummary', '')[:200]!r}"
        for one in found["violations"]
        for node in one["nodes"][:3]
    ]
