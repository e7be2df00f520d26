"""Two versions on one database, as in a rolling upgrade: the earlier one works on the tables of the next."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
from celery import current_app
from django.db import OperationalError, connection, transaction
from django.db.migrations.recorder import MigrationRecorder

from jobs import tasks
from portal import migrations_wait
from portal.health import checks
from portal.migrations_gate import GATE
from tests.setup.mixed_versions import missing_for

EARLIER = {"jobs": "0030_search", "tenants": "0011_audit_chain"}
"""The newest migrations of the version before. Change them when a version is released, never for a migration."""


@pytest.mark.django_db
def test_the_version_before_can_read_and_write_the_tables_of_this_one() -> None:
    assert missing_for(EARLIER) == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("ALTER TABLE jobs_upload DROP COLUMN files", "jobs_upload.files is gone"),
        ("ALTER TABLE jobs_upload RENAME COLUMN files TO file_count", "jobs_upload.files is gone"),
        (
            "ALTER TABLE jobs_blob ALTER COLUMN released_at SET NOT NULL",
            "jobs_blob.released_at no longer takes NULL",
        ),
        (
            "ALTER TABLE jobs_worker ADD COLUMN pid int NOT NULL",
            "jobs_worker.pid is new and has neither NULL nor",
        ),
        ("DROP TABLE jobs_upload", "jobs_upload is gone"),
    ],
)
def test_a_change_that_the_version_before_cannot_bear_is_found(change: str, fault: str) -> None:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(change)
        assert fault in "\n".join(missing_for(EARLIER))
        transaction.set_rollback(True)


@pytest.mark.django_db
def test_a_process_is_ready_next_to_the_migrations_of_the_next_version() -> None:
    MigrationRecorder(connection).record_applied("jobs", "9999_of_the_next_version")
    assert checks.pending_migrations() == 0
    assert checks.database().ready


@pytest.fixture
def pending(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many migrations are pending, one number for each look."""
    looks: list[int] = []
    monkeypatch.delenv(GATE, raising=False)
    monkeypatch.setattr(migrations_wait, "POLL_S", 0)
    monkeypatch.setattr(checks, "pending_migrations", lambda: looks.pop(0))
    return looks


@pytest.mark.django_db
def test_a_process_of_the_next_version_waits_for_its_migrations(
    pending: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    pending += [2, 1, 0, 5]
    migrations_wait.wait_for_migrations()
    assert pending == [5]
    assert caplog.messages == ["waiting for `manage.py prepare`"]


@pytest.mark.django_db
def test_a_process_starts_while_the_database_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> int:
        raise OperationalError

    monkeypatch.delenv(GATE, raising=False)
    monkeypatch.setattr(checks, "pending_migrations", away)
    migrations_wait.wait_for_migrations()


def test_messages_of_the_version_before_are_understood() -> None:
    """Celery messages that it sends, with their arguments."""
    sent = {"jobs.tasks.reconcile_job": ["3f9k2m7qx4ta"], "jobs.tasks.run_cycle": []}
    for name, arguments in sent.items():
        task = current_app.tasks[name]
        inspect.signature(task.run).bind(*arguments)
    assert tasks.reconcile_job.name in sent
