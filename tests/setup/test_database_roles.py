"""A role that owns no table runs the platform, and cannot change what the owner made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import ProgrammingError, connection, transaction
from django.db.models.functions import Now

from jobs import retention
from jobs.lifecycle import periodic
from jobs.models import Job, PeriodicTask
from jobs.states import Intent, State
from portal.database import roles
from portal.settings import values
from portal.supervisor.plan import Options, start_plan
from tenants import audit, audit_chain
from tenants.models import AuditEntry
from tenants.retention import Rule
from tenants.tokens import token_create
from tests.jobs.lifecycle.world import World, state, two_nodes

pytestmark = pytest.mark.django_db
ROLE, QUOTED = 'luthier "runs"', '"luthier ""runs"""'
"""A name that has to be quoted."""
OWNER = "postgresql://luthier_owns:secret@/luthier?host=/run/postgresql"
RUNS = "postgresql://luthier_runs:secret@/luthier?host=/run/postgresql"


@pytest.fixture
def lesser_role() -> Iterator[None]:
    """This test's session is that role's."""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {QUOTED}")
        roles.grant(ROLE)
        cursor.execute(f"SET SESSION AUTHORIZATION {QUOTED}")
        cursor.execute("SELECT current_user, rolsuper FROM pg_roles WHERE rolname = session_user")
        assert cursor.fetchone() == (ROLE, False)
    yield
    with connection.cursor() as cursor:
        cursor.execute("RESET SESSION AUTHORIZATION")


def test_a_role_that_owns_nothing_brings_jobs_to_their_end_and_does_every_periodic_task(
    lesser_role: None,
) -> None:
    with two_nodes() as world:
        halted = world.running(gpus=0)
        world.request(halted, Intent.HALT)
        world.settle()
        ended = run_to_its_end(world)
        assert state(ended) == State.COMPLETED
        token_create(user=world.alice, owner=world.alice, name="script")
        Job.objects.filter(pk=ended.pk).update(deleted_at=Now() - timedelta(days=400))
        done = set(periodic.run_due()) | set(periodic.run_due("mail", "forward"))
        assert done == set(periodic.TASKS)
        PeriodicTask.objects.update(next_at=Now())
        assert set(periodic.run_due()) | {"mail", "forward"} == set(periodic.TASKS), "a second time, too"
        assert not Job.objects.filter(pk=ended.pk).exists(), "purged, with its history"
        audit_chain.seal_new()
        AuditEntry(action="job.edit", tenant=world.tenant, at=Now() - timedelta(days=90)).save(
            force_insert=True
        )
        assert retention.remove_entries(world.tenant, Rule(days=30)) == 1


def run_to_its_end(world: World) -> Job:
    job = world.running(gpus=0)
    world.exit(job)
    world.settle()
    world.done(job)
    world.settle()
    return job


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE tenants_auditentry DISABLE TRIGGER ALL",
        "ALTER TABLE jobs_jobevent DISABLE TRIGGER USER",
        "DROP TABLE tenants_auditseal",
        "TRUNCATE tenants_auditentry",
        "SET session_replication_role = 'replica'",
        "CREATE OR REPLACE FUNCTION tenants_append_only() RETURNS trigger AS 'BEGIN RETURN NEW; END' LANGUAGE plpgsql",
        "CREATE TABLE public.more (id int)",
        "INSERT INTO django_migrations (app, name, applied) VALUES ('jobs', 'x', now())",
        "DELETE FROM django_migrations",
        "CREATE ROLE another SUPERUSER",
        "COPY tenants_user TO PROGRAM 'cat'",
    ],
)
def test_it_cannot_change_tables_and_guards(lesser_role: None, statement: str) -> None:
    with (
        pytest.raises(ProgrammingError, match=r"permission denied|must be owner"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)


def test_without_the_grants_it_could_do_nothing(lesser_role: None) -> None:
    """So that the test above is about what was granted."""
    with connection.cursor() as cursor:
        cursor.execute("RESET SESSION AUTHORIZATION")
        cursor.execute(f"REVOKE ALL ON tenants_auditentry FROM {QUOTED}")
        cursor.execute(f"SET SESSION AUTHORIZATION {QUOTED}")
    with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic():
        audit.record(actor=None, action="job.edit")


def test_the_owners_address_is_the_preparations_alone(
    monkeypatch: pytest.MonkeyPatch, settings: LazySettings
) -> None:
    for name, text in (("DATABASE_URL", RUNS), ("LUTHIER_OWNER_DATABASE_URL", OWNER)):
        monkeypatch.setenv(name, text)
    from portal.settings.env import OWNER_URL, read_environment, without_settings

    plan = start_plan(Options(), read_environment(), port=8000)
    assert plan.prepare_env == {OWNER_URL: OWNER}
    services: list[Any] = [*plan.servers, *plan.web, *plan.nodes, *plan.workers]
    assert [each.name for each in services if OWNER_URL in each.env] == []
    assert OWNER_URL not in without_settings(os.environ)


@pytest.mark.parametrize(
    ("running", "owner", "wrong"),
    [
        (RUNS, OWNER, ""),
        (RUNS, None, ""),
        (None, OWNER, "set DATABASE_URL"),
        (OWNER, OWNER, "must name another role"),
        ("postgresql:///luthier", OWNER, "must name another role"),
    ],
)
def test_two_addresses_name_two_roles(running: str | None, owner: str | None, wrong: str) -> None:
    said = values.owner_problems(running, owner)
    assert [text for text in said if wrong and wrong in text] == said
    assert bool(said) == bool(wrong)


def test_the_connection_is_the_owners_within_a_block_alone(settings: LazySettings) -> None:
    settings.LUTHIER_OWNER_DATABASE_URL = None
    before = connection.settings_dict
    with roles.as_owner():
        assert connection.settings_dict is before
