"""axe-core in a page, with every rule of WCAG 2.2 A and AA and none switched off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

SOURCE = Path(__file__).resolve().parents[2] / "node_modules" / "axe-core" / "axe.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
COLORS = ["color-contrast", "link-in-text-block"]


def violations(page: Page, rules: list[str] | None = None) -> list[str]:
    """One line per violated rule: its id, and where; of all rules, or of these alone."""
    # evaluate, not add_script_tag: the page's own policy allows no foreign script.
    if not page.evaluate("'axe' in window"):
        page.evaluate(SOURCE.read_text())
    asked = {"type": "rule", "values": rules} if rules else {"type": "tag", "values": TAGS}
    found: dict[str, Any] = page.evaluate(
        "asked => axe.run(document, {runOnly: asked, resultTypes: ['violations']})", asked
    )
    return [
        f"{one['id']}: {node['target']} {node.get('failureSummary', '')[:200]!r}"
        for one in found["violations"]
        for node in one["nodes"][:3]
    ]


def in_both_themes(page: Page, picture: Callable[..., None], name: str, **more: Any) -> list[str]:
    """The violations of a page opened in the light theme, then of the same page when the system turns dark.

    Colors are all that differs between themes, so the second time only the rules about them are asked. A picture
    NAME-THEME is taken of each.
    """
    picture(page, f"{name}-light", **more)
    found = violations(page)
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    picture(page, f"{name}-dark", **more)
    return found + [f"dark: {line}" for line in violations(page, COLORS)]
