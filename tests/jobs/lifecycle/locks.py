"""Rows that another session has locked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2
from django.db import connection

JOB = "SELECT 1 FROM jobs_job WHERE id = %s FOR UPDATE"
LEARNERS = "SELECT 1 FROM jobs_learner WHERE job_id = %s FOR UPDATE"
QUOTAS = "SELECT 1 FROM tenants_quota WHERE tenant_id = %s FOR UPDATE"


@contextmanager
def locked(statement: str, *values: object) -> Iterator[None]:
    """Another session has these rows."""
    settings = connection.get_connection_params()
    other = psycopg2.connect(
        **{key: value for key, value in settings.items() if key not in ("cursor_factory", "isolation_level")}
    )
    try:
        with other.cursor() as cursor:
            cursor.execute(statement, values)
        yield
    finally:
        other.rollback()
        other.close()
