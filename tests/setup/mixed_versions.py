"""What of the database the code of the version before relies on, compared with what is there now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.db import connection
from django.db.migrations.loader import MigrationLoader

COLUMNS = """
SELECT column_name, data_type, is_nullable = 'YES', column_default IS NOT NULL OR is_identity = 'YES'
       OR is_generated = 'ALWAYS'
FROM information_schema.columns WHERE table_schema = 'public' AND table_name = %s
"""


def missing_for(earlier: Mapping[str, str]) -> list[str]:
    """What the models as of these migrations (app -> name) cannot read or write in the database as it is.

    They name their columns in every statement. So each must be there and take what it took, and a new one must take the
    rows that do not name it.
    """
    loader = MigrationLoader(connection, replace_migrations=False)
    state = loader.project_state([(app, name) for app, name in earlier.items()])
    models = [model for model in state.apps.get_models() if model._meta.app_label in earlier]
    return sorted(fault for model in models for fault in _faults(model))


def _faults(model: Any) -> Iterator[str]:
    table = model._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(COLUMNS, [table])
        there = {name: (kind, nullable, filled) for name, kind, nullable, filled in cursor.fetchall()}
    if not there:
        yield f"{table} is gone"
        return
    known = {field.column: field for field in model._meta.concrete_fields}
    for column, field in known.items():
        if column not in there:
            yield f"{table}.{column} is gone"
        elif field.null and not there[column][1]:
            yield f"{table}.{column} no longer takes NULL"
    for column, (_, nullable, filled) in there.items():
        if column not in known and not (nullable or filled):
            yield f"{table}.{column} is new and has neither NULL nor a default of the database (db_default)"
