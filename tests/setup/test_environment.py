"""The environment is read once and judged whole: every problem at once, each with its variable's name."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from portal.settings.env import EX_CONFIG, Environment, database_from_url, read_environment

ROOT = Path(__file__).resolve().parents[2]

WRONG = {
    "DATABASE_URL": "sqlite:///db.sqlite3",
    "REDIS_URL": "http://localhost",
    "SECRET_KEY": "short",
    "SECRET_KEY_FILE": "/nowhere/at/all",
    "EMAIL_URL": "imap://mail",
    "LUTHIER_PUBLIC_URL": "localhost:8000",
    "LUTHIER_INGEST_URL": "ws://",
    "LUTHIER_CLUSTER": "slurm",
    "LUTHIER_LEASE_S": "soon",
    "LUTHIER_TICK_S": "0",
    "LUTHIER_RETENTION_DAYS": "-1",
    "LUTHIER_LOG_JOB_MAX_BYTES": "1.5",
    "LUTHIER_OVERCOMMIT_MAX": "0.5",
    "LOCAL_NODES": "node-a:cpu",
    "KUBECONFIG": "/nowhere/at/all",
    "KUBE_NAMESPACE_PREFIX": "Über_",
    "DEBUG": "maybe",
    "ALLOWED_HOSTS": "a.example, https://b.example",
}


def start(**variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR")}
    command = [sys.executable, "manage.py", "up", "--port", "0"]
    return subprocess.run(
        command, cwd=ROOT, env=clean | variables, capture_output=True, text=True, timeout=60
    )


def test_a_start_names_every_wrong_variable_at_once_and_ends_with_78() -> None:
    ended = start(**WRONG)
    assert ended.returncode == EX_CONFIG
    lines = [line.strip() for line in ended.stderr.splitlines()[1:]]
    assert {line.split(":")[0] for line in lines} == set(WRONG)
    assert "Traceback" not in ended.stderr


def test_nothing_is_made_when_the_environment_is_wrong(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert start(LUTHIER_DATA=str(data), LUTHIER_TICK_S="never").returncode == EX_CONFIG
    assert not data.exists()


@pytest.mark.parametrize("name", sorted(WRONG))
def test_one_wrong_variable_is_refused_by_name(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for other in WRONG:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, WRONG[name])
    with pytest.raises(SystemExit) as end:
        read_environment()
    assert end.value.code == EX_CONFIG
    assert f"  {name}: " in capsys.readouterr().err


def test_a_secret_is_never_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SECRET_KEY", "hunter2-hunter2")
    with pytest.raises(SystemExit):
        read_environment()
    assert "hunter2" not in capsys.readouterr().err


def test_a_wrong_option_of_up_is_named() -> None:
    command = [sys.executable, "manage.py", "up", "--port", "70000", "--workers", "0"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == EX_CONFIG
    assert "--port" in ended.stderr
    assert "--workers" in ended.stderr


def test_an_empty_variable_counts_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUTHIER_LEASE_S", "")
    assert Environment().luthier_lease_s == 10


def test_hosts_are_parted_at_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOWED_HOSTS", "a.example, b.example,")
    assert Environment().allowed_hosts == ["a.example", "b.example"]


@pytest.mark.parametrize("host", ["*", ".example.org", "10.0.0.7", "[::1]", "web_1", "Luthier.example"])
def test_every_form_of_a_host_is_taken(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOWED_HOSTS", host)
    assert Environment().allowed_hosts == [host]


def test_a_database_url_may_name_a_socket_folder_and_options() -> None:
    found = database_from_url("postgresql://me:p%40ss@/luthier?host=/run/pg&sslmode=disable")
    assert (found["USER"], found["PASSWORD"], found["HOST"]) == ("me", "p@ss", "/run/pg")
    assert found["OPTIONS"] == {"sslmode": "disable"}


def test_a_database_url_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="names no database"):
        database_from_url("postgresql://localhost/")


def test_the_secret_key_is_made_once_and_kept_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from portal.settings.secret import secret_key

    monkeypatch.delenv("SECRET_KEY", raising=False)
    kept = tmp_path / "data" / "secret_key"
    first = secret_key(Environment(), kept)
    assert secret_key(Environment(), kept) == first
    assert len(first) >= 50
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert [path.name for path in kept.parent.iterdir()] == ["secret_key"]


def test_production_settings_pass_djangos_deployment_checks(tmp_path: Path) -> None:
    production = {
        "LUTHIER_PUBLIC_URL": "https://luthier.example.org",
        "LUTHIER_DATA": str(tmp_path),
        "SECRET_KEY": "k3y-" + "abcdefghijklmnopqrstuvwxyz0123456789-_ABCDEFGHIJKLMNOP",
    }
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "DATABASE_URL")}
    command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    ended = subprocess.run(
        command, cwd=ROOT, env=kept | production, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
