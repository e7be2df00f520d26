"""`manage.py up` on a real installation: starts, restarts what dies, refuses a second start, leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from urllib.request import urlopen

import psutil
import psycopg2
import pytest

from examples import catalog
from portal.settings.embedded import layout
from tests.platform import ROOT, Platform, free_port, wait_for

pytestmark = [pytest.mark.fault, pytest.mark.timeout(240)]
NODES = "node-a:cpu:2"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """One installation for the tests that leave it running."""
    made = Platform(tmp_path_factory.mktemp("up"), nodes=NODES, demo=True)
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Platform]:
    """An installation that a test may end as it likes."""
    made = Platform(tmp_path / "data", nodes=NODES, workers=1)
    try:
        yield made
    finally:
        made.stop()


def processes(platform: Platform) -> list[psutil.Process]:
    """Everything that serves this data folder: the named children and whatever they started."""
    found: dict[int, psutil.Process] = {}
    for pid in platform.pids().values():
        with suppress(psutil.NoSuchProcess):  # it may end at any moment
            named = psutil.Process(pid)
            found |= {process.pid: process for process in (named, *named.children(recursive=True))}
    return list(found.values())


def assert_all_gone(found: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(found, timeout=60)
    assert not alive, alive


def test_every_part_runs_and_is_named(platform: Platform) -> None:
    every = {"up", "postgres", "valkey", "web", "nodes", "scheduler", "worker-1", "worker-2"}
    wait_for(
        lambda: set(platform.pids()) == every, within_s=60, what="the second worker"
    )  # loads when all is ready
    assert (platform.data / "run" / "url").read_text() == platform.url


def test_web_server_and_workers_share_the_code_that_one_process_has_loaded(platform: Platform) -> None:
    """It is gone then; without it nothing would be in the memory of more than one."""
    assert platform.process is not None
    up = psutil.Process(platform.process.pid)
    wait_for(lambda: not loaders(up), within_s=60, what="the end of the loader")
    pids = platform.pids()
    for name in ("web", "scheduler", "worker-1", "worker-2"):
        assert psutil.Process(pids[name]).ppid() == up.pid
        assert shared_mib(pids[name]) > 20, name
    assert shared_mib(pids["nodes"]) < 5
    assert "loads its code itself" not in platform.log.read_text()


def loaders(up: psutil.Process) -> list[psutil.Process]:
    """Children of `up` that load code for others; one that ends meanwhile is none."""
    found = []
    for child in up.children():
        with suppress(psutil.NoSuchProcess):
            found += [child] if "portal.loader" in child.cmdline() else []
    return found


def shared_mib(pid: int) -> float:
    """Memory of a process that it wrote, or that was written before a fork, and another one has, too."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(row.split()[1]) for row in rows if row.startswith("Shared_Dirty:")) / 1024


def test_the_first_start_fetches_what_the_templates_need(platform: Platform) -> None:
    wait_for(lambda: "MNIST templates" in platform.log.read_text(), within_s=120, what="the examples' data")
    assert "The MNIST templates' data is in place" in platform.log.read_text()
    spec = catalog.load("mnist-jax")
    assert platform.client("alice").post("/tenants/vision-lab/jobs:validate", spec)["errors"] == []


def test_the_first_start_prints_one_time_passwords_and_the_first_job(platform: Platform) -> None:
    def welcomed() -> bool:
        return "Ctrl-C stops everything" in platform.log.read_text()

    wait_for(welcomed, within_s=60, what="the welcome")
    printed = platform.log.read_text()
    for name in ("alice", "bob", "carol", "dave", "admin"):
        assert re.search(rf"^    {name}\s+\S{{12,}}", printed, re.MULTILINE)
    assert re.search(rf"{platform.url}/t/vision-lab/jobs/[0-9a-z]{{12}}", printed), printed


@pytest.mark.parametrize("role", ["valkey", "worker-1", "scheduler", "nodes", "web", "postgres"])
def test_a_killed_part_comes_back(platform: Platform, role: str) -> None:
    killed = platform.kill(role)
    wait_for(lambda: platform.pids().get(role, killed) != killed, within_s=60, what=f"a new {role}")
    wait_for(platform.is_ready, within_s=60, what=f"ready again after the loss of {role}")


