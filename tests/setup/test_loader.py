"""The process that forks web server, workers and preparation of a start, with small programs in their place."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from portal.settings.env import BASE_DIR
from portal.supervisor import loader as loader_module
from portal.supervisor.children import kill_tree
from portal.supervisor.errors import CannotStart
from portal.supervisor.leftovers import Register
from portal.supervisor.loader import Loader
from portal.supervisor.process import Supervised
from portal.supervisor.report import Report
from portal.supervisor.running import Running
from portal.supervisor.service import Service
from portal.supervisor.starting import start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has what a fork needs")

LOOK_AROUND = """
import ctypes, gc, json, os, random, resource, signal, sys, threading
dies_with = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(dies_with))  # PR_GET_PDEATHSIG
print(json.dumps({
    "arguments": sys.argv, "name": __name__, "folder": os.getcwd(), "path": sys.path, "environment": dict(os.environ),
    "parent": os.getppid(), "leads": os.getsid(0) == os.getpid() == os.getpgrp(), "dies_with": dies_with.value,
    "files": sorted(os.listdir("/proc/self/fd")), "input": os.readlink("/proc/self/fd/0"),
    "output": os.readlink("/proc/self/fd/1"), "errors": os.readlink("/proc/self/fd/2"),
    "signals": [str(signal.getsignal(number)) for number in (1, 2, 13, 15, 17)],
    "collects": gc.isenabled(), "limit": resource.getrlimit(resource.RLIMIT_NOFILE), "mask": os.umask(0o77),
    "threads": len(os.listdir("/proc/self/task")), "flushes": sys.stdout.write_through,
    "random": random.random(), "has_django": "django.apps" in sys.modules,
}))
"""
ONLY_ITS_OWN = ("random", "has_django")


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], list[str]]:
    """The command of a program with this text."""

    def write(text: str) -> list[str]:
        path = tmp_path / "program.py"
        path.write_text(text)
        return [sys.executable, str(path), "--option", "a b"]

    return write


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    own = {
        "DJANGO_SETTINGS_MODULE": "portal.settings.base",
        "LUTHIER_DATA": str(tmp_path / "data"),
        "PYTHONPATH": str(BASE_DIR),
        "PYTHONUNBUFFERED": "1",
    }
    return {**os.environ, **own}


@pytest.fixture
async def loader(tmp_path: Path, env: dict[str, str]) -> AsyncIterator[Loader]:
    made = Loader(env=env, logs=tmp_path, report=Report())
    await made.start()
    yield made
    await made.end()


class Starts:
    """Starts processes as the supervisor does, and ends in any case what it started."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self._env, self.log = env, folder / "out.log"
        self.made: list[Running] = []

    async def __call__(self, command: list[str], loader: Loader | None = None) -> Running:
        with self.log.open("wb") as log:
            made = await start(
                command, env=self._env, output=log.fileno(), errors=log.fileno(),
                on_parent_death=signal.SIGTERM, loader=loader,
            )  # fmt: skip
        self.made.append(made)
        return made

    async def look_around(self, command: list[str], loader: Loader | None = None) -> dict[str, object]:
        assert await (await self(command, loader)).wait() == 0, self.log.read_text()
        return dict(json.loads(self.log.read_text()))


@pytest.fixture
async def starts(env: dict[str, str], tmp_path: Path) -> AsyncIterator[Starts]:
    made = Starts(env, tmp_path)
    yield made
    for process in made.made:
        if process.returncode is None:
            kill_tree(process.pid)
        await process.wait()


async def until(condition: Callable[[], object], within_s: float = 60) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.02)


def process_of(loader: Loader) -> psutil.Process:
    assert loader._process is not None
    return psutil.Process(loader._process.pid)


async def test_a_forked_process_finds_what_a_fresh_one_finds(
    loader: Loader, starts: Starts, program: Callable[[str], list[str]]
) -> None:
    command = program(LOOK_AROUND)
    fresh = await starts.look_around(command)
    forked = [await starts.look_around(command, loader) for _ in range(3)]
    assert [found["has_django"] for found in (fresh, *forked)] == [False, True, True, True]
    assert len({found["random"] for found in forked}) == 3
    for found in (fresh, *forked):
        for name in ONLY_ITS_OWN:
            del found[name]
        assert found == fresh
    assert fresh["parent"] == os.getpid()
    assert fresh["dies_with"] == signal.SIGTERM


async def test_it_is_found_by_its_command(loader: Loader, starts: Starts) -> None:
    """In the lists of processes."""
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "0"]
    pids = [(await starts(command, each)).pid for each in (None, loader)]
    await until(lambda: all(psutil.Process(pid).cmdline() == command for pid in pids))
    assert "portal.loader" in process_of(loader).cmdline()


async def test_a_long_command_is_shown_as_far_as_there_is_room(
    loader: Loader, starts: Starts, program: Callable[[str], list[str]]
) -> None:
    command = [
        *program("import sys, time; print(len(sys.argv[-1]), flush=True); time.sleep(600)"),
        "x" * 5000,
    ]
    process = await starts(command, loader)
    await until(lambda: starts.log.read_text() == "5000\n")
    assert " ".join(psutil.Process(process.pid).cmdline()[:2]) == " ".join(command[:2])


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9), ("1 / 0", 1)])
async def test_its_end_and_its_last_words_are_seen(
    loader: Loader, starts: Starts, program: Callable[[str], list[str]], end: str, code: int
) -> None:
    process = await starts(
        program(f"import os, sys\n'django.apps' in sys.modules or os._exit(9)\n{end}"), loader
    )
    assert await process.wait() == code
    assert ("ZeroDivisionError" in starts.log.read_text()) == (end == "1 / 0")
    with pytest.raises(ProcessLookupError):
        process.send_signal(signal.SIGTERM)


