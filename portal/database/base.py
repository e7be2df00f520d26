"""The database engine of the settings: Django's own, with a connection pool."""

from __future__ import annotations

from typing import Any, Self

from django.db.backends.postgresql import base as postgresql
from django.db.backends.postgresql import operations, schema
from django.db.backends.postgresql.psycopg_any import IsolationLevel

from portal.database import connection_pool, prepared


class SchemaEditor(schema.DatabaseSchemaEditor):
    """A migration may take longer than any statement of a running installation. For its transaction alone: behind a
    pool in transaction mode the session goes to others afterward."""

    def __enter__(self) -> Self:
        super().__enter__()
        if self.atomic_migration and not self.collect_sql:
            self.execute("SET LOCAL statement_timeout = 0")
        return self


class DatabaseOperations(operations.DatabaseOperations):
    """Of a prepared statement psycopg2 knows only its EXECUTE, which says nothing in a log or a test."""

    def last_executed_query(self, cursor: Any, sql: str, params: Any) -> str:
        if (cursor.query or b"").startswith(b"EXECUTE "):
            return str(cursor.mogrify(sql, params).decode(errors="replace"))
        return super().last_executed_query(cursor, sql, params)


class DatabaseWrapper(postgresql.DatabaseWrapper):
    """PostgreSQL through pooled connections."""

    SchemaEditorClass = SchemaEditor
    ops_class = DatabaseOperations

    def get_connection_params(self) -> dict[str, Any]:
        factories = {"connection_factory": prepared.Connection, "cursor_factory": prepared.Cursor}
        return super().get_connection_params() | factories

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        self._dsn = repr(sorted(conn_params.items(), key=lambda item: item[0]))
        connection = connection_pool.acquire(self._dsn)
        if connection is None:
            return super().get_new_connection(conn_params)
        self.isolation_level = IsolationLevel.READ_COMMITTED  # as a fresh one: the settings choose none
        return connection

    def _close(self) -> None:
        broken = self.in_atomic_block or self.errors_occurred
        if self.connection is None or broken or not connection_pool.release(self._dsn, self.connection):
            super()._close()  # type: ignore[misc]  # the stubs leave it out
