"""Write who may do what into docs/permissions.md; the text around the tables is written by hand.

The tables come from the rows that the tests try with every kind of caller, so the page says what is checked. With
--check nothing is written and the exit code says whether the page is up to date.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import django

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.test")
django.setup()

from tests.architecture import rows  # noqa: E402
from tests.architecture.world import Who  # noqa: E402

PAGE = ROOT / "docs" / "permissions.md"
SECTION = re.compile(r"(<!-- (?P<name>rest|pages|channels) -->\n).*?(<!-- end -->)", re.DOTALL)
COLUMNS = {
    Who.STRANGER: "stranger",
    Who.GUEST: "guest",
    Who.OPERATOR: "operator",
    Who.VIEWER: "viewer",
    Who.COLLEAGUE: "researcher",
    Who.OWNER: "owner",
    Who.MANAGER: "manager",
    Who.ADMIN: "platform admin",
}
ASKS_FOR_MORE = 400
"""A row's status for who is let in and has to show more than the test's request does, such as a code."""
PATTERN = re.compile(r"\(\?P<(\w+)>(?:[^()]|\([^()]*\))*\)|<\w+:(\w+)>")


def main() -> int:
    tables = {"rest": rest(), "pages": pages(), "channels": channels()}
    text = PAGE.read_text()
    written = SECTION.sub(lambda match: f"{match[1]}{tables[match['name']]}{match[3]}", text)
    if "--check" in sys.argv:
        if written != text:
            print(
                "docs/permissions.md is older than tests/architecture/rows.py; run `make docs`",
                file=sys.stderr,
            )
        return int(written != text)
    PAGE.write_text(written)
    return 0


def rest() -> str:
    named = ((key, row) for key, row in rows.API.items() if row.rule != rows.NEVER)
    return _table("operation", ((_address(key), row.rule, row.note) for key, row in named))


def pages() -> str:
    """For each address, the page and the forms that are sent there; of forms that differ, with their fields."""
    found: dict[str, list[tuple[rows.Rule, list[str], str]]] = {}
    for path, pages_there in rows.PAGES.items():
        for page in pages_there:
            if page.for_learners or page.own_token or page.open_to_all:
                continue
            name, fields = f"{'POST' if page.post else 'GET'} /{_address(path)}", ", ".join(page.data)
            rules = found.setdefault(name, [])
            alike = next((forms for rule, forms, _ in rules if rule == page.let_in), None)
            if alike is None:
                rules.append((page.let_in, [fields], page.note))
            elif fields not in alike:
                alike.append(fields)
    return _table(
        "page or form",
        (
            (f"{name} ({'; '.join(forms)})" if len(rules) > 1 else name, rule, note)
            for name, rules in found.items()
            for rule, forms, note in rules
        ),
    )


def channels() -> str:
    found = ((name.replace("{t}", "{tenant}"), rule) for name, rule in rows.CHANNELS.values())
    return _table("channel", ((name.replace("{running}", "{job_id}"), rule, "") for name, rule in found))


def _table(what: str, found: Iterable[tuple[str, rows.Rule, str]]) -> str:
    """Each found: what is named, its rule, and a note or ""."""
    lines = [f"| {what} | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, rule, note in found:
        cells = ("yes" if rule[who] in (rows.IN, ASKS_FOR_MORE) else "-" for who in COLUMNS)
        lines.append(f"| `{name}`{f' ({note})' if note else ''} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _address(path: str) -> str:
    """`t/<slug:slug>/jobs` as `t/{slug}/jobs`."""
    return PATTERN.sub(lambda match: f"{{{match[1] or match[2]}}}", path).removeprefix("^").removesuffix("$")


if __name__ == "__main__":
    sys.exit(main())
