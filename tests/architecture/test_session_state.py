"""No statement leaves something in a session of PostgreSQL: behind a pool in transaction mode the next one is another
client's."""

from __future__ import annotations

import re

import pytest

from tests.platform import ROOT

PACKAGES = ("gpu_scheduler", "jobs", "portal", "tenants")
LEFT_BEHIND = re.compile(
    r"""execute\(\s*f?["']+\s*SET\ (?!LOCAL\ |TRANSACTION\ |CONSTRAINTS\ )  # a setting
    | set_config\([^)]*,\s*false
    | \bpg_(?:try_)?advisory_(?:lock|unlock)  # a lock
    | ["';]\s*(?:UN)?LISTEN\b
    | CREATE\ (?:LOCAL\ |GLOBAL\ )?TEMP
    | ["';]\s*(?:PREPARE|DECLARE)\ \w  # a statement, a cursor
    | \.cursor\(\s*(?:name=|["'])
    | \.set_session\(""",
    re.VERBOSE,
)


def found_in(text: str) -> list[str]:
    return [text[found.start() :].splitlines()[0][:80] for found in LEFT_BEHIND.finditer(text)]


def test_no_statement_leaves_something_in_its_session() -> None:
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(sources) > 200
    left = {str(path.relative_to(ROOT)): found for path in sources if (found := found_in(path.read_text()))}
    assert left == {}


@pytest.mark.parametrize(
    "text",
    [
        'cursor.execute("SET statement_timeout = 0")',
        """execute("SELECT set_config('lock_timeout', %s, false)", [1])""",
        'execute("SELECT pg_advisory_lock(1)")',
        'execute("SELECT pg_try_advisory_lock(1)")',
        'execute("LISTEN jobs")',
        'execute("CREATE TEMP TABLE seen (id int)")',
        'execute("DECLARE rows CURSOR FOR SELECT 1")',
        'connection.cursor("rows")',
        "connection.set_session(readonly=True)",
    ],
)
def test_what_would_stay_is_found(text: str) -> None:
    assert found_in(text)
