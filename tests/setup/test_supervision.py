"""One supervised process, with toy programs in the place of servers: ready, restart, stop, leftovers."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import yaml

from gpu_scheduler.clusters.local.gangs import DELIVER_S
from jobs.spec.definition import json_schema
from jobs.spec.quantities import parse_duration
from portal.migrations_gate import GATE
from portal.settings.env import BASE_DIR, Environment
from portal.supervisor import process
from portal.supervisor.children import dies_with_parent, kill_tree
from portal.supervisor.errors import CannotStart
from portal.supervisor.leftovers import Register, end_leftovers, remove_stale_locks
from portal.supervisor.lock import DataLock
from portal.supervisor.plan import Options, start_plan
from portal.supervisor.process import Supervised
from portal.supervisor.report import Report
from portal.supervisor.service import Service, backoff_s
from portal.supervisor.supervisor import together

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)",
]
Start = Callable[[Service], Supervised]


async def always() -> bool:
    return True


async def never() -> bool:
    return False


@pytest.fixture
async def supervise(tmp_path: Path) -> AsyncIterator[Start]:
    """Builds supervised services and ends in any case what they started."""
    made: list[Supervised] = []

    def build(service: Service) -> Supervised:
        made.append(Supervised(service, logs=tmp_path, register=Register(tmp_path), report=Report()))
        return made[-1]

    yield build
    for supervised in made:
        if supervised.pid:
            kill_tree(supervised.pid)
        await supervised.stop()


def toy(command: list[str] = SLEEPER, **changes: object) -> Service:
    return replace(Service(name="toy", title="Toy", command=command, ready=always), **changes)  # type: ignore[arg-type]


async def until(condition: Callable[[], object], within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.02)


async def environment(pid: int | None, data: str) -> dict[str, str]:
    """Of a service that was given this data folder. While its program is just being loaded none is seen, so that a look
    counts as a whole."""
    process, looks = psutil.Process(pid), [dict[str, str]()]

    def has_its_own() -> bool:
        looks.append(process.environ())
        return looks[-1].get("LUTHIER_DATA") == data

    await until(has_its_own)
    return looks[-1]


async def test_a_killed_service_is_started_again(supervise: Start) -> None:
    toy_service = supervise(toy())
    await toy_service.start()
    first = toy_service.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: toy_service.pid not in (None, first))


async def test_only_a_service_that_reads_settings_gets_the_platforms_secrets(
    supervise: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {"LUTHIER_OIDC_CLIENT_SECRET", "DATABASE_URL", "AWS_SECRET_ACCESS_KEY"}
    for name in secrets:
        monkeypatch.setenv(name, "of-the-platform")
    seen: dict[bool, dict[str, str]] = {}
    for reads in (True, False):
        service = supervise(toy(reads_settings=reads, env={"LUTHIER_DATA": str(tmp_path)}))
        await service.start()
        seen[reads] = await environment(service.pid, str(tmp_path))
    assert secrets <= set(seen[True])
    assert not secrets & set(seen[False])
    assert seen[False]["PATH"] == os.environ["PATH"]


async def test_a_service_that_dies_at_once_cannot_start_and_its_log_is_shown(supervise: Start) -> None:
    broken = toy([sys.executable, "-c", "raise SystemExit('no such folder: /x')"], ready=never)
    with pytest.raises(CannotStart, match=r"(?s)Toy exited with code 1.*no such folder: /x"):
        await supervise(broken).start()


async def test_a_service_that_never_answers_cannot_start_and_is_gone(supervise: Start) -> None:
    silent = supervise(toy(ready=never, start_s=0.3))
    with pytest.raises(CannotStart, match="was not ready after"):
        await silent.start()
    assert silent.pid is None


async def test_no_time_to_get_ready_is_spent_while_the_tables_are_made(
    supervise: Start, tmp_path: Path
) -> None:
    script = "from portal.migrations_gate import wait_until_prepared; wait_until_prepared(); print('in', flush=True)"
    gate, log = tmp_path / "prepared", tmp_path / "toy.log"

    async def is_in() -> bool:
        return "in" in log.read_text()

    command = [sys.executable, "-c", f"import time; {script}; time.sleep(600)"]
    env = {GATE: str(gate), "PYTHONPATH": str(BASE_DIR)}
    prepared = asyncio.Event()
    begun = supervise(toy(command, env=env, ready=is_in, start_s=60)).start(prepared)
    starting = asyncio.create_task(begun)
    await until(log.exists)
    await asyncio.sleep(1)
    assert not await is_in()
    gate.touch()
    await until(lambda: "in" in log.read_text())
    assert not starting.done(), "it counts as started when all is prepared"
    prepared.set()
    await starting


async def test_its_time_to_get_ready_begins_when_all_is_prepared(supervise: Start) -> None:
    prepared = asyncio.Event()
    starting = asyncio.create_task(supervise(toy(ready=never, start_s=0.2)).start(prepared))
    await asyncio.sleep(0.6)
    assert not starting.done()
    prepared.set()
    with pytest.raises(CannotStart, match="not ready after 0 s"):
        await starting


async def test_a_stopped_service_is_not_started_again(supervise: Start) -> None:
    toy_service = supervise(toy())
    await toy_service.start()
    pid = toy_service.pid
    assert pid is not None
    await toy_service.stop()
    assert not psutil.pid_exists(pid)
    await asyncio.sleep(0.3)
    assert toy_service.pid is None


async def test_a_service_that_ignores_its_signal_is_killed(supervise: Start) -> None:
    stubborn = supervise(toy(STUBBORN, stop_s=0.5))
    await stubborn.start()
    await stubborn.stop()
    assert stubborn.pid is None


async def test_one_that_does_not_answer_while_it_is_stopped_is_killed_before_its_time(
    supervise: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process, "ASK_EVERY_S", 0.05)
    stuck = supervise(toy(STUBBORN, stop_s=3600, silent_s=0.2))
    answers = [True, True, False]

    async def ready() -> bool:
        ignores_signals = bool((tmp_path / "toy.log").read_text())
        return ignores_signals and (answers.pop(0) if stuck.stopping and len(answers) > 1 else answers[0])

    stuck.service = replace(stuck.service, ready=ready)
    await stuck.start()
    await asyncio.wait_for(stuck.stop(), 60)
    assert stuck.pid is None
    assert answers == [False], "it was asked until it did not answer"


async def test_one_that_never_got_ready_is_not_waited_for(
    supervise: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "UNREADY_STOP_S", 0.1)
    stuck = supervise(toy(STUBBORN, ready=never, start_s=0.5, stop_s=3600))
    with pytest.raises(CannotStart, match="was not ready"):
        await asyncio.wait_for(stuck.start(), 60)
    assert stuck.pid is None


def test_the_node_daemon_is_not_killed_while_a_program_may_have_its_grace() -> None:
    grace = json_schema()["properties"]["checkpoint"]["properties"]["grace"]

    (nodes,) = start_plan(Options(), Environment(), port=8000).nodes

    assert nodes.stop_s > parse_duration(grace["x-maximum"]) + DELIVER_S
    composed = yaml.safe_load((BASE_DIR / "docker-compose.yml").read_text())["services"]["nodes"]
    assert composed["stop_grace_period"] == f"{nodes.stop_s}s"


async def test_a_second_request_to_stop_kills_the_whole_tree(supervise: Start) -> None:
    parent = "import subprocess, sys, time, signal; signal.signal(15, signal.SIG_IGN); "
    parent += "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); time.sleep(600)"
    family = supervise(toy([sys.executable, "-c", parent], stop_s=60))
    await family.start()
    assert family.pid is not None
    process = psutil.Process(family.pid)
    await until(process.children)
    members = [process, *process.children(recursive=True)]
    patient = asyncio.create_task(family.stop())
    await until(lambda: family.stopping)
    await family.stop()
    await patient
    assert not psutil.wait_procs(members, timeout=60)[1]


async def test_a_large_log_is_put_aside_while_its_service_writes_on(
    supervise: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portal.supervisor.process.LOG_MAX_BYTES", 1000)
    talker = (
        "import itertools, time\nfor n in itertools.count(): print(f'{n:099}', flush=True); time.sleep(0.01)"
    )
    service = supervise(toy([sys.executable, "-c", talker]))
    await service.start()
    log = tmp_path / "toy.log"
    await until(lambda: log.stat().st_size > 1000)
    service.rotate_log()
    assert (tmp_path / "toy.log.1").stat().st_size > 1000

    def first_line() -> int:
        line, end, _ = log.read_text().partition("\n")
        return int(line) if end else 0

    await until(first_line)  # what is written now begins later


async def test_when_one_of_several_cannot_start_the_others_are_given_up() -> None:
    given_up = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            given_up.set()
            raise

    async def broken() -> None:
        raise CannotStart("no")

    with pytest.raises(CannotStart):
        await together(slow(), broken())
    assert given_up.is_set()


async def test_pids_are_written_for_people_and_tests(supervise: Start, tmp_path: Path) -> None:
    toy_service = supervise(toy())
    await toy_service.start()
    assert json.loads((tmp_path / "children.json").read_text()) == {"toy": toy_service.pid, "up": os.getpid()}


def test_what_an_earlier_start_left_is_ended(tmp_path: Path) -> None:
    process = subprocess.Popen(SLEEPER)
    Register(tmp_path).note("toy", process.pid, signal.SIGTERM)
    end_leftovers(tmp_path, Report())
    assert process.wait(60) is not None  # the code itself was taken by the one who waited first
    assert not (tmp_path / "processes.json").exists()


def test_a_stranger_with_a_reused_pid_is_left_alone(tmp_path: Path) -> None:
    process = subprocess.Popen(SLEEPER)
    Register(tmp_path).note("toy", process.pid, signal.SIGTERM)
    noted = json.loads((tmp_path / "processes.json").read_text())
    noted[0]["born"] -= 1000
    (tmp_path / "processes.json").write_text(json.dumps(noted))
    end_leftovers(tmp_path, Report())
    assert process.poll() is None
    process.kill()
    process.wait()


def test_a_register_that_a_crash_cut_off_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "processes.json").write_text('[{"name": "toy", "pi')
    end_leftovers(tmp_path, Report())


def test_postgresqls_locks_of_a_dead_server_are_removed(tmp_path: Path) -> None:
    """One names a stranger with a reused pid, the other a zombie, as init leaves it in many a container."""
    data, sockets = tmp_path / "data", tmp_path / "sockets"
    data.mkdir()
    sockets.mkdir()
    zombie = subprocess.Popen(["true"], cwd=data)
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    locks = {data / "postmaster.pid": os.getpid(), sockets / ".s.PGSQL.5432.lock": zombie.pid}
    for lock, pid in locks.items():
        lock.write_text(f"{pid}\n{data}\n")
    remove_stale_locks(data, sockets)
    assert not [lock for lock in locks if lock.exists()]
    zombie.wait()


def test_postgresqls_locks_stay_while_its_children_work(tmp_path: Path) -> None:
    """The files of a database are protected until the children of a dead server are gone."""
    lock = tmp_path / "postmaster.pid"
    lock.write_text(f"1\n{tmp_path}\n")
    with subprocess.Popen(SLEEPER, cwd=tmp_path) as child, ThreadPoolExecutor(1) as pool:
        removal = pool.submit(remove_stale_locks, tmp_path, tmp_path / "sockets")
        with pytest.raises(TimeoutError):
            removal.result(0.3)
        assert lock.exists()
        child.kill()
        child.wait()
        removal.result(60)
    assert not lock.exists()


def test_the_kernel_ends_a_child_when_its_parent_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    parent = (
        "import pathlib, signal, subprocess, time; from portal.supervisor.children import dies_with_parent; "
        "signal.signal(signal.SIGINT, signal.SIG_DFL); "  # a run in the background may have it ignored
        f"child = subprocess.Popen(dies_with_parent({SLEEPER!r})); "
        f"pathlib.Path({str(note)!r}).write_text(str(child.pid)); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", parent])
    deadline = time.monotonic() + 60
    while not (note.exists() and note.read_text() and is_the_program(int(note.read_text()))):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child = psutil.Process(int(note.read_text()))
    process.kill()
    process.wait()
    child.wait(60)


def is_the_program(pid: int) -> bool:
    """Whether setpriv has already made way for the program."""
    try:
        return psutil.Process(pid).name().startswith("python")
    except psutil.Error:
        return False


def test_the_parent_death_signal_is_set_after_a_change_of_user() -> None:
    command = dies_with_parent(["unshare", "--user", "--", "postgres", "-D", "x"])
    assert command == [
        "unshare",
        "--user",
        "--",
        "setpriv",
        "--pdeathsig",
        "INT",
        "--",
        "postgres",
        "-D",
        "x",
    ]


def test_only_one_supervisor_may_have_a_data_folder(tmp_path: Path) -> None:
    first = DataLock(tmp_path / "up.lock")
    first.take()
    first.describe("process 7, http://127.0.0.1:8000")
    with pytest.raises(CannotStart, match=r"already running.*process 7, http://127.0.0.1:8000"):
        DataLock(tmp_path / "up.lock").take()


def test_back_off_grows_and_is_bounded() -> None:
    waits = [backoff_s(failures) for failures in range(20)]
    assert waits == sorted(waits)
    assert waits[0] == 0.2
    assert waits[-1] == 30
