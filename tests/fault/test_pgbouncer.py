"""The platform behind pgbouncer in transaction mode: every transaction may get another session of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from portal.settings.embedded import layout
from tests.documents import blocks
from tests.fault.pgbouncer import SESSIONS, Pgbouncer
from tests.fault.replicas import Balancer, WebReplica
from tests.fault.specs import TRAINS, spec
from tests.platform import Client, Platform, wait_for
from tests.servers import Servers

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

SETTINGS = ("statement_timeout", "lock_timeout", "search_path", "idle_in_transaction_session_timeout", "role")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Servers]:
    """A PostgreSQL whose role has the settings that docs/operations.md gives it."""
    servers = Servers(tmp_path / "server")
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


def documented_settings() -> str:
    (found,) = [block for block in blocks() if block.language == "sql" and "lock_timeout" in block.text]
    return found.text


@pytest.fixture
def pool(server: Servers, tmp_path: Path) -> Iterator[Pgbouncer]:
    with closing(psycopg2.connect(layout(tmp_path / "server").database_url)) as connection:
        connection.autocommit = True
        connection.cursor().execute(documented_settings())
    started = Pgbouncer(tmp_path, server.layout)
    yield started
    started.stop()


def test_jobs_run_halt_and_resume_through_a_pool_in_transaction_mode(
    server: Servers, pool: Pgbouncer, tmp_path: Path
) -> None:
    balancer = Balancer()
    platform = Platform(
        tmp_path / "data",
        DATABASE_URL=pool.url,
        LUTHIER_PUBLIC_URL=f"http://127.0.0.1:{balancer.port}",
        LUTHIER_INGEST_URL=f"ws://127.0.0.1:{balancer.port}",
    )
    replica: WebReplica | None = None
    try:
        platform.start()
        replica = WebReplica(platform)
        balancer.backends += [platform.port, replica.port]
        user = platform.client()
        alice = Client(f"http://127.0.0.1:{balancer.port}", user.token, user.tenant)
        jobs = [alice.submit(spec("goes-on", TRAINS))["id"] for _ in range(3)]
        for job in jobs:
            wait_for(
                lambda job=job: (alice.job(job)["progress"]["step"] or 0) > 5, within_s=90, what="it trains"
            )
        assert pool.clients() > SESSIONS
        for job in jobs:
            alice.post(f"/jobs/{job}/halt")
        for job in jobs:
            assert alice.wait_state(job, "HALTED")["checkpoint"] is not None
            alice.post(f"/jobs/{job}/resume")
        for job in jobs:
            alice.wait_state(job, "COMPLETED", within_s=120)
        platform.manage("invariants")
        with pytest.raises(AssertionError, match="connection pool"):
            platform.manage("backup", str(tmp_path / "backup"))
    finally:
        if replica is not None:
            replica.stop()
        platform.stop()
        balancer.close()

    with pool.every_session() as cursors:
        found = set()
        for cursor in cursors:
            cursor.execute(
                f"SELECT pg_backend_pid(), {', '.join(f'current_setting({name!r})' for name in SETTINGS)}"
            )
            found.add(cursor.fetchone())
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        assert cursor.fetchone() == (0,)
    assert len(found) == SESSIONS
    assert {tuple(row[1:]) for row in found} == {("10s", "3s", '"$user", public', "1min", "none")}
