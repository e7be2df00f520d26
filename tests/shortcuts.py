"""What Django does for each test and needs to do once per run, or only where there is something to do."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connection, transaction
from django.test import TransactionTestCase

from portal.streaming import StaticFilesMiddleware

KEPT = {ContentType._meta.db_table, Permission._meta.db_table}
"""What follows from the models alone. Django's flush empties these too and has them made again, row by row."""


def install() -> None:
    """For all tests of this process."""
    TransactionTestCase._fixture_teardown = lambda _: delete_rows()
    _describe_static_files_once()


def delete_rows() -> None:
    """Delete what a transactional test left; Django truncates all tables, of which a test fills few.

    Neither the order of tables nor the guards of append-only ones matter: no trigger fires.
    """
    tables = [
        name for name in connection.introspection.django_table_names(only_existing=True) if name not in KEPT
    ]
    quoted = [connection.ops.quote_name(name) for name in tables]
    with transaction.atomic(), connection.cursor() as cursor:
        # A thread that a test has left in a transaction is found here: it would write into the next test.
        cursor.execute("LOCK TABLE tenants_tenant, tenants_user, jobs_job IN ACCESS EXCLUSIVE MODE")
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(
            " UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT FROM {name})" for name in quoted)
        )
        for (name,) in cursor.fetchall():
            cursor.execute(f"DELETE FROM {name}")


def _describe_static_files_once() -> None:
    """Each test client has middleware of its own, which reads and describes the 300 files of static/: 50 ms of CPU."""
    add = StaticFilesMiddleware.add_files_from_finders
    described: dict[tuple[Any, ...], dict[str, Any]] = {}

    def add_once(self: StaticFilesMiddleware) -> None:
        decides = (self.static_prefix, self.max_age, tuple(settings.STATICFILES_DIRS))
        if decides not in described:
            add(self)
            described[decides] = dict(self.files)
        self.files.update(described[decides])

    StaticFilesMiddleware.add_files_from_finders = add_once
