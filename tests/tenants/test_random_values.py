"""What must not be guessed is made by the system's generator of random bits, and long enough."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client

from tenants import one_time
from tenants.models import Session
from tenants.sessions import SessionStore, row_key
from tests import factories

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


@pytest.mark.django_db
def test_a_row_of_a_session_signs_no_one_in() -> None:
    client, thief = Client(), Client()
    client.force_login(factories.user("erin"))
    row = Session.objects.get()
    assert row.session_key == row_key(client.session) != client.session.session_key
    name = settings.SESSION_COOKIE_NAME
    for key in (row.session_key, row.session_key[:32], row.session_key[:40]):
        thief.cookies[name] = key
        assert thief.get("/me")["Location"].startswith("/login")
    thief.cookies[name] = client.cookies[name].value
    assert thief.get("/me").status_code == 200
    client.post("/logout")
    assert not Session.objects.filter(pk=row.pk).exists()
    assert thief.get("/me")["Location"].startswith("/login")


@pytest.mark.django_db
def test_a_session_of_before_keys_were_hashed_stays() -> None:
    client = Client()
    client.force_login(factories.user("erin"))
    Session.objects.update(session_key=client.session.session_key)
    assert client.get("/me")["Location"].startswith("/login"), "as it was stored"
    client.cookies[settings.SESSION_COOKIE_NAME] = key = Session.objects.get().session_key
    migration = import_module("tenants.migrations.0030_names_and_session_keys").Migration
    with connection.cursor() as cursor:
        cursor.execute(migration.operations[-1].sql)
    assert Session.objects.get().session_key != key
    assert client.get("/me").status_code == 200
