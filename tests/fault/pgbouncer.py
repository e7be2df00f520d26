"""A real pgbouncer in transaction mode in front of a PostgreSQL of the test's own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from portal.settings.embedded import DATABASE_NAME, DATABASE_USER, Layout
from portal.supervisor.children import dies_with_parent
from portal.supervisor.postgres import clean_environment, unprivileged
from tests.platform import free_port, wait_for

SESSIONS = 6
"""Of PostgreSQL, for all processes together: so few that each process meets the sessions of the others."""
CONFIGURATION = """\
[databases]
{database} = host={socket} dbname={database} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 500
ignore_startup_parameters = options
admin_users = admin
logfile = {log}
"""


class Pgbouncer:
    """Accepts anybody on a loopback port."""

    def __init__(self, folder: Path, server: Layout) -> None:
        program = shutil.which("pgbouncer")
        if program is None:
            pytest.skip("needs pgbouncer (Debian: pgbouncer), which `make test` installs where it may")
        self.port = free_port()
        self.url = f"postgresql://{DATABASE_USER}@127.0.0.1:{self.port}/{DATABASE_NAME}"
        log = folder / "pgbouncer.log"
        configuration = folder / "pgbouncer.ini"
        password = server.postgres_password.read_text().strip().rpartition(":")[2]
        configuration.write_text(
            CONFIGURATION.format(
                database=DATABASE_NAME,
                socket=server.postgres_socket_dir,
                user=DATABASE_USER,
                password=password,
                port=self.port,
                sessions=SESSIONS,
                log=log,
            )
        )
        self._process = subprocess.Popen(
            dies_with_parent(unprivileged([program, str(configuration)], folder)),
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(self._responds, within_s=30, what=f"pgbouncer; see {log}")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)

    def clients(self) -> int:
        """Connections of clients now."""
        with closing(
            psycopg2.connect(self.url.replace(DATABASE_USER, "admin", 1), dbname="pgbouncer")
        ) as admin:
            admin.autocommit = True
            with admin.cursor() as cursor:
                cursor.execute("SHOW CLIENTS")
                return len(cursor.fetchall())

    @contextmanager
    def every_session(self) -> Iterator[list[Any]]:
        """A cursor in each of the sessions, which nothing else may use now."""
        connections = [psycopg2.connect(self.url) for _ in range(SESSIONS)]
        try:
            yield [
                connection.cursor() for connection in connections
            ]  # each is in a transaction from its first query
        finally:
            for connection in connections:
                connection.close()

    def _responds(self) -> bool:
        assert self._process.poll() is None, "pgbouncer ended"
        try:
            psycopg2.connect(self.url).close()
        except psycopg2.OperationalError:
            return False
        return True