def test_a_second_start_on_the_same_data_says_who_holds_it(platform: Platform) -> None:
    ended = second_start(platform, "--data", str(platform.data), "--port", "0")
    assert ended.returncode == 1
    assert f"process {platform.pids()['up']}, {platform.url}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_taken_port_is_named(platform: Platform, tmp_path: Path) -> None:
    ended = second_start(platform, "--data", str(tmp_path), "--port", str(platform.port))
    assert ended.returncode == 1
    assert f"Port {platform.port} on 127.0.0.1 cannot be used" in ended.stderr


def test_doctor_finds_nothing_wrong(platform: Platform) -> None:
    assert "No problems found" in platform.manage("doctor")


@pytest.mark.parametrize("written", ["--data {}", "--data={}"])
def test_any_command_finds_an_installation_by_its_data_folder(platform: Platform, written: str) -> None:
    """Without LUTHIER_DATA, from the option that `up` was started with."""
    option = written.format(platform.data).split()
    assert f"{platform.data}\n" in platform.manage("doctor", *option, LUTHIER_DATA="")


def listening_on(process: psutil.Process) -> set[str]:
    """Addresses on which a process takes TCP connections; one that has ended meanwhile takes none."""
    try:
        found = process.net_connections(kind="tcp")
    except psutil.NoSuchProcess:
        return set()
    return {connection.laddr.ip for connection in found if connection.status == psutil.CONN_LISTEN}


def test_data_and_sockets_are_private(platform: Platform) -> None:
    where = layout(platform.data)
    for folder in (where.data, where.postgres_data, where.postgres_socket_dir):
        assert folder.stat().st_mode & 0o077 == 0, folder
    addresses = {address for process in processes(platform) for address in listening_on(process)}
    assert addresses == {"127.0.0.1"}


def test_no_process_shows_a_password_of_the_servers(platform: Platform) -> None:
    keys = layout(platform.data)
    postgres = keys.postgres_password.read_text().strip().rpartition(":")[2]
    valkey = keys.valkey_password.read_text().split()[1]
    shown = ""
    for process in processes(platform):
        with suppress(psutil.NoSuchProcess):
            shown += " ".join(process.cmdline()) + str(process.environ())
    shown += "".join(path.read_text(errors="replace") for path in keys.logs.glob("*.log"))
    assert str(platform.data) in shown
    assert not [word for word in (postgres, valkey, keys.node_key.read_text()) if word in shown]


def test_ctrl_c_leaves_no_process_and_no_socket(own: Platform) -> None:
    own.start()
    found = processes(own)
    own.stop()
    assert_all_gone(found)
    assert own.process is not None
    assert own.process.returncode == 0
    assert not list(layout(own.data).runtime.rglob("*.sock*"))
    assert not (own.data / "run" / "children.json").exists()


def test_a_killed_supervisor_leaves_no_process_and_the_next_start_works(own: Platform) -> None:
    own.start()
    found = processes(own)
    own.kill("up")
    assert own.process is not None
    own.process.wait(10)
    assert_all_gone(found)
    own.start()
    assert own.is_ready()


def test_a_start_right_after_a_kill_does_not_trip_over_what_is_left(own: Platform) -> None:
    own.start()
    for role in ("postgres", "up"):  # the stale postmaster.pid stays
        own.kill(role)
    assert own.process is not None
    own.process.wait(10)
    own.start()
    assert own.is_ready()


def test_an_impatient_person_may_stop_a_start(own: Platform) -> None:
    own.data.mkdir(parents=True)
    with own.log.open("wb") as log:
        command = [sys.executable, "manage.py", "up", "--data", str(own.data), "--port", str(own.port)]
        own.process = subprocess.Popen(command, cwd=ROOT, env=own.environment(), stdout=log, stderr=log)
    wait_for(lambda: (own.data / "run" / "children.json").exists(), within_s=60, what="the first child")
    found = processes(own)
    own.process.send_signal(signal.SIGTERM)
    assert own.process.wait(60) == 0
    assert_all_gone(found)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("begun", ["loader", "web"])
