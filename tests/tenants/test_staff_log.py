"""What was changed in the former database admin moves into the audit log, and its table goes."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.db import connection

from tenants.models import AuditEntry
from tests import factories

MOVE = import_module("tenants.migrations.0014_without_the_database_admin").MOVE
TABLE = """
CREATE TABLE django_admin_log (
  id serial PRIMARY KEY, action_time timestamptz NOT NULL, object_id text, object_repr varchar(200) NOT NULL,
  action_flag smallint NOT NULL, change_message text NOT NULL, content_type_id integer, user_id bigint NOT NULL
)
"""


@pytest.mark.django_db
def test_edits_of_before_are_in_the_audit_log() -> None:
    admin = factories.user("admin", is_superuser=True)
    with connection.cursor() as cursor:
        cursor.execute(TABLE)
        cursor.execute(
            "INSERT INTO django_admin_log (action_time, object_id, object_repr, action_flag, change_message,"
            " content_type_id, user_id) VALUES ('2026-01-02 03:04:05Z', '7', 'erin', 2, '[]', NULL, %s)",
            [admin.pk],
        )
        cursor.execute(MOVE)
        cursor.execute("SELECT to_regclass('django_admin_log')")
        assert cursor.fetchone() == (None,)
        cursor.execute(MOVE)
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.actor, entry.target) == ("staff.edit", admin, "erin")
    assert entry.details == {"model": None, "id": "7", "kind": "change", "message": "[]"}
    assert entry.at.isoformat() == "2026-01-02T03:04:05+00:00"