async def test_nothing_but_code_is_there_before_a_fork(
    loader: Loader, starts: Starts, program: Callable[[str], list[str]]
) -> None:
    """No thread, file or connection beside its own three, when it has loaded all that it loads."""
    for _ in range(3):
        await starts.look_around(program(LOOK_AROUND), loader)
    process = process_of(loader)
    assert process.num_threads() == 1
    files = sorted(str(path.readlink()) for path in Path(f"/proc/{process.pid}/fd").iterdir())
    assert [file.partition(":")[0] for file in files] == [str(starts.log.parent / "loader.log")] * 2 + [
        "socket"
    ]
    assert not process.children()


BROKEN = {
    "ends at once": "raise SystemExit('no')",
    "cannot load its code": "import no_such_module_of_ours",
    "does not answer": "import time; time.sleep(600)",
    "answers without a process": (
        "import socket, time\nsupervisor = socket.socket(fileno=0)\n"
        "while True: socket.recv_fds(supervisor, 65536, 3) and None"
    ),
    "answers nonsense": (
        "import socket, time\nsupervisor = socket.socket(fileno=0)\n"
        "_, files, _, _ = socket.recv_fds(supervisor, 65536, 3)\n"
        "socket.socket(fileno=files[2]).send(b'what?'); time.sleep(600)"
    ),
}


@pytest.mark.parametrize("how", BROKEN)
async def test_without_a_loader_that_works_a_process_starts_the_plain_way(
    how: str,
    starts: Starts,
    env: dict[str, str],
    tmp_path: Path,
    program: Callable[[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(loader_module, "ANSWER_S", 2 if "answer" in how else 60)
    monkeypatch.setattr(loader_module, "COMMAND", (sys.executable, "-c", BROKEN[how]))
    before = set(psutil.Process().children())
    broken = Loader(env=env, logs=tmp_path, report=Report())
    await broken.start()
    found = await starts.look_around(program(LOOK_AROUND), broken)
    assert not found["has_django"]
    assert set(psutil.Process().children()) == before, "the broken one is gone"
    said = capsys.readouterr().out
    assert said.count("each process loads its code itself") == 1
    assert str(tmp_path / "loader.log") in said


async def test_without_a_program_for_the_loader_a_process_starts_the_plain_way(
    starts: Starts,
    env: dict[str, str],
    tmp_path: Path,
    program: Callable[[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loader_module, "dies_with_parent", lambda command, _: ["/no/such/program"])
    none = Loader(env=env, logs=tmp_path, report=Report())
    await none.start()
    assert not (await starts.look_around(program(LOOK_AROUND), none))["has_django"]


async def test_another_environment_is_no_work_for_the_loader(
    loader: Loader, env: dict[str, str], tmp_path: Path, program: Callable[[str], list[str]]
) -> None:
    other = Starts({**env, "LUTHIER_PUBLIC_URL": "https://other.example"}, tmp_path)
    assert not (await other.look_around(program(LOOK_AROUND), loader))["has_django"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_what_a_lost_loader_forked_lives_on_and_is_started_again(
    loader: Loader,
    tmp_path: Path,
    env: dict[str, str],
    program: Callable[[str], list[str]],
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = tmp_path / "toy.log"
    text = "import sys, time; print('django.apps' in sys.modules, flush=True); time.sleep(600)"

    async def ready() -> bool:
        return True

    def toy(name: str) -> Supervised:
        service = Service(name=name, title="Toy", command=program(text), ready=ready, env=env, loaded=True)
        return Supervised(service, logs=tmp_path, register=Register(tmp_path), report=Report())

    first, second = toy("toy"), toy("later")
    try:
        await first.start(loader=loader)
        await until(lambda: log.read_text() == "True\n")
        monkeypatch.setattr(loader_module, "ANSWER_S", 2)
        process_of(loader).send_signal(number)
        await second.start(loader=loader)
        await until(lambda: (tmp_path / "later.log").read_text() == "False\n")
        before = first.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        await until(lambda: log.read_text() == "True\nFalse\n")
        assert first.pid != before
    finally:
        await first.stop()
        await second.stop()


async def test_a_forked_service_that_cannot_start_is_reported_with_its_last_words(
    loader: Loader, tmp_path: Path, env: dict[str, str], program: Callable[[str], list[str]]
) -> None:
    async def never() -> bool:
        return False

    text = "import sys\nraise SystemExit(f\"no such folder: {'django.apps' in sys.modules}\")"
    service = Service(name="toy", title="Toy", command=program(text), ready=never, env=env, loaded=True)
    broken = Supervised(service, logs=tmp_path, register=Register(tmp_path), report=Report())
    with pytest.raises(
        CannotStart, match=r"(?s)Toy exited with code 1.*no such folder: True.*no such folder: False"
    ):
        await broken.start(loader=loader)


async def test_a_fork_that_is_given_up_leaves_no_process(
    loader: Loader, starts: Starts, program: Callable[[str], list[str]], tmp_path: Path
) -> None:
    """Ctrl-C while the loader loads."""
    touch = program(f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()")
    process = process_of(loader)
    starting = asyncio.create_task(starts(touch, loader))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await loader.end()
    assert not process.is_running()
    assert not (tmp_path / "ran").exists()