def test_a_start_that_is_cut_off_leaves_no_process(own: Platform, begun: str, number: signal.Signals) -> None:
    """While the code is loaded, and just after the web server was forked."""
    own.data.mkdir(parents=True)
    with own.log.open("wb") as log:
        command = [sys.executable, "manage.py", "up", "--data", str(own.data), "--port", str(own.port)]
        own.process = subprocess.Popen(command, cwd=ROOT, env=own.environment(), stdout=log, stderr=log)
    up, children = psutil.Process(own.process.pid), own.data / "run" / "children.json"
    has_begun = {
        "loader": lambda: loaders(up),
        "web": lambda: children.exists() and "web" in own.pids(),
    }
    wait_for(has_begun[begun], within_s=60, every_s=0.01, what=begun)
    own.process.send_signal(number)
    assert own.process.wait(60) == (0 if number == signal.SIGTERM else -number)
    wait_for(lambda: not serving(own), within_s=60, what="the end of all")


def serving(platform: Platform) -> list[psutil.Process]:
    """Every process of the platform, whatever its parent."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            known_by = [*process.cmdline(), process.environ().get("LUTHIER_DATA", "")]
            found += [process] if str(platform.data) in known_by else []
    return found


def test_servers_of_ones_own_replace_the_embedded_ones(own: Platform) -> None:
    """The suite's PostgreSQL and Valkey act as an operator's own servers."""
    parts = urlsplit(os.environ["DATABASE_URL"])
    name = f"external_{free_port()}"
    with closing(psycopg2.connect(os.environ["DATABASE_URL"])) as connection:
        connection.autocommit = True
        connection.cursor().execute(f'CREATE DATABASE "{name}"')
    own.env["DATABASE_URL"] = urlunsplit(parts._replace(path=f"/{name}"))
    own.env["REDIS_URL"] = os.environ["REDIS_URL"]
    own.start()
    ours = {"up", "web", "nodes", "scheduler", "worker-1"}
    wait_for(lambda: set(own.pids()) == ours, within_s=60, what="the scheduler")
    assert not (own.data / "postgres").exists()
    with urlopen(f"{own.url}/readyz", timeout=5) as answer:
        assert answer.status == 200


def second_start(platform: Platform, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "manage.py", "up", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=platform.environment(), capture_output=True, text=True, timeout=60, check=False
    )


def test_with_the_broker_gone_for_good_jobs_still_run(own: Platform) -> None:
    own.env["REDIS_URL"] = f"redis://127.0.0.1:{free_port()}/0"  # nothing listens there
    own.start()
    alice = own.client("alice")
    spec = {
        "apiVersion": "luthier/v1",
        "name": "alone",
        "framework": "plain",
        "code": {"files": {"hello.py": "print('hello')"}},
        "command": "python hello.py",
        "resources": {"learners": 1, "gpus": 0, "cpus": 1, "memory": "128Mi"},
    }
    job = alice.submit(spec)
    alice.wait_state(job["id"], "COMPLETED", within_s=60)
    assert b"hello" in alice.raw_log(job["id"], attempt=1)


def test_ctrl_c_lets_a_job_save_its_work_and_the_next_start_goes_on_with_it(own: Platform) -> None:
    own.start()
    spec = catalog.load("counter")
    spec["command"] = "python count.py 300 20"
    job = own.client("alice").submit(spec)
    wait_for(lambda: step_of(own, job["id"]) > 10, within_s=60, what="ten steps")
    found = processes(own)
    assert len(found) > len(own.pids()), "a learner runs"
    own.stop()
    assert_all_gone(found)
    own.start()
    alice = own.client("alice")
    done = alice.wait_state(job["id"], "COMPLETED", within_s=90)
    assert done["attempt"] == 2
    printed = b"".join(alice.raw_log(job["id"], attempt=attempt) for attempt in (1, 2))
    numbers = [int(line.split()[1]) for line in printed.splitlines() if line.startswith(b"line ")]
    assert numbers == list(range(1, 301)), "each line once: the checkpoint of the stop was taken up again"
    assert done["restarts_used"] == 0, "the platform's own stop is not the program's fault"


def step_of(platform: Platform, job_id: str) -> int:
    progress = platform.client("alice").job(job_id)["progress"] or {}
    return int(progress.get("step") or 0)
