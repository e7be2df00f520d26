"""The whole platform as a role that owns no table, with migrations by the role that does."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg2
import pytest
from django.conf import settings

from tests.fault.specs import spec
from tests.platform import Platform, running, wait_for

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

PROGRAM = """\
import itertools, time
from learner_agent import training
for n in itertools.count(1):
    training.report(n, loss=1 / n)
    print(f"line {n}", flush=True)
    if training.halt_requested() or n == 400:
        break
    time.sleep(0.05)
"""
SPEC = spec("lines", PROGRAM)


@dataclass
class Database:
    """name, and the addresses of its two roles: owns, runs."""

    name: str
    owns: str
    runs: str


@pytest.fixture
def database() -> Iterator[Database]:
    """Beside the suite's own, on the same server."""
    name, password = f"roles_{secrets.token_hex(4)}", secrets.token_hex(16)
    server = settings.DATABASES["default"]
    where = {"host": server["HOST"], "passfile": server["OPTIONS"]["passfile"]}
    with closing(psycopg2.connect(user=server["USER"], dbname="postgres", **where)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            for role in ("owns", "runs"):
                cursor.execute(f"CREATE ROLE {name}_{role} LOGIN PASSWORD '{password}'")
            cursor.execute(f"CREATE DATABASE {name} OWNER {name}_owns")
            query = urlencode({"host": server["HOST"]})
            yield Database(
                name, *(f"postgresql://{name}_{role}:{password}@/{name}?{query}" for role in ("owns", "runs"))
            )
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")
            for role in ("owns", "runs"):
                cursor.execute(f"DROP ROLE {name}_{role}")


def test_the_journey_of_a_job_and_of_an_operator_needs_no_owner(database: Database, tmp_path: Path) -> None:
    addresses = {"DATABASE_URL": database.runs, "LUTHIER_OWNER_DATABASE_URL": database.owns}
    with running(tmp_path / "data", **addresses) as platform:
        assert roles_at_work(database) == {f"{database.name}_runs"}, (
            "prepare has ended, and others never knew"
        )
        assert_no_process_knows(platform, database)
        alice = platform.client()
        job = alice.submit(SPEC)["id"]
        alice.wait_state(job, "PROCESSING", within_s=120)
        wait_for(lambda: alice.raw_log(job, attempt=1), within_s=60, what="a line")
        alice.post(f"/jobs/{job}/halt")
        alice.wait_state(job, "HALTED", within_s=120)
        alice.post(f"/jobs/{job}/resume")
        alice.wait_state(job, "COMPLETED", within_s=120)
        assert b"line 1\n" in alice.raw_log(job, attempt=1)
        ended = alice.submit(spec("brief", "print('here')"))["id"]
        alice.wait_state(ended, "COMPLETED", within_s=120)
        assert alice.call("DELETE", f"/jobs/{ended}").status == 204
        platform.manage("invariants")
        platform.manage("backup", str(tmp_path / "backup"))
        assert '"action":"log.download"' in platform.manage("audit")
        platform.manage("prepare", "--no-demo")  # as with the next version
        platform.manage("prepare", "--no-demo", LUTHIER_OWNER_DATABASE_URL="")
    with (
        closing(psycopg2.connect(database.runs)) as connection,
        connection.cursor() as cursor,
        pytest.raises(psycopg2.errors.InsufficientPrivilege),
    ):
        cursor.execute("ALTER TABLE tenants_auditentry DISABLE TRIGGER ALL")


def roles_at_work(database: Database) -> set[str]:
    with closing(psycopg2.connect(database.owns)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT usename FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
            [database.name],
        )
        return {str(name) for (name,) in cursor.fetchall()}


def assert_no_process_knows(platform: Platform, database: Database) -> None:
    """Of those that `up` started: the owner's address is in no environment of theirs."""
    found: dict[str, Any] = {role: pid for role, pid in platform.pids().items() if role != "up"}
    assert {"web", "worker-1"} <= set(found)
    for role, pid in found.items():
        assert f"{database.name}_owns".encode() not in Path(f"/proc/{pid}/environ").read_bytes(), role
