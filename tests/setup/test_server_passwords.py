"""Reaching a socket of the embedded servers is not enough: each asks for what is in a private file."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import psycopg2
import pytest
import redis

from portal.settings.embedded import DATABASE_NAME, DATABASE_USER, Layout
from portal.supervisor import postgres
from tests.servers import Servers

TRUST = "local all all trust\n"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    found = Servers(tmp_path / "data")
    try:
        yield found
    finally:
        found.stop()


def connected(where: Layout, **options: str) -> bool:
    """Whether the platform's user is let in with these options; an error of another kind fails the test."""
    try:
        psycopg2.connect(
            host=str(where.postgres_socket_dir), user=DATABASE_USER, dbname=DATABASE_NAME, **options
        ).close()
    except psycopg2.OperationalError as error:
        if "password" not in str(error):
            raise
        return False
    return True


def _listening(process: psutil.Process) -> set[int]:
    return {one.laddr.port for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN}


def _tcp_ports_of(servers: Servers) -> set[int]:
    """On which the servers and their children listen."""
    found = set()
    for process in servers.processes:
        top = psutil.Process(process.pid)
        found |= _listening(top)
        for child in top.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # PostgreSQL's workers come and go
                found |= _listening(child)
    return found


def is_private(path: Path) -> bool:
    return path.stat().st_mode & 0o077 == 0


def test_neither_server_listens_on_a_tcp_port(servers: Servers) -> None:
    """Programs of the local cluster reach the ports of their machine."""
    servers.start()
    assert _tcp_ports_of(servers) == set()
    assert len(servers.processes) == 2
    with socket.create_server(("127.0.0.1", 0)) as own:
        listening = psutil.Process().net_connections("tcp")
        assert own.getsockname()[1] in {each.laddr.port for each in listening}, "such a port would be seen"


def test_a_socket_alone_opens_neither_server(servers: Servers) -> None:
    servers.start()
    where = servers.layout
    assert not connected(where, passfile="/dev/null")
    assert not connected(where, passfile="/dev/null", password="guess")
    assert connected(where, passfile=str(where.postgres_password))
    stranger = redis.Redis(unix_socket_path=str(where.valkey_socket))
    with closing(stranger), pytest.raises(redis.AuthenticationError):
        stranger.ping()
    with closing(redis.Redis.from_url(where.redis_url)) as client:
        assert client.ping()
    assert all(map(is_private, (where.keys, where.postgres_password, where.valkey_password)))


def test_no_command_line_has_a_password(servers: Servers) -> None:
    servers.start()
    where = servers.layout
    words = {
        where.postgres_password.read_text().strip().rpartition(":")[2],
        where.valkey_password.read_text().split()[1],
    }
    shown = b"".join(
        Path(f"/proc/{process.pid}/{file}").read_bytes()
        for process in servers.processes
        for file in ("cmdline", "environ")
    )
    assert shown
    assert not [word for word in words if word.encode() in shown]
    assert not [word for word in words if word in where.database_url]


def old_folder(servers: Servers) -> None:
    """The data folder of a version whose server trusted everybody, with something in it."""
    where = servers.layout
    servers.make_folders()
    postgres.make_private(where.postgres_socket_dir)
    postgres.create_files(where.postgres_data, "forgotten")
    (where.postgres_data / "pg_hba.conf").write_text(TRUST)
    command = [str(postgres.binaries() / "postgres"), "--single", "-D", str(where.postgres_data), "postgres"]
    subprocess.run(
        postgres.unprivileged(command, where.postgres_data),
        input=f"CREATE DATABASE {DATABASE_NAME};\n",
        text=True,
        check=True,
        capture_output=True,
        env=postgres.clean_environment(),
    )
    command[-1] = DATABASE_NAME
    subprocess.run(
        postgres.unprivileged(command, where.postgres_data),
        input="CREATE TABLE kept AS SELECT 42 AS answer\n",
        text=True,
        check=True,
        capture_output=True,
        env=postgres.clean_environment(),
    )


def test_an_older_data_folder_gets_a_password_and_loses_nothing(servers: Servers) -> None:
    old_folder(servers)
    servers.start()
    assert not connected(servers.layout, passfile="/dev/null")
    with closing(psycopg2.connect(servers.layout.database_url)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT answer FROM kept")
        assert cursor.fetchone() == (42,)


def test_the_files_are_created_with_the_password(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of PostgreSQL that only set it would cost each first start a quarter of a second."""
    monkeypatch.setattr(postgres, "_set_password", None)
    servers.start()
    where = servers.layout
    assert connected(where, passfile=str(where.postgres_password))
    assert not connected(where, passfile="/dev/null")
    assert not where.postgres_data.with_name("postgres.password").exists()


def test_a_creation_that_was_cut_off_before_its_password_was_kept_gets_another(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers.make_folders()
    with monkeypatch.context() as patched:
        patched.setattr(postgres, "_keep_password", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            postgres.prepare(servers.layout)
    assert not servers.layout.postgres_password.exists()
    servers.start()
    assert connected(servers.layout, passfile=str(servers.layout.postgres_password))


@pytest.mark.parametrize("cut_off_after", ["_set_password", "_write_access"])
def test_an_upgrade_that_was_cut_off_is_repeated(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, cut_off_after: str
) -> None:
    old_folder(servers)
    step = getattr(postgres, cut_off_after)

    def and_die(*arguments: object) -> None:
        step(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(postgres, cut_off_after, and_die)
        with pytest.raises(KeyboardInterrupt):
            postgres.prepare(servers.layout)
    servers.start()
    assert not connected(servers.layout, passfile="/dev/null")
    assert connected(servers.layout, passfile=str(servers.layout.postgres_password))


def test_access_that_was_opened_by_hand_is_closed_at_the_next_start(servers: Servers) -> None:
    servers.make_folders()
    postgres.prepare(servers.layout)
    (servers.layout.postgres_data / "pg_hba.conf").write_text(TRUST)
    servers.start()
    assert not connected(servers.layout, passfile="/dev/null")


def test_a_lost_password_is_replaced_at_the_next_start(servers: Servers) -> None:
    servers.make_folders()
    postgres.prepare(servers.layout)
    before = servers.layout.postgres_password.read_text()
    servers.layout.postgres_password.unlink()
    servers.start()
    assert servers.layout.postgres_password.read_text() != before
    assert connected(servers.layout, passfile=str(servers.layout.postgres_password))
