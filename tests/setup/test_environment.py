"""The environment is read once and judged whole: every problem at once, each with its variable's name."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command

import manage
from portal.health.diagnosis import variables
from portal.settings import single_sign_on, values
from portal.settings.embedded import layout
from portal.settings.env import Environment, ineffective_variables, read_environment
from portal.settings.values import database_from_url
from portal.supervisor import up
from portal.supervisor.folders import refuse_sources
from portal.supervisor.plan import StartPlan
from portal.supervisor.report import Report
from tests.nobody import no_superuser

ROOT = Path(__file__).resolve().parents[2]

WRONG = {
    "DATABASE_URL": "sqlite:///db.sqlite3",
    "REDIS_URL": "http://localhost",
    "SECRET_KEY": "short",
    "SECRET_KEY_FILE": "/nowhere/at/all",
    "LUTHIER_SECRETS_KEYS": "c2hvcnQ=",
    "LUTHIER_SECRETS_KEYS_FILE": "/nowhere/at/all",
    "EMAIL_URL": "imap://mail",
    "LUTHIER_AUDIT_URL": "https://user:password@logs.example",
    "LUTHIER_AUDIT_AUTHORIZATION": "Bearer x ",
    "LUTHIER_PUBLIC_URL": "localhost:8000",
    "LUTHIER_INGEST_URL": "ws://",
    "LUTHIER_OIDC_ISSUER": "http://login.example.org",
    "LUTHIER_OIDC_NAME": "x" * 61,
    "LUTHIER_OIDC_SCOPES": "profile email",
    "LUTHIER_OIDC_GROUPS_CLAIM": "x" * 61,
    "LUTHIER_OIDC_LINK_BY_EMAIL": "perhaps",
    "LUTHIER_OIDC_CREATE_USERS": "perhaps",
    "LUTHIER_OIDC_MAX_AGE_S": "soon",
    "LUTHIER_PRIVATE_HOSTS": "a/b",
    "LUTHIER_SESSION_IDLE_DAYS": "15",
    "LUTHIER_SUBMISSIONS_PER_MINUTE": "0",
    "LUTHIER_PASSWORD_SIGN_IN": "perhaps",
    "LUTHIER_TWO_FACTOR_REQUIRED": "perhaps",
    "LUTHIER_TWO_FACTOR_AFTER_SSO": "perhaps",
    "LUTHIER_CLUSTER": "slurm",
    "LUTHIER_SCHEDULER_POLICY": "round_robin",
    "LUTHIER_LEASE_S": "soon",
    "LUTHIER_TICK_S": "0",
    "LUTHIER_RETENTION_DAYS": "-1",
    "LUTHIER_RETENTION_RULES": "log:90d",
    "LUTHIER_LOG_JOB_MAX_BYTES": "1.5",
    "LUTHIER_MIN_FREE_DISK": "2%",
    "LUTHIER_OVERCOMMIT_MAX": "0.5",
    "LOCAL_NODES": "node-a:cpu",
    "KUBECONFIG": "/nowhere/at/all",
    "KUBE_NAMESPACE_PREFIX": "Über_",
    "KUBE_INSTALLATION": "Prod",
    "KUBE_ALLOWED_IMAGES": "Registry.example/*",
    "KUBE_GPU_RESOURCE": "gpu",
    "KUBE_RUNTIME_CLASS": "cpu=No",
    "KUBE_RACK_LABEL": "rack of node",
    "KUBE_BLOCK_LABEL": "example.com/",
    "KUBE_DATA_CLAIM": "a,b",
    "KUBE_RUNTIME_IMAGE": "registry.example/sklearn:1",
    "KUBE_SERVICE_ACCOUNT": "luthier",
    "KUBE_INGEST_PEERS": "web.example:443",
    "KUBE_DNS_PEERS": "kube-system",
    "KUBE_PROVISION_KUBECONFIG": "/nowhere/at/all",
    "DEBUG": "maybe",
    "ALLOWED_HOSTS": "a.example, https://b.example",
}


def start(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR")}
    command = [sys.executable, "manage.py", "up", "--port", "0", *options]
    return subprocess.run(
        command, cwd=ROOT, env=clean | variables, capture_output=True, text=True, timeout=60
    )


def test_a_start_names_every_wrong_variable_at_once_and_ends_with_78() -> None:
    rest_of_provider = {"LUTHIER_OIDC_CLIENT_ID": "x", "LUTHIER_OIDC_CLIENT_SECRET": "x"}
    ended = start(**WRONG, **rest_of_provider)
    assert ended.returncode == os.EX_CONFIG
    lines = [line.strip() for line in ended.stderr.splitlines()[1:]]
    assert {line.split(":")[0] for line in lines} == set(WRONG)
    assert "Traceback" not in ended.stderr


def test_a_cluster_without_its_settings_is_refused_with_all_of_them() -> None:
    ended = start(LUTHIER_CLUSTER="kubernetes")
    assert ended.returncode == os.EX_CONFIG
    named = [line.strip().split(":")[0] for line in ended.stderr.splitlines()[1:]]
    assert named == ["KUBE_INSTALLATION", "KUBE_AGENT_IMAGE"]


def test_nothing_is_made_when_the_environment_is_wrong(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert start(LUTHIER_DATA=str(data), LUTHIER_TICK_S="never").returncode == os.EX_CONFIG
    assert not data.exists()


ENTRY_POINTS = {
    "up": ["manage.py", "up", "--port", "0"],
    "web": ["-m", "portal.web", "--port", "0"],
    "worker": ["-m", "celery", "-A", "portal.celery", "--skip-checks", "worker", "--pool", "threads"],
    "node daemon": ["manage.py", "nodes"],
    "any command": ["manage.py", "invariants"],
}


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_a_cluster_without_a_driver_stops_every_entry_point(entry_point: str, tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR")}
    data = tmp_path / "data"
    settings = {
        "DJANGO_SETTINGS_MODULE": "portal.settings.base",
        "LUTHIER_DATA": str(data),
        "LUTHIER_CLUSTER": "slurm",
        "DATABASE_URL": "postgresql://localhost:9/none",
    }
    ended = subprocess.run(
        [sys.executable, *ENTRY_POINTS[entry_point]],
        cwd=ROOT, env=clean | settings, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == os.EX_CONFIG, ended.stderr
    assert "LUTHIER_CLUSTER: there is no cluster driver 'slurm' in this version" in ended.stderr
    assert "Traceback" not in ended.stderr
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
    assert end.value.code == os.EX_CONFIG
    assert f"  {name}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"LUTHIER_OIDC_ISSUER"}, ["LUTHIER_OIDC_CLIENT_ID", "LUTHIER_OIDC_CLIENT_SECRET"]),
        ({"LUTHIER_OIDC_CLIENT_SECRET_FILE"}, ["LUTHIER_OIDC_ISSUER", "LUTHIER_OIDC_CLIENT_ID"]),
        ({"LUTHIER_OIDC_ISSUER", "LUTHIER_OIDC_CLIENT_ID", "LUTHIER_OIDC_CLIENT_SECRET"}, []),
        (set(), []),
    ],
)
def test_a_provider_that_is_set_in_part_is_refused_with_what_is_missing(
    given: set[str], missing: list[str]
) -> None:
    found = single_sign_on.missing(dict.fromkeys(given, "x"))
    assert [each.partition(":")[0] for each in found] == missing


def test_passwords_are_not_turned_off_without_single_sign_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LUTHIER_PASSWORD_SIGN_IN", "no")
    with pytest.raises(SystemExit) as end:
        read_environment()
    assert end.value.code == os.EX_CONFIG
    assert "no one could sign in: set LUTHIER_OIDC_ISSUER, too" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "problem"), [(b"\n", "is empty"), (b"\xff\xfe", "cannot be read")])
def test_a_file_without_the_secret_of_the_provider_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
    problem: str,
) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    monkeypatch.setenv("LUTHIER_OIDC_ISSUER", "https://login.example.org")
    monkeypatch.setenv("LUTHIER_OIDC_CLIENT_ID", "x")
    monkeypatch.setenv("LUTHIER_OIDC_CLIENT_SECRET_FILE", str(file))
    with pytest.raises(SystemExit) as end:
        read_environment()
    assert end.value.code == os.EX_CONFIG
    assert f"  LUTHIER_OIDC_CLIENT_SECRET_FILE: {problem}: {file}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["SECRET_KEY", "LUTHIER_SECRETS_KEYS"])
def test_a_secret_is_never_repeated(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, "hunter2-hunter2")
    with pytest.raises(SystemExit):
        read_environment()
    assert "hunter2" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "password", ["hunter2/x", "hunter2?x", "hunter2#x", "[hunter2", "x/hunter2", "x?hunter2"]
)
def test_nor_is_a_password_that_is_not_escaped(password: str) -> None:
    readers = {"postgresql": values.database, "redis": values.url("redis"), "smtp": values.url("smtp")}
    for scheme, read in readers.items():
        with pytest.raises(ValueError, match="in a password write") as refused:
            read(f"{scheme}://user:{password}@host.example/name")
        assert "hunter2" not in str(refused.value)


def test_wrong_options_of_up_are_named_along_with_wrong_variables() -> None:
    ended = start("--port", "70000", "--workers", "0", "--nodes", "a:cpu:0", LUTHIER_LEASE_S="soon")
    assert ended.returncode == os.EX_CONFIG
    named = [line.strip().split(":")[0] for line in ended.stderr.splitlines()[1:]]
    assert sorted(named) == ["--nodes", "--port", "--workers", "LUTHIER_LEASE_S"]


@pytest.mark.parametrize("how", ["--data", "LUTHIER_DATA"])
def test_a_data_folder_that_cannot_be_is_refused_in_a_sentence(how: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/x"), tmp_path / ("x" * 300)):
        ended = start("--data", str(wrong)) if how == "--data" else start(LUTHIER_DATA=str(wrong))
        assert ended.returncode == os.EX_CONFIG, ended.stderr
        assert f"{wrong} cannot be used: " in ended.stderr
        assert how in ended.stderr  # what was set is named
        assert "Name a folder that you may write" in ended.stderr
        assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_a_file_as_data_folder_stops_every_entry_point(entry_point: str, tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR")}
    file = tmp_path / "file"
    file.touch()
    ended = subprocess.run(
        [sys.executable, *ENTRY_POINTS[entry_point]],
        cwd=ROOT,
        env=clean | {"DJANGO_SETTINGS_MODULE": "portal.settings.base", "LUTHIER_DATA": str(file / "data")},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == os.EX_CONFIG, ended.stderr
    assert f"  LUTHIER_DATA: {file / 'data'} cannot be used: {file} is not a folder" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("name", values.STORE_ADDRESSES)
@pytest.mark.parametrize("wrong", ["10.0.0.9:9000", "s3.example", "ftp://s3.example", "https://"])
def test_an_address_of_the_store_that_is_none_is_refused(
    name: str, wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, wrong)
    read_environment()  # not read where blobs are in a folder
    monkeypatch.setenv("LUTHIER_BLOBS", "s3://bucket/blobs")
    with pytest.raises(SystemExit) as end:
        read_environment()
    assert end.value.code == os.EX_CONFIG
    assert f"  {name}: " in capsys.readouterr().err
    monkeypatch.setenv(name, "http://10.0.0.9:9000")
    read_environment()


def test_an_empty_data_option_is_no_folder(tmp_path: Path) -> None:
    ended = start("--data", "")
    assert ended.returncode == os.EX_CONFIG
    assert "--data: is empty; name a folder" in ended.stderr


@pytest.mark.parametrize("name", [".git", "manage.py"])
def test_a_checkout_is_left_as_it_is(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    tmp_path.chmod(0o755)
    ended = start("--data", str(tmp_path))
    assert ended.returncode == os.EX_CONFIG
    assert f"--data: {tmp_path} holds {name}, so it is a source tree. Name a folder" in ended.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_folder_that_holds_other_things_or_nothing_is_taken(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    refuse_sources(layout(tmp_path))
    refuse_sources(layout(tmp_path / "new"))


def test_a_folder_into_which_we_may_not_look_is_left_to_the_lock(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed").chmod(0)
    with no_superuser():
        refuse_sources(layout(tmp_path / "closed"))


def test_a_wrong_option_is_called_by_its_own_name_and_a_variable_by_its() -> None:
    assert "  --nodes: 'abc' is not name:type:slots; write" in start("--nodes", "abc").stderr
    twice = start("--nodes", "a:cpu:1,a:cpu:2,b:cpu:99999,-c:cpu:1").stderr
    assert all(
        words in twice for words in ("'a' is named twice", "from 1 to 4096", "the name '-c' may contain")
    )
    assert "  LOCAL_NODES: 'abc' is not name:type:slots; write" in start(LOCAL_NODES="abc").stderr


def test_a_variable_without_effect_is_named_with_the_nearest_known_one() -> None:
    environment = {
        "LUTHIER_LEASES_S": "10",
        "LUTHIER_COLOR": "red",
        "LUTHIER_EMPTY": "",
        "LUTHIER_LEASE_S": "10",
        "LUTHIER_TOKEN": "lut_1",
        "LUTHIER_URL": "http://127.0.0.1:8000",
        "PATH": "/bin",
    }
    assert ineffective_variables(environment) == [
        "LUTHIER_COLOR: unknown variable, ignored.",
        "LUTHIER_LEASES_S: unknown variable, ignored. Did you mean LUTHIER_LEASE_S?",
    ]


def test_a_start_warns_of_a_variable_without_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class NoServices:
        def __init__(self, plan: StartPlan, report: Report) -> None:
            pass

        async def run(self) -> None:
            pass

    monkeypatch.setattr(up, "Supervisor", NoServices)
    monkeypatch.setenv("LUTHIER_DATA", str(tmp_path))
    monkeypatch.setenv("LUTHIER_LEASES_S", "10")
    assert up.main(["--port", "0"]) == 0
    warning = "Warning: LUTHIER_LEASES_S: unknown variable, ignored. Did you mean LUTHIER_LEASE_S?"
    assert warning in capsys.readouterr().out


def test_the_doctor_warns_of_a_variable_without_effect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LUTHIER_LEASES_S", "10")
    monkeypatch.setattr("portal.health.diagnosis.examine", lambda: [variables()])
    call_command("doctor")
    shown = capsys.readouterr().out
    assert shown.startswith("warn   variables")
    assert "LUTHIER_LEASES_S: unknown variable, ignored. Did you mean LUTHIER_LEASE_S?" in shown
    assert "No problems found." in shown


def test_an_empty_variable_counts_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUTHIER_LEASE_S", "")
    assert read_environment().luthier_lease_s == 10


def test_hosts_are_parted_at_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOWED_HOSTS", "a.example, b.example,")
    assert read_environment().allowed_hosts == ("a.example", "b.example")


@pytest.mark.parametrize("host", ["*", ".example.org", "10.0.0.7", "[::1]", "web_1", "Luthier.example"])
def test_every_form_of_a_host_is_taken(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOWED_HOSTS", host)
    assert read_environment().allowed_hosts == (host,)


def test_a_number_is_finite_and_within_its_bounds() -> None:
    for wrong in ("nan", "inf", "-inf", "601", "0.9", "", "1 s"):
        with pytest.raises(ValueError, match="must be a number from 1 to 600"):
            values.number(1, 600)(wrong)
    for wrong in ("-1", "1e3", "1023", "9" * 30, "１０２４"):
        with pytest.raises(ValueError, match="must be a whole number of at least 1024"):
            values.whole_number(1024)(wrong)
    assert (values.number(0.02, 60)("0.02"), values.whole_number(1024)("1024")) == (0.02, 1024)


def test_a_worker_loads_nothing_that_only_pages_need() -> None:
    """What every process imports delays every start: docs/adr/0019-quick-imports.md."""
    program = "import django, sys; django.setup(); import jobs.tasks; print(*sorted(sys.modules))"
    env = os.environ | {"DJANGO_SETTINGS_MODULE": "portal.settings.test"}
    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, check=True, capture_output=True, text=True
    ).stdout.split()
    assert "jobs.models" in loaded
    unwanted = {"pydantic", "requests", "pygments", "django.contrib.admin", "cryptography", "jwt"}
    assert unwanted & set(loaded) == set()


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


def test_a_damaged_file_of_secrets_keys_stops_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from portal.settings.secret import new_secrets_key, secrets_keys

    file = tmp_path / "keys"
    file.write_text(f"# newest first\n{new_secrets_key()}\n{new_secrets_key()}\n")
    given = Environment(luthier_secrets_keys_file=file)
    assert len(secrets_keys(given, tmp_path / "kept").read()) == 2
    file.write_text("hunter2-hunter2\n")
    with pytest.raises(SystemExit) as end:
        secrets_keys(given, tmp_path / "kept")
    assert end.value.code == os.EX_CONFIG
    said = capsys.readouterr().err
    assert f"{file}: key 1 of 1 is not 32 bytes in URL-safe base64" in said
    assert "hunter2" not in said


def test_production_settings_pass_djangos_deployment_checks(tmp_path: Path) -> None:
    production = {
        "LUTHIER_PUBLIC_URL": "https://luthier.example.org",
        "LUTHIER_DATA": str(tmp_path),
        "SECRET_KEY": "k3y-" + "abcdefghijklmnopqrstuvwxyz0123456789-_ABCDEFGHIJKLMNOP",
        "REDIS_URL": "redis://broker.example:6379/0",  # without TLS, which is said and no failure
    }
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "DATABASE_URL")}
    command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    ended = subprocess.run(
        command, cwd=ROOT, env=kept | production, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "portal.I001" in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("arguments", "left", "folder"),
    [
        (["demo", "--data", "/data", "--json"], ["demo", "--json"], "/data"),
        (["--data=/data", "doctor"], ["doctor"], "/data"),
        (["doctor"], ["doctor"], "unchanged"),
    ],
)
def test_every_command_takes_the_data_folder_as_an_option(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], left: list[str], folder: str
) -> None:
    monkeypatch.setenv("LUTHIER_DATA", "unchanged")
    assert manage.use_data_folder(["manage.py", *arguments]) == ["manage.py", *left]
    assert os.environ["LUTHIER_DATA"] == folder


def test_an_empty_data_folder_is_refused_by_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        manage.use_data_folder(["manage.py", "doctor", "--data", ""])
    assert "--data: is empty" in capsys.readouterr().err


@pytest.mark.parametrize(("scheme", "status"), [("ws", 401), ("wss", 403)])
def test_learners_without_tls_are_refused_only_where_they_are_to_use_it(
    scheme: str, status: int, tmp_path: Path
) -> None:
    """Beside the web processes, behind the proxy that ends TLS, there is no TLS to use. Elsewhere a redirect would hide
    that a secret was sent in the clear."""
    variables = {
        "LUTHIER_PUBLIC_URL": "https://luthier.example",
        "LUTHIER_INGEST_URL": f"{scheme}://web.luthier.svc:80",
        "ALLOWED_HOSTS": "web.luthier.svc",
        "LUTHIER_DATA": str(tmp_path / "data"),
        "DJANGO_SETTINGS_MODULE": "portal.settings.base",
    }
    program = (
        "import django; django.setup(); from django.test import Client;"
        "print(Client().get('/agent/v1/job', HTTP_HOST='web.luthier.svc').status_code)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]} | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stdout.split()[-1:] == [str(status)], ended.stderr
