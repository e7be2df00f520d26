"""What must not be guessed is made by the system's generator of random bits, and long enough."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tenants import one_time
from tenants.sessions import SessionStore

ROOT = Path(__file__).resolve().parents[2]
GUESSABLE = {"random", "uuid1"}
SESSION_KEY_CHARS = 25
"""Of an alphabet of 36: at least 128 bits."""


def test_no_code_of_pages_and_tenants_uses_a_generator_that_can_be_predicted() -> None:
    for path in [*(ROOT / "tenants").rglob("*.py"), *(ROOT / "portal").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [each.name for each in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            )
            module = node.module if isinstance(node, ast.ImportFrom) else None
            assert not GUESSABLE & {module, *names}, path


@pytest.mark.django_db
def test_codes_and_session_keys_are_long_and_never_alike() -> None:
    codes = {one_time.random_code() for _ in range(1000)}
    assert len(codes) == 1000
    assert {len(code.replace("-", "")) for code in codes} == {28}, "of 32 letters and digits: 140 bits"
    keys = set()
    for _ in range(3):
        store = SessionStore()
        store.create()
        keys.add(store.session_key)
    assert len(keys) == 3
    assert all(len(key or "") >= SESSION_KEY_CHARS for key in keys)
