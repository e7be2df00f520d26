"""One migration makes what the steps that it replaces made, and an installation amid the steps goes on with them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg2
import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader

ROOT = Path(__file__).resolve().parents[2]
NAME = "luthier_by_steps"

BY_STEPS = """
import django; django.setup()
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
executor = MigrationExecutor(connection)
executor.loader.replace_migrations = False
executor.loader.build_graph()
executor.migrate([("jobs", "0035_shares"), ("tenants", "0017_cohorts")])
# What the squashes of an earlier version left of themselves.
executor.recorder.record_applied("jobs", "0001_squashed_0035_shares")
executor.recorder.record_applied("tenants", "0001_squashed_0017_cohorts")
call_command("migrate", interactive=False, verbosity=0)
call_command("makemigrations", check=True, dry_run=True, verbosity=0)
"""

SCHEMA = {
    "columns": "SELECT table_name, column_name, data_type, character_maximum_length, is_nullable, column_default,"
    " is_identity, generation_expression FROM information_schema.columns WHERE table_schema = 'public'",
    "indexes": "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE connamespace = 'public'::regnamespace AND contype <> 'n'",
    "triggers": "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
    "functions": "SELECT pg_get_functiondef(p.oid) FROM pg_proc p WHERE pronamespace = 'public'::regnamespace"
    " AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')",
}

RENAMED = {
    r"jobs_d\w{3}_pkey": "jobs_periodictask_pkey",
    r"jobs_d\w{3}_name_f54ac10a_like": "jobs_periodictask_name_856f25d3_like",
    r"jobs_job_infra_streak_check": "jobs_job_early_ends_check",
}
"""Names that the steps kept when they renamed a table or a column; nothing refers to them."""


@pytest.fixture
def by_steps(transactional_db: None) -> Iterator[dict[str, Any]]:
    """The connection parameters of a database that came by the steps, as in installations of every earlier version."""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {NAME}")
    try:
        url = urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{NAME}"))
        ended = subprocess.run(
            [sys.executable, "-c", BY_STEPS],
            cwd=ROOT, env=os.environ | {"DATABASE_URL": url}, capture_output=True, text=True,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        yield connection.get_connection_params() | {"dbname": NAME}
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {NAME} WITH (FORCE)")


def test_tables_made_at_once_and_by_steps_are_the_same(by_steps: dict[str, Any]) -> None:
    at_once, stepwise = schema(connection.get_connection_params()), schema(by_steps)
    assert all(at_once.values())
    for kind in SCHEMA:
        assert stepwise[kind] == at_once[kind], kind


def test_every_migration_up_to_a_squash_is_replaced_by_it() -> None:
    disk = MigrationLoader(None, replace_migrations=False).disk_migrations
    for app in ("jobs", "tenants"):
        (squash,) = (each for (label, _), each in disk.items() if label == app and each.replaces)
        steps = sorted(name for label, name in disk if label == app and name != squash.name)
        assert [name for _, name in squash.replaces] == steps[: len(squash.replaces)]
        assert squash.name.endswith(squash.replaces[-1][1])


def schema(parameters: dict[str, Any]) -> dict[str, list[str]]:
    """All that the database holds besides rows, without the order of columns and the white space of functions."""
    needed = ("host", "user", "password", "passfile", "dbname")
    opened = psycopg2.connect(**{key: parameters[key] for key in needed if parameters.get(key)})
    try:
        with opened.cursor() as cursor:
            found = {}
            for kind, question in SCHEMA.items():
                cursor.execute(question)
                found[kind] = sorted(_plain(row) for row in cursor.fetchall())
            return found
    finally:
        opened.close()


def _plain(row: tuple[Any, ...]) -> str:
    text = " | ".join(map(str, row))
    for old, new in RENAMED.items():
        text = re.sub(old, new, text)
    return re.sub(r"\s+", " ", text).replace(" )", ")")
