"""docs/permissions.md says who may do what as the matrix of isolation tries it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture import rows
from tests.architecture.world import Who
from tools import permissions

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_rows_say() -> None:
    command = [sys.executable, str(ROOT / "tools" / "permissions.py"), "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_rest_operation_page_and_channel_has_a_line() -> None:
    page = (ROOT / "docs" / "permissions.md").read_text()
    assert permissions.rest().count("\n") == 2 + sum(row.rule != rows.NEVER for row in rows.API.values())
    for table in (permissions.rest(), permissions.pages(), permissions.channels()):
        assert table in page
        assert "(?P" not in table
        assert "^" not in table


def test_a_changed_rule_makes_the_page_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    before = permissions.rest()
    monkeypatch.setitem(rows.API, "GET users", rows.Row(rows.ANY_USER))
    assert permissions.rest() != before
    assert set(permissions.COLUMNS) == set(Who) - rows.LEARNERS - {Who.ANONYMOUS}
