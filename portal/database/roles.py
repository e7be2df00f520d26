"""Two roles of PostgreSQL: one owns the tables and migrates them, another one uses them.

What runs all the time, and answers strangers, connects as the second. It can read and write rows, and neither change
nor remove a table, nor one of the triggers that guard what is append-only. docs/adr/0136-a-role-that-owns-nothing.md
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from psycopg2 import sql

from portal.settings.values import database_from_url

GRANTS = (
    "GRANT USAGE ON SCHEMA public TO {role}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
    "GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {role}",
    "REVOKE INSERT, UPDATE, DELETE ON {migrations} FROM {role}",
)


@contextmanager
def as_owner() -> Iterator[None]:
    """Within the block, this process's connection is the owner's, where the settings name one."""
    url = settings.LUTHIER_OWNER_DATABASE_URL
    if url is None:
        yield
        return
    own = database_from_url(url)
    running = connection.settings_dict
    connection.close()
    connection.settings_dict = running | own | {"OPTIONS": running["OPTIONS"] | own["OPTIONS"]}
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict = running


def grant(role: str) -> None:
    """Let this role use the tables. As their owner, after each migration: new ones are its alone."""
    names = {
        "role": sql.Identifier(role),
        "migrations": sql.Identifier(MigrationRecorder.Migration._meta.db_table),
    }
    with connection.cursor() as cursor:
        for statement in GRANTS:
            cursor.execute(sql.SQL(statement).format(**names))
